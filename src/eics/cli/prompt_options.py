"""Where prompts come from: options that all commands with prompts declare, and read, in the same way."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options
from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.models.base import Model
    from eics.models.prompts import Prompt
    from eics.studies.validation.data import Labelled

_FORMATS = (
    ": .jsonl, .json (array), .txt (one per line), .csv, .tsv or .parquet; - for standard input; or bundled "
    "prompts: facts, facts-withheld, people, people-withheld, induction. Repeatable: prompts without an id are then "
    "called file:line."
)
_NAMES = ("prompts", "column", "limit", "shuffle", "chat", "system")
FILE = click.Path(dir_okay=False, allow_dash=True)

texts = click.option("--prompt", "texts", multiple=True, help="Prompt text; repeatable.")
no_sort = click.option(
    "--no-sort", is_flag=True, help="Form batches in input order; by default prompts of similar length share one."
)


def prompt_files(what: str = "Prompts", name: str = "--prompts", *, required: bool = True) -> options.Decorator:
    """The files with prompts under this option name, and which of their prompts are taken, and how."""
    return options.combine(
        click.option(name, "prompts", type=FILE, multiple=True, required=required, help=what + _FORMATS),
        click.option("--column", metavar="NAME", help="Column or field with the prompts.  [default: prompt]"),
        click.option("--limit", type=options.POSITIVE, metavar="N", help="Use the first N prompts."),
        click.option("--shuffle", is_flag=True, help="Take the prompts in random order, by --seed."),
        click.option("--chat", is_flag=True, help="Put each prompt into the tokenizer's chat template, as the user's."),
        click.option("--system", metavar="TEXT", help="System message for --chat."),
    )


def read(given: dict[str, Any], texts: Sequence[str] = ()) -> "list[Prompt]":
    """The prompts that `prompt_files` or `texts` name, as they are written.

    `in_chat` goes on with the result when the model is there.
    """
    from eics.models.prompt_files import read_prompts
    from eics.models.prompts import as_prompts

    paths, how = _taken(given)
    if bool(texts) == bool(paths):
        raise OptionError("A model is scored on --prompt TEXT (repeatable) or on --prompts FILE, one of the two.")
    if not texts:
        return read_prompts(paths, **how)
    unused = [f"--{name}" for name in ("column", "shuffle", "limit") if how[name]]
    if unused:
        raise OptionError(f"{unused[0]} chooses prompts from files. With --prompt, give those that you want.")
    return as_prompts(list(texts))


def read_grouped(given: dict[str, Any], group: str | None) -> "tuple[list[Prompt], list[str] | None]":
    """The prompts of the files, and the value of the field `group` of each, if one is named."""
    if group is None:
        return read(given), None
    from eics.models.prompt_files import read_grouped as read_items

    paths, how = _taken(given)
    items = read_items(paths, group, **how)
    return [item.prompt for item in items], [item.group for item in items]


def read_labelled(given: dict[str, Any]) -> "list[Labelled]":
    """The labelled prompts of the files."""
    from eics.studies.validation.data import read_labelled_files

    paths, how = _taken(given)
    return read_labelled_files(paths, **how)


def in_chat(prompts: "list[Prompt]", model: "Model", given: dict[str, Any]) -> "list[Prompt]":
    """The prompts as the model's chat template has them, if `--chat` was given."""
    if not given["chat"]:
        return prompts
    from eics.models.chat import as_chat

    return as_chat(model, prompts, given["system"])


def labelled_in_chat(labelled: "list[Labelled]", model: "Model", given: dict[str, Any]) -> "list[Labelled]":
    """The same for labelled prompts."""
    from dataclasses import replace

    prompts = in_chat([item.prompt for item in labelled], model, given)
    return [replace(item, prompt=prompt) for item, prompt in zip(labelled, prompts, strict=True)]


def input_files(given: dict[str, Any]) -> list[Path]:
    """The files on disk that `prompt_files` names: what no output may overwrite."""
    return [path for path in map(Path, given.get("prompts") or ()) if path.exists()]


def _taken(given: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The files, and how `read_prompts` reads them."""
    if given["system"] is not None and not given["chat"]:
        raise OptionError("--system is the system message of a chat: add --chat.")
    how = {name: given[name] for name in ("column", "limit", "shuffle")}
    return given["prompts"], how | {"seed": given.get("seed") or 0}


def without(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command other than those declared here."""
    return {name: value for name, value in given.items() if name not in _NAMES}
