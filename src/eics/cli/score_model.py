"""`eics score` on a model: prompts in, records out as they are made."""

from pathlib import Path
from typing import Any

from eics.circuits.load import load_circuit
from eics.cli.terminal import console, track
from eics.errors import OptionError, RecordError
from eics.models.prompts import Prompt, as_prompts, read_prompts
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.file import load_calibration
from eics.scoring.options import Options
from eics.scoring.records import read_records, write_records
from eics.scoring.result import Score, Scores
from eics.studies.run_folder import RowFile, check_same

_RECORDED = (
    "mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "seed", "alpha",
)  # fmt: skip

_Done = dict[str | int, list[Score]]
"""Records of an earlier run, by prompt."""


def score_model(runs: dict[str, Options], where: dict[str, Any], out: Path | None, *, quiet: bool) -> dict[str, Scores]:
    """Scores every prompt that `out` lacks and appends its records there; returns all records by preset."""
    prompts = _prompts(where)
    tokens = token_ids(where["tokens"])
    circuit = load_circuit(where["circuit"])
    calibration = None if where["calibration"] is None else load_calibration(where["calibration"])
    if calibration is not None:
        setup = (where["model"], circuit.label(), where["answer"], tokens)
        runs = {name: calibration.fit(options, *setup) for name, options in runs.items()}
    file = _open(out, runs, resume=where["resume"])
    done = _done(file, runs, where["model"], circuit.label(), calibration) if file is not None else {}
    todo = [prompt for prompt in prompts if prompt.id not in done]
    from eics.scoring.batch import score_prompts
    from eics.transformer.adapt import load_model

    if todo:
        options = {"trust_remote_code": True} if where["trust_remote_code"] else {}
        model = load_model(where["model"], dtype=where["dtype"], device=where["device"], **options)
        if not quiet:
            console(stderr=True).print(f"{where['model']}: {circuit!r}", markup=False)
        scored = score_prompts(
            model,
            circuit,
            todo,
            list(runs.values()),
            answer=where["answer"],
            tokens=tokens,
            batch_size=where["batch_size"],
            means=None if calibration is None else calibration.means,
        )
        with track("prompts", len(todo), quiet=quiet) as tick:
            for prompt, raw in zip(todo, scored, strict=True):
                scores = raw if calibration is None else Scores(calibration.place(score) for score in raw)
                done[prompt.id] = scores
                if file is not None:
                    file.append(score.to_record() for score in scores)
                tick()
    ordered = [done[prompt.id] for prompt in prompts]
    if out is not None and out.suffix == ".parquet":
        write_records((score for scores in ordered for score in scores), out)
    return {name: Scores(scores[index] for scores in ordered) for index, name in enumerate(runs)}


def _prompts(where: dict[str, Any]) -> list[Prompt]:
    if bool(where["texts"]) == bool(where["prompts"]):
        raise OptionError("A model is scored on --prompt TEXT (repeatable) or on --prompts FILE, one of the two.")
    return read_prompts(where["prompts"]) if where["prompts"] else as_prompts(where["texts"])


def _open(out: Path | None, runs: dict[str, Options], *, resume: bool) -> RowFile | None:
    """The file that records are appended to; None if they are written at the end, or not at all."""
    is_lines = out is not None and out.suffix == ".jsonl"
    if resume and not is_lines:
        raise OptionError("--resume needs --out FILE.jsonl, the file of the run to continue.")
    if resume and any(options.alpha == "auto" for options in runs.values()):
        raise OptionError("--resume needs alpha as a number: use the one in the records of the run to continue.")
    return RowFile(out, resume=resume) if out is not None and is_lines else None


def _done(
    file: RowFile, runs: dict[str, Options], model: str, circuit: dict[str, str], calibration: Calibration | None
) -> _Done:
    """Complete records of an earlier run with the same model, circuit, options and calibration."""
    by_prompt: _Done = {}
    for score in read_records(file.path):
        # Records without these fields are older than the fields.
        recorded = {"model": score.model, "circuit": score.circuit}
        for name, value in (("model", model), ("circuit", circuit)):
            if recorded[name] is not None:
                check_same(recorded, {name: value}, str(file.path), what=name)
        by_prompt.setdefault(score.id, []).append(score)
    complete = {id: scores for id, scores in by_prompt.items() if len(scores) == len(runs)}
    for scores in complete.values():
        for score, options in zip(scores, runs.values(), strict=True):
            recorded = {name: getattr(score, name) for name in _RECORDED if getattr(score, name) is not None}
            check_same(recorded, {name: options[name] for name in recorded}, str(file.path), what="options")
            if score.eics is not None and (score.percentile is None) != (calibration is None):
                theirs = "none" if score.percentile is None else "one"
                raise RecordError(
                    f"--resume must continue with the same calibration. {str(file.path)!r} was made with {theirs}: "
                    "use another --out."
                )
    if len(complete) < len(by_prompt):  # a prompt with only some of its records is scored again
        file.replace(score.to_record() for scores in complete.values() for score in scores)
    return complete


def token_ids(text: str | None) -> list[int] | None:
    """Token ids as the command line gives them, separated by commas."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError.of("tokens", "token ids separated by commas", text) from None
