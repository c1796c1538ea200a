"""Which record of a file a command shows or exports."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.options import combine
from eics.errors import RecordError
from eics.scoring.options import CONFIGURATION, PRESETS, changes_of, nearest_preset

if TYPE_CHECKING:
    from eics.scoring.result import Score

record_options = combine(
    click.option("--prompt-id", help="Prompt whose record to use.  [default: the first that was scored]"),
    click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        help="Which record, if the prompt has one per preset.  [default: the first that was scored]",
    ),
)
"""The two options that choose a record, for `choose_record`."""


def choose_record(path: Path, prompt_id: str | None, preset: str | None = None) -> "Score":
    """The first scored record of a file with this prompt and preset."""
    from eics.scoring.records import read_records

    records = [score for score in read_records(path) if prompt_id is None or str(score.id) == prompt_id]
    which = "one record" if prompt_id is None else f"a record of prompt {prompt_id!r}"
    if not records:
        raise RecordError(f"The file {str(path)!r} must have at least {which}. It has none.")
    scored = [score for score in records if score.eics is not None]
    if not scored:
        raise RecordError(f"A record must have been scored. Prompt {records[0].id} failed: {records[0].reason}")
    matching = [score for score in scored if preset in (None, nearest_preset(_configuration(score)))]
    if not matching:
        present = ", ".join(dict.fromkeys(configuration_of(score) for score in scored))
        raise RecordError(f"The file {str(path)!r} must have {which} of preset {preset}. It has: {present}.")
    return matching[0]


def configuration_of(score: "Score") -> str:
    """The preset that a record was scored with, and the options that differ from it."""
    used = _configuration(score)
    if not any(used.values()):
        return "configuration not recorded"
    preset = nearest_preset(used)
    changes = changes_of(preset, used)
    return f"preset {preset}" + (f" with {', '.join(changes)}" if changes else "")


def _configuration(score: "Score") -> Mapping[str, Any]:
    return {name: getattr(score, name) for name in CONFIGURATION}
