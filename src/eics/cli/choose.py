"""Which record of a file a command looks at."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.errors import RecordError
from eics.scoring.options import CONFIGURATION, PRESETS, changes_of, nearest_preset

if TYPE_CHECKING:
    from eics.scoring.result import Score


def record_options(command: Any) -> Any:
    """The two options that choose a record, for `choose_record`."""
    preset = "Which of the prompt's records, where it has two.  [default: the first that was scored]"
    command = click.option("--preset", type=click.Choice(list(PRESETS)), help=preset)(command)
    prompt = "Which prompt's record.  [default: the first that was scored]"
    return click.option("--prompt-id", help=prompt)(command)


def choose_record(path: Path, prompt_id: str | None, preset: str | None = None) -> "Score":
    """The record to show: the first that was scored, of the prompt and the preset asked for."""
    from eics.scoring.records import read_records

    records = [score for score in read_records(path) if prompt_id is None or str(score.id) == prompt_id]
    which = "one record" if prompt_id is None else f"a record of prompt {prompt_id!r}"
    if not records:
        raise RecordError(f"The file {str(path)!r} must have at least {which}. It has none.")
    scored = [score for score in records if score.eics is not None]
    if not scored:
        raise RecordError(f"A record must have been scored. Prompt {records[0].id} failed: {records[0].reason}")
    fitting = [score for score in scored if preset in (None, nearest_preset(_used(score)))]
    if not fitting:
        there = ", ".join(dict.fromkeys(configuration_of(score) for score in scored))
        raise RecordError(f"The file {str(path)!r} must have {which} of preset {preset}. It has: {there}.")
    return fitting[0]


def configuration_of(score: "Score") -> str:
    """The preset that a record was scored with, and what was changed of it."""
    used = _used(score)
    if not any(used.values()):
        return "a configuration that the record does not say"
    preset = nearest_preset(used)
    changes = changes_of(preset, used)
    return f"preset {preset}" + (f" with {', '.join(changes)}" if changes else "")


def _used(score: "Score") -> Mapping[str, Any]:
    return {name: getattr(score, name) for name in CONFIGURATION}
