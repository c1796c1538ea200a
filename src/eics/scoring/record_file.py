"""The records of one run, safe on disk as they are made, and continued if the run was interrupted.

A `.jsonl` file is its own stream. A `.parquet` or `.csv` file has a journal of JSON lines beside it until the run is
complete (`scores.parquet.part.jsonl`); then it appears whole and the journal goes. Nothing is touched before the first
record is there: a run that fails earlier leaves everything as it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eics.circuits.graph import Circuit
from eics.data.files import RowFile, count_rows, read_rows, to_lines, write_bytes
from eics.data.outputs import STREAMED, journal_of
from eics.data.resume import check_same, differs
from eics.errors import RecordError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokens_or_none
from eics.scoring.job import fingerprint_of, requested
from eics.scoring.options import RECORDED, Options
from eics.scoring.records import check_path, from_row, parquet_rows, write_records
from eics.scoring.result import RECORD_VERSION, Score, Scores
from eics.transformer.interventions import Intervention

Id = str | int


class RecordFile:
    """The file of a run's records, appended to prompt by prompt."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        check_path(path)
        self.path, self.journal = path, journal_of(path)
        self._resume = resume
        self._rows: RowFile | None = None
        self.earlier = Scores(self._read(read_earlier(path))) if resume else Scores()
        self._ids = [score.id for score in self.earlier]

    @property
    def safe(self) -> dict[Path, int]:
        """How many records are on disk, by file; none before a run has touched it."""
        if self._rows is None and not self._resume:
            return {}
        in_journal = self.path.suffix != STREAMED and self.journal.exists()
        return {self.path.with_name(self.journal.name) if in_journal else self.path: self._count()}

    def append(self, scores: Iterable[Score]) -> None:
        """Adds the records of a prompt; they are in the file when this returns."""
        scores = list(scores)
        if self._rows is None:
            self._rows = self._start(scores)
        else:
            self._rows.append(score.to_record() for score in scores)
        self._ids += [score.id for score in scores]

    def finish(self, scores: Sequence[Score]) -> None:
        """Ends a complete run: `scores` are its records in input order; earlier ones of other prompts follow them."""
        ids = {score.id for score in scores}
        ordered = [*scores, *(score for score in self.earlier if score.id not in ids)]
        if self.path.suffix != STREAMED:
            write_records(ordered, self.path)
            self.journal.unlink(missing_ok=True)
            return
        rows = self._rows or self._start(())
        if self._ids != [score.id for score in ordered]:
            rows.replace(score.to_record() for score in ordered)
        rows.sync()

    def _start(self, scores: Iterable[Score]) -> RowFile:
        """The stream with its first new records. One that is overwritten stays as it was until they are on disk."""
        if self._resume and self.journal.exists():
            rows = RowFile(self.journal, resume=True)
            rows.append(score.to_record() for score in scores)
            return rows
        write_bytes(self.journal, to_lines(score.to_record() for score in [*self.earlier, *scores]))
        return RowFile(self.journal, resume=True)

    def _count(self) -> int:
        return count_rows(self.journal) if self.journal.exists() else len(self.earlier)

    def _read(self, rows: Iterable[Mapping[str, Any]]) -> Iterable[Score]:
        for number, row in enumerate(rows, start=1):
            if row.get("version") != RECORD_VERSION:
                raise differs("version of the records", row.get("version"), RECORD_VERSION, str(self.path))
            try:
                yield Score.from_record(row)
            except RecordError as error:
                raise RecordError(f"Record {number} of {str(self.path)!r}: {error}") from None


def read_earlier(path: Path) -> Iterable[Mapping[str, Any]]:
    """The records of an earlier run as they are on disk: in its journal, or in the complete file; none if it is new."""
    journal = journal_of(path)
    if journal.exists():
        return read_rows(journal, torn=True)
    if not path.exists():
        return ()
    if path.suffix == ".csv":
        raise RecordError(
            f"--resume must have records to continue. {str(path)!r} is complete, and its flat columns cannot be read "
            "back: use --overwrite, or another --out."
        )
    return map(from_row, parquet_rows(path))


