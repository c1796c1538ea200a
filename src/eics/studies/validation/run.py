"""The protocol from prompts to verdict: two stages on disk, then the analysis, which reads only what they left."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.scoring.options import CHOICES
from eics.studies.validation.analysis import LEAST_RESAMPLES, Validation, analyse
from eics.studies.validation.answers import Answering, answer_rows
from eics.studies.validation.conformal import calibrate
from eics.studies.validation.data import Labelled, group_values, read_labelled
from eics.studies.validation.fitted import folds
from eics.studies.validation.keep import FAILED, choose
from eics.studies.validation.measure import FittedEAR, Measuring, measured_rows
from eics.studies.validation.store import Journal, Row, check_settings, read_parquet, write_parquet

Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is asked; all of it is in the report.

    Attributes:
        match: `first-token` or `text`, for prompts without a label of their own.
        generate: tokens that are written for `text`.
        drop_function_words: leave out prompts whose answer or predicted token is a function word.
        matched: keep as many correct as wrong prompts within each group of this field.
        group: put whole groups of this field on one side of the split, and resample whole groups.
        dev_share: of the prompts, for development.
        coverage: of the conformal sets.
        mode: of the scores' EI terms; `fast` has no alpha to choose.
        seed: of matching, split, folds, probes and resamples.
    """

    match: str = "first-token"
    generate: int = 8
    drop_function_words: bool = False
    matched: str | None = None
    group: str | None = None
    dev_share: float = 0.5
    coverage: float = 0.9
    mode: str = "lanczos"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dev_share", "coverage"):
            value = getattr(self, name)
            if not isinstance(value, float) or not 0 < value < 1:
                raise OptionError.of(name.replace("_", "-"), "a number between 0 and 1", value)
        if self.mode not in CHOICES["mode"]:
            raise OptionError.of("mode", f"one of {', '.join(CHOICES['mode'])}", self.mode)
        for name, least in (("seed", 0), ("generate", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise OptionError.of(name, f"a whole number >= {least}", getattr(self, name))


def validate(
    model: Any,
    circuit: Circuit,
    data: str | Path | Iterable[Any],
    *,
    out: str | Path | None = None,
    ensemble: Sequence[Any] = (),
    resamples: int = 2000,
    batch_size: int = 8,
    memory: float = 64.0,
    resume: bool = False,
    progress: Progress | None = None,
    **protocol: Any,
) -> Validation:
    """Does the circuit's score tell the model's correct answers from its wrong ones?

    Args:
        model: from `eics.load_model` or `eics.adapt`, or a loaded transformers model.
        circuit: which heads and MLPs, and the edges between them.
        data: a file of labelled prompts, or the objects that would stand in it.
        out: a folder for the rows, the results and the report; nothing is kept where there is none.
        ensemble: other models with the same vocabulary.
        resamples: of the bootstrap.
        batch_size: prompts in a forward pass.
        memory: megabytes that one temporary block may take.
        resume: continue what an interrupted run left in `out`.
        progress: gives, for a stage and its steps, a context with a function that advances.
        **protocol: the fields of `Protocol`.

    The result has `results` by score, `gains`, `sentences` and `write_report(folder)`.
    """
    from eics.transformer.adapt import adapt

    asked = Protocol(**protocol)
    if not isinstance(resamples, int) or resamples < LEAST_RESAMPLES:
        must = f"a whole number >= {LEAST_RESAMPLES}, since fewer could show nothing after correction"
        raise OptionError.of("resamples", must, resamples)
    prompts = read_labelled(data)
    for key in (asked.matched, asked.group):
        if key is not None:
            group_values(prompts, key)
    adapted = adapt(model)
    adapted.check_circuit(circuit)
    answering = Answering(adapted, asked.match, asked.generate, tuple(adapt(other) for other in ensemble))
    settings = _settings(asked, answering, circuit, prompts)
    measuring = Measuring(adapted, circuit, asked.mode, memory, asked.seed, batch_size)
    with _folder(out) as folder:
        check_settings(folder / "settings.json", settings, resume=resume)
        stages = _Stages(folder, prompts, asked, answering, measuring, progress or _silent, resume)
        table = folder / "scores.parquet"
        if not (resume and table.exists()):
            table.unlink(missing_ok=True)
            stages.run(table)
        found = analyse(read_parquet(table), settings, asked.group, asked.matched, resamples=resamples)
        if out is not None:
            found.write_report(folder)
    return found


@dataclass(frozen=True)
class _Stages:
    folder: Path
    prompts: list[Labelled]
    asked: Protocol
    answering: Answering
    measuring: Measuring
    progress: Progress
    resume: bool

    def run(self, table: Path) -> None:
        """Both stages, each continued where it was left, then one table of all prompts."""
        answers = Journal(self.folder / "answers.jsonl", resume=self.resume)
        measured = Journal(self.folder / "measured.jsonl", resume=self.resume)
        self.answer(answers)
        rows = [{name: value for name, value in row.items() if name != "final"} for row in answers]
        asked = self.asked
        chosen = choose(
            rows,
            drop_function_words=asked.drop_function_words,
            matched=asked.matched,
            group=asked.group,
            share=asked.dev_share,
            seed=asked.seed,
        )
        self.measure(measured, {row["id"]: row for row in rows}, chosen)
        scored = {row["id"]: row for row in measured}
        write_parquet((_whole(row, chosen[row["id"]], scored.get(row["id"], {})) for row in answers), table)
        for journal in (answers, measured):
            journal.path.unlink()

    def answer(self, journal: Journal) -> None:
        """The first stage."""
        done = journal.ids()
        todo = [prompt for prompt in self.prompts if prompt.id not in done]
        with self.progress("answers", len(todo)) as tick:
            for rows in answer_rows(self.answering, todo, self.measuring.batch_size, tick):
                journal.append(rows)

    def measure(
        self, journal: Journal, rows: dict[str | int, Row], chosen: dict[str | int, tuple[str | None, str | None]]
    ) -> None:
        """What the development split fits, then the second stage."""
        kept = [prompt for prompt in self.prompts if chosen[prompt.id][0] is not None]
        development = [prompt for prompt in kept if chosen[prompt.id][0] == "development"]
        done = journal.ids()
        todo = [prompt for prompt in kept if prompt.id not in done]
        if not todo:
            return
        known = [rows[p.id] for p in development if rows[p.id].get("answer_probability") is not None]
        conformal = None
        if known:
            probability, mass = (
                np.array([row[name] for row in known]) for name in ("answer_probability", "answer_mass")
            )
            conformal = calibrate(probability, mass, self.asked.coverage, self.asked.seed)
        with self.progress("EAR's maps", len(development)) as tick:
            ear = FittedEAR(self.measuring, [p.prompt for p in development], self._folds(development, rows), tick)
        how = replace(self.measuring, conformal=conformal, ear=ear)
        with self.progress("scores", len(todo)) as tick:
            for found in measured_rows(how, [prompt.prompt for prompt in todo], tick):
                journal.append(found)

    def _folds(self, development: Sequence[Labelled], rows: dict[str | int, Row]) -> dict[str | int, int]:
        labels = np.array([bool(rows[prompt.id]["label"]) for prompt in development])
        key = self.asked.group
        groups = None if key is None else [prompt.groups[key] for prompt in development]
        found: dict[str | int, int] = {}
        for number, (_, held) in enumerate(folds(labels, groups, self.asked.seed)):
            found |= {development[at].id: number for at in held}
        return found


def _whole(answer: Row, chosen: tuple[str | None, str | None], scored: Row) -> Row:
    """A prompt's row of the table."""
    split, dropped = chosen
    if scored.get("failed"):
        split, dropped = None, FAILED
    return answer | scored | {"split": split, "dropped": dropped}


def _settings(asked: Protocol, answering: Answering, circuit: Circuit, prompts: Sequence[Labelled]) -> Row:
    """What makes a run what it is; `resume` refuses another one."""
    text = json.dumps([[asdict(prompt.prompt), prompt.answers, prompt.label, prompt.groups] for prompt in prompts])
    return {
        "model": answering.model.name,
        "dtype": str(answering.model.dtype).removeprefix("torch."),
        "ensemble": [other.name for other in answering.ensemble],
        "circuit": circuit.label(),
        "prompts": len(prompts),
        "data_sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        **asdict(asked),
    }


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is None:
        with TemporaryDirectory(prefix="eics-") as name:
            yield Path(name)
        return
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise OptionError.of("out", "a folder", str(out))
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


@contextmanager
def _silent(stage: str, steps: int) -> Iterator[Callable[..., None]]:  # noqa: ARG001
    yield lambda _=1: None
