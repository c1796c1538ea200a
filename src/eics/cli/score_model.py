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
from eics.scoring.records import append_record, drop_half_line, read_records, write_records
from eics.scoring.result import Score, Scores


def score_model(runs: dict[str, Options], where: dict[str, Any], out: Path | None, *, quiet: bool) -> dict[str, Scores]:
    """Scores every prompt that is not in `out` yet, appending its records to it; gives all records by preset."""
    prompts = _prompts(where)
    tokens = token_ids(where["tokens"])
    circuit = load_circuit(where["circuit"])
    calibration = None if where["calibration"] is None else load_calibration(where["calibration"])
    if calibration is not None:
        about = (where["model"], circuit.label(), where["answer"], tokens)
        runs = {name: calibration.fit(options, *about) for name, options in runs.items()}
    done = _done(out, runs, where["model"], circuit.label(), resume=where["resume"])
    _check_calibrated(done, calibration)
    todo = [prompt for prompt in prompts if prompt.id not in done]
    from eics.scoring.batch import score_prompts
    from eics.transformer.adapt import load_model

    if todo:
        options = {"trust_remote_code": True} if where["trust_remote_code"] else {}
        model = load_model(where["model"], dtype=where["dtype"], device=where["device"], **options)
        if not quiet:
            console(stderr=True).print(f"{where['model']}: {circuit!r}", markup=False)
        found = score_prompts(
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
            for prompt, raw in zip(todo, found, strict=True):
                scores = raw if calibration is None else Scores(calibration.place(score) for score in raw)
                done[prompt.id] = scores
                if out is not None and out.suffix == ".jsonl":
                    append_record(scores, out)
                tick()
    ordered = [done[prompt.id] for prompt in prompts]
    if out is not None and out.suffix == ".parquet":
        write_records((score for scores in ordered for score in scores), out)
    return {name: Scores(scores[place] for scores in ordered) for place, name in enumerate(runs)}


def _prompts(where: dict[str, Any]) -> list[Prompt]:
    if bool(where["texts"]) == bool(where["prompts"]):
        raise OptionError("A model is scored on --prompt TEXT (repeatable) or on --prompts FILE, one of the two.")
    return read_prompts(where["prompts"]) if where["prompts"] else as_prompts(where["texts"])


def _done(
    out: Path | None, runs: dict[str, Options], model: str, circuit: dict[str, str], *, resume: bool
) -> dict[str | int, list[Score]]:
    """Records of an earlier run, by prompt: complete ones of the same model, circuit and configurations."""
    if not resume:
        if out is not None and out.suffix == ".jsonl":
            out.write_text("", encoding="utf-8")
        return {}
    if out is None or out.suffix != ".jsonl":
        raise OptionError("--resume needs --out FILE.jsonl, the file of the run to continue.")
    if any(options.alpha == "auto" for options in runs.values()):
        raise OptionError("--resume needs alpha as a number: take the one in the records of the run to continue.")
    if not out.exists():
        return {}
    drop_half_line(out)
    by_prompt: dict[str | int, list[Score]] = {}
    for score in read_records(out):
        _check_about(score, model, circuit)
        by_prompt.setdefault(score.id, []).append(score)
    whole = {name: scores for name, scores in by_prompt.items() if len(scores) == len(runs)}
    for scores in whole.values():
        _check_same(scores, runs)
    if len(whole) < len(by_prompt):  # a prompt of which only some records were written is scored again
        write_records((score for scores in whole.values() for score in scores), out)
    return whole


def _check_about(score: Score, model: str, circuit: dict[str, str]) -> None:
    """Records without these fields are older than them. A circuit is what it holds, whatever it is called."""
    if score.model is not None and score.model != model:
        raise RecordError(
            f"--resume must continue with the same model. The file has {score.model!r}, this run {model!r}: "
            "use another --out."
        )
    if score.circuit is not None and score.circuit["sha256"] != circuit["sha256"]:
        theirs, ours = (f"{c['name']!r} (sha256 {c['sha256'][:8]}...)" for c in (score.circuit, circuit))
        raise RecordError(
            f"--resume must continue with the same circuit. The file has {theirs}, this run {ours}: use another --out."
        )


def _check_same(scores: list[Score], runs: dict[str, Options]) -> None:
    names = (
        "mode",
        "linearization",
        "residual",
        "parts",
        "metric",
        "emergence",
        "positions",
        "readout",
        "seed",
        "alpha",
    )
    for score, options in zip(scores, runs.values(), strict=True):
        for name in names:
            if getattr(score, name) is not None and getattr(score, name) != options[name]:
                raise RecordError(
                    f"--resume must continue with the same options. The file has {name} = {getattr(score, name)!r}, "
                    f"this run {options[name]!r}: use another --out."
                )


def _check_calibrated(done: dict[str | int, list[Score]], calibration: Calibration | None) -> None:
    for score in (score for scores in done.values() for score in scores if score.eics is not None):
        if (score.percentile is None) != (calibration is None):
            theirs = "no calibration" if score.percentile is None else "one"
            raise RecordError(
                f"--resume must continue with the same calibration. The file was made with {theirs}: use another --out."
            )


def token_ids(text: str | None) -> list[int] | None:
    """Ids as the command line gives them, separated by commas."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError.of("tokens", "token ids separated by commas", text) from None
