"""The result of scoring one prompt, and its record: plain numbers and names, no tensors.

`Score` is one result, `Scores` a list of them; `records.py` writes and reads them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, SupportsIndex, overload

from eics.errors import RecordError, printable
from eics.scoring.batch_sentences import batch_sentences, median_text
from eics.scoring.numbers import number, percent, with_error
from eics.scoring.record_types import field_problem

RECORD_VERSION = 2
READABLE_VERSIONS = (1, 2)
STATUSES = ("ok", "clipped", "failed")
_ROUNDING = 1e-12


@dataclass(frozen=True)
class EdgeTerm:
    """The squared residual of an edge in the chosen metric, and its share of the total over all edges.

    `cosine` is the cosine of `rho a_u` and `a_v` over all positions, None if one of them is zero; `attribution` is the
    edge's score in the circuit file. Both are None in records older than these fields.
    """

    source: str
    target: str
    port: str | None
    residual: float
    share: float
    cosine: float | None = None
    attribution: float | None = None

    def __str__(self) -> str:
        return f"{self.source}->{self.target}" + (f"<{self.port}>" if self.port else "")


@dataclass(frozen=True)
class NodeTerm:
    """The squared residual of a node and its share of C_sh, if the residual is taken by node.

    Under `calibrated` the residual is D_v^2, `z` and `p` say how unusual the write is given what the circuit gave the
    node, and `r2` how much of it the learned map explains on the reference set; a node that cannot be judged has a
    `reason` instead of z and p.
    """

    node: str
    residual: float
    share: float
    z: float | None = None
    p: float | None = None
    r2: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        return self.node


class EdgeTerms(Sequence[EdgeTerm]):
    """The terms of all edges, largest share first, built from columns of numbers on first access.

    A large batch on a large circuit has tens of thousands of terms, few of which are ever read.
    """

    def __init__(
        self,
        edges: Sequence[tuple[str, str, str | None]],
        residual: Sequence[float],
        share: Sequence[float],
        cosine: Sequence[float | None],
        attribution: Sequence[float | None],
    ) -> None:
        self._columns = (edges, residual, share, cosine, attribution)

    @cached_property
    def _terms(self) -> tuple[EdgeTerm, ...]:
        rows = zip(*self._columns, strict=True)
        terms = [EdgeTerm(*edge, r, s, _finite(c), a) for edge, r, s, c, a in rows]
        return tuple(sorted(terms, key=lambda term: term.share, reverse=True))

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[EdgeTerm]:
        return iter(self._terms)

    @overload
    def __getitem__(self, index: int) -> EdgeTerm: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[EdgeTerm, ...]: ...
    def __getitem__(self, index: int | slice) -> EdgeTerm | tuple[EdgeTerm, ...]:
        return self._terms[index]

    def __eq__(self, other: object) -> bool:
        return self._terms == tuple(other) if isinstance(other, EdgeTerms | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._terms)

    def __repr__(self) -> str:
        largest = f", largest share: {self[0]} {percent(self[0].share)}" if self else ""
        return f"EdgeTerms({len(self)}{largest})"


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


@dataclass(frozen=True, repr=False)
class Score:
    """EICS of one prompt with everything it is made of. Field names are those of the record.

    If the prompt failed, its numbers are None; so is, of one that was scored, what was not asked for.

    `edges` (most inconsistent first) has the residuals of single edges
    whatever `residual` is; `nodes` has the terms of C_sh if it is taken by node (`joint`, `propagated`). `model` is the
    name under which it was loaded, None for an explicit circuit; `circuit` has its `name` and the `sha256` of its edges
    and positions. `norms` holds `||a_v||` of every node, `node_positions` the token positions to which the circuit
    restricts nodes, `tokens` the prompt's tokens as text; `answer` and `label` come from the prompts file.
    `interventions` lists the interventions in this pass, with the norms of the write and of the change. `options` has
    everything that was asked for and decides a number: every option of `eics.Options`, the dtype of the weights, the
    answer position, the tokens of the read-out, the SHA-256 of the calibration. `fingerprint`
    is the model's (its weights, not its name); `token_ids` are the ids behind `tokens`. `predictions` holds the five
    likeliest next tokens, each with `token`, `id` and `probability`; `warnings` what a reader should know before
    trusting the numbers, each with a `code` and a `text`. `details` is there if it was requested: shares by token
    position, attention patterns, and the top tokens of each write through the unembedding.

    Under `residual="calibrated"`, `c_ref` (also in `c_sh`) is 1 on a usual prompt; `p_value` is small if some node
    wrote something unusual for what it was given, `p_value_mean` if the nodes together work differently; `suspects` are
    the nodes to look at, most unusual first. With `terms="sheaf"`, the numbers of the EI term are None.

    Version 1 had none of the last five, and called `fast` what is `limit` now.
    """

    id: str | int
    status: str
    model: str | None = None
    fingerprint: str | None = None
    circuit: dict[str, str] | None = None
    eics: float | None = None
    c_sh: float | None = None
    consistency: float | None = None
    dei: float | None = None
    dei_norm: float | None = None
    ei_macro: float | None = None
    emergence_ratio: float | None = None
    percentile: float | None = None
    c_ref: float | None = None
    p_value: float | None = None
    p_value_mean: float | None = None
    suspects: list[str] | None = None
    ei_parts: dict[str, float] = field(default_factory=dict)
    edges: Sequence[EdgeTerm] = ()
    nodes: tuple[NodeTerm, ...] = ()
    norms: dict[str, float] = field(default_factory=dict)
    node_positions: dict[str, list[int]] = field(default_factory=dict)
    alpha: float | None = None
    mode: str | None = None
    linearization: str | None = None
    residual: str | None = None
    parts: str | None = None
    metric: str | None = None
    emergence: str | None = None
    positions: str | None = None
    readout: str | None = None
    dtype: str | None = None
    seed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stderr: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    interventions: list[dict[str, Any]] = field(default_factory=list)
    curve: dict[str, list[float]] | None = None
    forward_passes: int | None = None
    prompt: str | None = None
    tokens: list[str] | None = None
    token_ids: list[int] | None = None
    predictions: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, str]] = field(default_factory=list)
    details: dict[str, Any] | None = None
    answer: str | None = None
    label: str | int | float | bool | None = None
    reason: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the prompt could not be scored. A number that is None says only that it was not computed."""
        return self.status == "failed"

    @property
    def is_consistent(self) -> bool:
        """Whether C_sh is zero up to rounding: shares are then rounding errors, and mean nothing."""
        return self.c_sh is not None and self.c_sh < _ROUNDING

    def to_record(self) -> dict[str, Any]:
        """The record: JSON types only, `version` first."""
        record = asdict(replace(self, edges=(), nodes=()))
        record["edges"] = [asdict(edge) for edge in self.edges]
        record["nodes"] = [asdict(node) for node in self.nodes]
        return {"version": RECORD_VERSION, **record}

    @classmethod
    def from_record(cls, record: Any) -> "Score":
        """Reads a record; unknown fields are dropped, a missing `id` or `status` raises an error."""
        if not isinstance(record, dict):
            raise RecordError(f"A record must be a JSON object. Got {type(record).__name__}.")
        version = record.get("version")
        if version not in READABLE_VERSIONS:
            raise RecordError(f"A record must have version {RECORD_VERSION} or lower. Got {version!r}: update eics.")
        missing = [name for name in ("id", "status") if name not in record]
        if missing:
            raise RecordError(f"A record must have the field {missing[0]!r}. It has {', '.join(map(str, record))}.")
        if record["status"] not in STATUSES:
            raise RecordError(f"A record's status must be one of {', '.join(STATUSES)}. Got {record['status']!r}.")
        values = _known_fields(cls, record)
        for name, value in values.items():
            if problem := cls.field_problem(name, value):
                raise RecordError(f"A record's {name} {problem}.")
        values = {name: value for name, value in values.items() if value is not None}
        if version == 1 and values.get("mode") == "fast":
            values["mode"] = "limit"  # what `fast` was until version 2
        edges, nodes = (values.pop(name, ()) for name in ("edges", "nodes"))
        return cls(
            **values,
            edges=tuple(EdgeTerm(**{"port": None} | _known_fields(EdgeTerm, edge)) for edge in edges),
            nodes=tuple(NodeTerm(**_known_fields(NodeTerm, node)) for node in nodes),
        )

    @staticmethod
    def field_problem(name: str, value: Any) -> str | None:
        """What is wrong with the value of a field in a record, as the rest of a sentence; None if nothing is."""
        return field_problem(name, value)

    def error_of(self, name: str) -> float | None:
        """The standard error to show beside a number; None of one clipped to 0, whose error is that of dEI."""
        clipped = self.status == "clipped" and name in ("eics", "dei_norm")
        return None if clipped else self.stderr.get(name)

    def __repr__(self) -> str:
        if self.failed:
            return f"Score({self.id!r}, failed: {printable(self.reason)})"
        numbers = {
            "eics": with_error(self.eics, self.error_of("eics")),
            "c_sh": number(self.c_sh),
            "dei_norm": number(self.dei_norm),
            "dei": f"{number(self.dei)} nats",
            "alpha": number(self.alpha, trim=True),
        }
        known = ", ".join(f"{name}={shown}" for name, shown in numbers.items() if getattr(self, name) is not None)
        return f"Score({self.id!r}, {self.status}: {known or 'no numbers'})"

    def _repr_html_(self) -> str:
        """A small card for notebooks, with all text escaped."""
        from eics.reporting.notebook import score_html

        return score_html(self)

    def to_pandas(self) -> Any:
        """The edges as a data frame, most inconsistent first."""
        from eics.reporting.notebook import edges_frame

        return edges_frame(self)

    def plot(self, what: str = "circuit") -> Any:
        """A matplotlib figure: `circuit`, `edges` or `nodes` (the worst, as bars), or `curve` (dEI over alpha)."""
        from eics.reporting.plots import plot_score

        return plot_score(self, what)


