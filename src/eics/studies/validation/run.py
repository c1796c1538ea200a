"""The protocol from prompts to verdict: two stages that write rows, then the analysis, which reads only the table.

The stages append to `answers.jsonl` and `measured.jsonl`; once both are complete, their rows become `scores.parquet`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from eics.circuits.graph import Circuit
from eics.errors import OptionError, as_path, did_you_mean
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.models.prompts import tokens_or_none
from eics.scoring.checks import check_whole
from eics.scoring.job import fingerprint_of
from eics.scoring.options import CHOICES, PAPER
from eics.studies.run_folder import Row, RowFile, RunFolder, digest
from eics.studies.validation.analysis import LEAST_RESAMPLES, Validation, analyse
from eics.studies.validation.answers import Answering, answer_rows
from eics.studies.validation.conformal import Conformal, calibrate
from eics.studies.validation.data import Labelled, group_values, read_labelled
from eics.studies.validation.fitted import folds
from eics.studies.validation.measure import FittedEAR, Measuring, measured_rows
from eics.studies.validation.split import FAILED, Choice, choose
from eics.studies.validation.table import read_table, write_table

Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]

ANSWERS, MEASURED, TABLE = "answers.jsonl", "measured.jsonl", "scores.parquet"
FILES = (ANSWERS, MEASURED, TABLE, "results.json", "roc.svg", "distributions.svg", "report.md", "report.html")
"""What a run writes, besides its settings."""

_LARGEST_SEED = 2**32 - 1  # of scikit-learn and of numpy's older generator, which draw folds and ties


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Every choice of the protocol; the report states all of them.

    Attributes:
        match: `first-token` or `text`, for prompts without a given label.
        generate: number of tokens to generate for `text`.
        drop_function_words: exclude prompts whose answer or predicted token is a function word.
        matched: keep as many correct as wrong prompts within each group of this field.
        group: put whole groups of this field on one side of the split, and resample whole groups.
        dev_share: share of the prompts that form the development split.
        coverage: coverage of the conformal sets.
        mode: how EI terms are computed; in `limit` there is no alpha to choose.
        seed: for matching, split, folds, probes and resamples.
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
        check_whole("seed", self.seed, least=0, most=_LARGEST_SEED)
        check_whole("generate", self.generate, least=1)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Protocol":
        """The protocol with these choices; refuses one that it does not have, by name."""
        names = [field.name for field in fields(cls)]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise OptionError(
                f"Unknown option {unknown[0]!r}. The options are {', '.join(names)}.{did_you_mean(unknown[0], names)}"
            )
        return cls(**given)


@memory_explained
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
    overwrite: bool = False,
    progress: Progress | None = None,
    **protocol: Any,
) -> Validation:
    """Does the circuit's score separate the model's correct answers from its wrong ones?

    Args:
        model: from `eics.load_model` or `eics.adapt`, or a loaded transformers model.
        circuit: which heads and MLPs, and the edges between them.
        data: a file of labelled prompts, or objects like its lines.
        out: a folder for the rows, the results and the report; nothing is kept without it.
        ensemble: other models with the same vocabulary.
        resamples: number of bootstrap resamples.
        batch_size: prompts per forward pass.
        memory: megabytes that one temporary block may take.
        resume: continue the run in `out`. overwrite: replace it.
        progress: given a stage and its number of steps, a context manager that yields a function to advance it.
        **protocol: the fields of `Protocol`.

    The result has `results` by score, `gains`, `sentences` and `write_report(folder)`.
    """
    from eics.transformer.adapt import adapt

    chosen = Protocol.of(protocol)
    batch_size = check_whole("batch_size", batch_size, least=1)
    PAPER.with_(memory=memory)  # refuses what cannot be one before a folder is made
    if not isinstance(ensemble, list | tuple):
        raise OptionError.of("ensemble", "a list of models", ensemble)
    if not isinstance(resamples, int) or resamples < LEAST_RESAMPLES:
        must = f"a whole number >= {LEAST_RESAMPLES}, since fewer could show nothing after correction"
        raise OptionError.of("resamples", must, resamples)
    prompts = read_labelled(data)
    for field in (chosen.matched, chosen.group):
        if field is not None:
            group_values(prompts, field)
    adapted = adapt(model)
    adapted.check_circuit(circuit)
    circuit.carrying("frozen")  # refuses a circuit of which nothing remains in the well-posed preset
    answering = Answering(adapted, chosen.match, chosen.generate, tuple(adapt(other) for other in ensemble))
    settings = _settings(chosen, answering, circuit, prompts)
    measuring = Measuring(adapted, circuit, chosen.mode, memory, chosen.seed, batch_size)
    with TemporaryDirectory(prefix="eics-") if out is None else nullcontext(out) as name:
        path = as_path(name, "output folder")
        with RunFolder.open(path, settings, FILES, resume=resume, overwrite=overwrite) as folder:
            table = path / TABLE
            if not table.exists():
                silent: Progress = lambda *_: nullcontext(lambda *_: None)  # noqa: E731
                stages = _Stages(prompts, chosen, answering, measuring, progress or silent)
                stages.run(folder.rows(ANSWERS, "id", "groups", "label_given"), folder.rows(MEASURED, "id"), table)
            validation = analyse(read_table(table), settings, chosen.group, chosen.matched, resamples=resamples)
            if out is not None:
                validation.write_report(path)
    return validation


@dataclass(frozen=True)
class _Stages:
    prompts: list[Labelled]
    protocol: Protocol
    answering: Answering
    measuring: Measuring
    progress: Progress

    def run(self, answers: RowFile, measured: RowFile, table: Path) -> None:
        """Both stages, each resumed if it was interrupted, then one table of all prompts."""
        todo = _missing(self.prompts, answers)
        with self.progress("answers", len(todo)) as tick:
            for batch in answer_rows(self.answering, todo, self.measuring.batch_size):
                answers.append(batch)
                tick(len(batch))
        rows = [{name: value for name, value in row.items() if name != "final"} for row in answers]
        choices = choose(
            rows,
            drop_function_words=self.protocol.drop_function_words,
            matched=self.protocol.matched,
            group=self.protocol.group,
            share=self.protocol.dev_share,
            seed=self.protocol.seed,
        )
        self.measure(measured, {row["id"]: row for row in rows}, choices)
        scored = {row["id"]: row for row in measured}
        write_table((_merged(row, choices[row["id"]], scored.get(row["id"], {})) for row in answers), table)
        for file in (answers, measured):
            file.path.unlink()

    def measure(self, file: RowFile, answers: dict[str | int, Row], choices: dict[str | int, Choice]) -> None:
        """Fits what is fitted on the development split, then scores every prompt that counts."""
        kept = [prompt for prompt in self.prompts if choices[prompt.id][0] is not None]
        development = [prompt for prompt in kept if choices[prompt.id][0] == "development"]
        todo = _missing(kept, file)
        if not todo:
            return
        conformal = self._conformal([answers[prompt.id] for prompt in development])
        with self.progress("EAR's maps", len(development)) as tick:
            ear = FittedEAR(self.measuring, [p.prompt for p in development], self._folds(development, answers), tick)
        how = replace(self.measuring, conformal=conformal, ear=ear)
        with self.progress("scores", len(todo)) as tick:
            for batch in measured_rows(how, [prompt.prompt for prompt in todo]):
                file.append(batch)
                tick(len(batch))

    def _conformal(self, development: Sequence[Row]) -> Conformal | None:
        with_answer = [row for row in development if row.get("answer_probability") is not None]
        if not with_answer:
            return None
        names = ("answer_probability", "answer_mass")
        probability, mass = (np.array([row[name] for row in with_answer]) for name in names)
        return calibrate(probability, mass, self.protocol.coverage, self.protocol.seed)

    def _folds(self, development: Sequence[Labelled], answers: dict[str | int, Row]) -> dict[str | int, int]:
        labels = np.array([bool(answers[prompt.id]["label"]) for prompt in development])
        field = self.protocol.group
        groups = None if field is None else [prompt.groups[field] for prompt in development]
        splits = enumerate(folds(labels, groups, self.protocol.seed))
        return {development[index].id: fold for fold, (_, held) in splits for index in held}


def _missing(prompts: Sequence[Labelled], file: RowFile) -> list[Labelled]:
    done = {row["id"] for row in file}
    return [prompt for prompt in prompts if prompt.id not in done]


def _merged(answer: Row, choice: Choice, scored: Row) -> Row:
    """A prompt's row of the table."""
    split, excluded = (None, FAILED) if scored.get("failed") else choice
    return answer | scored | {"split": split, "dropped": excluded}


def _weights(ensemble: Sequence[Model]) -> Row:
    return {"ensemble_weights": [fingerprint_of(other) for other in ensemble]} if ensemble else {}


def _settings(protocol: Protocol, answering: Answering, circuit: Circuit, prompts: Sequence[Labelled]) -> Row:
    """What identifies a run: `resume` requires the same."""
    content = [[asdict(prompt.prompt), prompt.answers, prompt.label, prompt.groups] for prompt in prompts]
    return {
        "model": answering.model.name,
        "fingerprint": fingerprint_of(answering.model),
        "dtype": str(answering.model.transformer.unembed.dtype).removeprefix("torch."),
        "ensemble": [other.name for other in answering.ensemble],
        **_weights(answering.ensemble),
        "circuit": circuit.label(),
        "prompts": len(prompts),
        "data_sha256": digest(content),
        "tokens_sha256": digest([tokens_or_none(answering.model, prompt.prompt) for prompt in prompts]),
        **asdict(protocol),
    }