@dataclass(frozen=True)
class Run:
    """What decides the numbers of `eics score`; `calibration` is its SHA-256, `further` what else records were asked
    to hold."""

    model: Model
    circuit: Circuit
    configurations: tuple[Options, ...]
    answer: int | None = None
    tokens: Sequence[int] | None = None
    calibration: str | None = None
    interventions: Sequence[Intervention] = ()
    further: Mapping[str, Any] = field(default_factory=dict)

    def check(self, file: RecordFile, prompts: Sequence[Prompt]) -> None:
        """Refuses to continue records of another run, and names what differs."""
        source = str(file.path)
        by_id = {prompt.id: prompt for prompt in prompts}
        grouped = by_prompt(file.earlier)
        for id, scores in grouped.items():
            self._check_count(id, scores, source, last=id == next(reversed(grouped)))
            for score, options in zip(scores, self.configurations, strict=False):
                check_same(*self._compared(score, options), source)
                if id in by_id:
                    _check_prompt(score, by_id[id], self.model, source)

    def _check_count(self, id: Id, scores: Sequence[Score], source: str, *, last: bool) -> None:
        """One record for each configuration; the last prompt may have been interrupted between two."""
        count = len(self.configurations)
        if len(scores) > count or (len(scores) < count and not last):
            raise differs("number of presets", len(scores), count, f"{source}, prompt {id}")

    def _compared(self, score: Score, options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
        """Theirs and ours."""
        ours = self.requested(options)
        theirs = dict(score.options)
        if not theirs:  # from a program that keeps no options: what records always repeat must do
            ours = {name: options[name] for name in RECORDED if getattr(score, name) is not None}
            theirs = {name: getattr(score, name) for name in ours}
        optional = ("calibration", "interventions", "details", "against_random")
        absent = dict.fromkeys(name for name in optional if name in theirs)
        identity = {
            "model": self.model.name,
            "circuit": self.circuit.label(),
            "fingerprint": fingerprint_of(self.model),
        }
        recorded = {"model": score.model, "circuit": score.circuit, "fingerprint": score.fingerprint}
        return theirs | recorded, absent | ours | identity

    def requested(self, options: Options) -> dict[str, Any]:
        """What the records of this run hold as their `options`."""
        asked = requested(self.model, options, self.answer, self.tokens, self.interventions, **self.further)
        return asked | ({"calibration": self.calibration} if self.calibration is not None else {})

    def with_known_alpha(self, earlier: Sequence[Score]) -> "Run":
        """The same run with the alpha that `auto` chose before it was interrupted."""
        return replace(
            self,
            configurations=tuple(
                options if (known := _chosen(earlier, index)) is None or options.alpha != "auto"
                else options.with_(alpha=known.alpha)
                for index, options in enumerate(self.configurations)
            ),
        )  # fmt: skip

    def as_requested(self, scores: Iterable[Score], earlier: Sequence[Score]) -> Scores:
        """New records with what the earlier ones say about an alpha that `auto` chose."""
        return Scores(
            _with_chosen(score, _chosen(earlier, index)) if options.alpha == "auto" else score
            for index, (score, options) in enumerate(zip(scores, self.configurations, strict=True))
        )


def by_prompt(scores: Iterable[Score]) -> dict[Id, list[Score]]:
    """Records by prompt, in the order of the file."""
    grouped: dict[Id, list[Score]] = {}
    for score in scores:
        grouped.setdefault(score.id, []).append(score)
    return grouped


def _check_prompt(score: Score, prompt: Prompt, model: Model, source: str) -> None:
    """Refuses a prompt that was another one, or had other tokens, another answer or label, when its record was made."""
    what = f"prompt {prompt.id!r}"
    recorded = prompt.metadata  # as a record spells it: no file can hold a lone surrogate
    if score.prompt != recorded["prompt"]:
        raise differs(f"text of {what}", score.prompt, recorded["prompt"], source)
    tokens = tokens_or_none(model, prompt)  # of a text: its tokenizer may have changed
    if None not in (tokens, score.token_ids) and score.token_ids != tokens:
        raise differs(f"tokens of {what}", score.token_ids, tokens, source)
    for name in ("answer", "label"):
        theirs, ours = getattr(score, name), recorded[name]
        if theirs != ours:
            raise differs(f"{name} of {what}", theirs, ours, source)


def _chosen(earlier: Sequence[Score], index: int) -> Score | None:
    """The first earlier record of a configuration that has an alpha."""
    of_configuration = (scores[index] for scores in by_prompt(earlier).values() if index < len(scores))
    return next((score for score in of_configuration if score.alpha is not None), None)


def _with_chosen(score: Score, known: Score | None) -> Score:
    if known is None:
        return score
    options = score.options | {"alpha": "auto"}
    entry = known.diagnostics.get("alpha_calibration")
    if entry is None or score.failed:
        return replace(score, options=options)
    return replace(score, options=options, diagnostics=score.diagnostics | {"alpha_calibration": entry})