def _known_fields(kind: type[Score | EdgeTerm | NodeTerm], record: Any) -> dict[str, Any]:
    """The fields that this version knows; later versions may write more."""
    return {f.name: record[f.name] for f in fields(kind) if f.name in record}


def failed(id: str | int, reason: str, **fields: Any) -> Score:
    """The result of a prompt that could not be scored."""
    return Score(id=id, status="failed", reason=reason, **fields)


def with_provenance(scores: Iterable[Score], circuit: dict[str, str], model: str | None = None) -> "Scores":
    """The same results with the circuit and the model they come from."""
    return Scores(replace(score, model=model, circuit=circuit) for score in scores)


class Scores(list[Score]):
    """A list of results with a summary of the batch and plots; slices and sums of it are such lists too."""

    def summary(self) -> list[str]:
        """Sentences on the batch: how many failed, how many were clipped, and how the score depends on length."""
        return list(batch_sentences(self))

    @overload
    def __getitem__(self, index: SupportsIndex) -> Score: ...
    @overload
    def __getitem__(self, index: slice) -> "Scores": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Score | Scores":
        return Scores(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __add__(self, others: list[Score]) -> "Scores":  # type: ignore[override]
        return Scores([*self, *others]) if isinstance(others, list) else NotImplemented

    def copy(self) -> "Scores":
        """The same results in a new list."""
        return Scores(self)

    def __repr__(self) -> str:
        counts = Counter(score.status for score in self)
        statuses = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        return f"Scores({len(self)}: {statuses}{median_text(self)})" if self else "Scores(none)"

    def _repr_html_(self) -> str:
        from eics.reporting.notebook import scores_html

        return scores_html(self)

    def to_pandas(self) -> Any:
        """A data frame with one row for each prompt: all fields that are a single number or text."""
        from eics.reporting.notebook import scores_frame

        return scores_frame(self)

    def plot(self) -> Any:
        """A matplotlib figure of the distributions, by label if the prompts have labels."""
        from eics.reporting.plots import distributions

        return distributions(self)
