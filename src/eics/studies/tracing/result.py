"""What tracing a text gives: z for each node and position, the suspects, and how unusual the text is as a whole."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from eics.errors import RecordError, printable
from eics.scoring.numbers import number
from eics.studies.tracing.words import sentence

FORMAT, VERSION = "eics-trace", 1
DIGITS = 4
"""Decimals of a z: more would be rounding, and a long text has thousands of them."""


@dataclass(frozen=True)
class Header:
    """What all texts of a run share.

    Attributes:
        model, fingerprint, circuit, edges: what was traced. calibration: its SHA-256.
        level, threshold: a node at a token is a suspect from this z on; None if no z is enough at this level.
        nodes: those with parents, in the order of the circuit; r2: how much of each one's write is explained.
        reasons: of nodes that cannot be judged.
        options: everything else that decides a number.
    """

    model: str | None
    fingerprint: str
    circuit: dict[str, str]
    edges: tuple[str, ...]
    level: float
    calibration: str
    nodes: tuple[str, ...]
    r2: tuple[float, ...]
    threshold: float | None
    reasons: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """The first line of a file of traces."""
        from eics import __version__

        lists = {"edges": list(self.edges), "nodes": list(self.nodes), "r2": list(self.r2)}
        return {"format": FORMAT, "version": VERSION, "eics": __version__} | vars(self) | lists


@dataclass(frozen=True)
class Suspect:
    """A node that wrote something unusual at a token."""

    node: str
    position: int
    token: str
    z: float


@dataclass(frozen=True)
class Position:
    """One token of a text.

    Attributes:
        position, token, token_id: where it stands and what it is. generated: whether the model wrote it.
        z: of each node; None where it is not judged.
        largest, node: the largest z, and whose it is; None for the first token.
        suspects: the nodes whose z reaches the threshold, most unusual first.
    """

    position: int
    token: str
    token_id: int
    generated: bool
    z: dict[str, float | None]
    largest: float | None
    node: str | None
    suspects: tuple[str, ...]

    def __repr__(self) -> str:
        odd = "nothing judged" if self.largest is None else f"{self.node}: z={number(self.largest)}"
        mark = ", suspects " + ", ".join(self.suspects) if self.suspects else ""
        return printable(f"Position({self.position} {self.token!r}, {odd}{mark})")


@dataclass(frozen=True, repr=False, eq=False)
class Trace(Sequence[Position]):
    """A text, one `Position` for each token; a text that cannot be traced has none and says why.

    Attributes:
        header: what the texts of a run share.
        id, text: the prompt, and what the model wrote after it.
        token_ids, tokens: its tokens. generated: the index of the first one that the model wrote, or None.
        table: z, (nodes, tokens), nan where a node is not judged.
        p_value: the share of usual texts whose largest z is as large.
        notes: what a reader should know. reason: why it failed, or None.
    """

    header: Header
    id: str | int
    text: str | None
    token_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    generated: int | None = None
    table: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    p_value: float | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the text could not be traced."""
        return self.reason is not None

    @property
    def status(self) -> str:
        """`ok` or `failed`."""
        return "failed" if self.failed else "ok"

    @cached_property
    def suspects(self) -> tuple[Suspect, ...]:
        """Nodes at tokens whose z reaches the threshold, most unusual first."""
        threshold = self.header.threshold
        if threshold is None or self.failed:
            return ()
        found = np.argwhere(np.nan_to_num(self.table, nan=-np.inf) >= round(threshold, DIGITS))
        listed = [self._at(int(node), int(place)) for node, place in found]
        return tuple(sorted(listed, key=lambda suspect: (-suspect.z, suspect.position)))

    @cached_property
    def most_unusual(self) -> Suspect | None:
        """The node and token of the largest z, suspect or not."""
        if self.failed or np.isnan(self.table).all():
            return None
        node, place = divmod(int(np.nanargmax(self.table)), self.table.shape[1])
        return self._at(node, place)

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        return sentence(self)

    def _at(self, node: int, place: int) -> Suspect:
        return Suspect(self.header.nodes[node], place, self.tokens[place], float(self.table[node, place]))

    def __len__(self) -> int:
        return 0 if self.failed else len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> list[Position]: ...
    def __getitem__(self, index: int | slice) -> Position | list[Position]:
        places = range(len(self))[index]
        return [self._position(place) for place in places] if isinstance(places, range) else self._position(places)

    def _position(self, place: int) -> Position:
        z = {node: _or_none(value) for node, value in zip(self.header.nodes, self.table[:, place], strict=True)}
        return Position(
            place,
            self.tokens[place],
            self.token_ids[place],
            self.generated is not None and place >= self.generated,
            z,
            self.largest[place],
            self.at[place],
            tuple(suspect.node for suspect in self.suspects if suspect.position == place),
        )

    @cached_property
    def largest(self) -> list[float | None]:
        """The largest z at each token."""
        return [_or_none(column[~np.isnan(column)].max(initial=-np.inf)) for column in self.table.T]

    @cached_property
    def at(self) -> list[str | None]:
        """The node with the largest z at each token."""
        return [
            None if np.isnan(column).all() else self.header.nodes[int(np.nanargmax(column))] for column in self.table.T
        ]

    def to_record(self) -> dict[str, Any]:
        """The text's line in a file of traces: JSON types only, numbers finite or null."""
        return {
            "id": self.id,
            "text": self.text,
            "tokens": list(self.tokens),
            "token_ids": list(self.token_ids),
            "generated": self.generated,
            "status": self.status,
            "reason": self.reason,
            "z": [[_or_none(value) for value in row] for row in self.table],
            "largest": self.largest,
            "at": self.at,
            "p_value": self.p_value,
            "suspects": [vars(suspect) for suspect in self.suspects],
            "sentence": self.sentence,
            "notes": list(self.notes),
        }

    @classmethod
    def from_record(cls, header: Header, record: Mapping[str, Any]) -> "Trace":
        """A text from its line; a damaged one is refused."""
        try:
            rows = [[math.nan if value is None else float(value) for value in row] for row in record["z"]]
            table = np.array(rows, dtype=float) if rows else np.zeros((0, 0))
            failed = record["status"] == "failed"
            if not failed and table.shape != (len(header.nodes), len(record["token_ids"])):
                raise ValueError(f"'z' of shape {table.shape}")
            return cls(
                header,
                record["id"],
                record["text"],
                tuple(map(int, record["token_ids"])),
                tuple(map(str, record["tokens"])),
                record["generated"],
                table,
                record["p_value"],
                tuple(record.get("notes", ())),
                str(record["reason"]) if failed else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(
                f"The trace of text {record.get('id')!r} must be as it was written. Could not read {error}."
            ) from None

    def __repr__(self) -> str:
        if self.failed:
            return printable(f"Trace({self.id}, failed: {self.reason})")
        odd = self.most_unusual
        where = (
            "" if odd is None else f", largest z {number(odd.z)} of {odd.node} at token {odd.position} ({odd.token!r})"
        )
        count = f"{len(self.suspects)} suspect{'s' * (len(self.suspects) != 1)}"
        return printable(f"Trace({self.id}, {len(self)} tokens: p={number(self.p_value)}, {count}{where})")

    def _repr_html_(self) -> str:
        from eics.studies.tracing.html import trace_html

        return trace_html(self)


class Traces(list[Trace]):
    """The traces of several texts, in input order."""

    @property
    def header(self) -> Header:
        """What they share."""
        return self[0].header

    def to_records(self) -> Iterator[dict[str, Any]]:
        """The lines of a file of traces, its header first."""
        yield self.header.to_record()
        yield from (trace.to_record() for trace in self)

    def __repr__(self) -> str:
        failed = sum(trace.failed for trace in self)
        alarms = sum(bool(trace.suspects) for trace in self)
        return f"Traces({len(self)} texts: {alarms} with suspects, {failed} failed)"

    def _repr_html_(self) -> str:
        return "".join(trace._repr_html_() for trace in self)


def rounded(z: Iterable[Any]) -> NDArray[np.float64]:
    """z as traces hold them."""
    return np.round(np.asarray(z, dtype=float), DIGITS) + 0.0  # no negative zero


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
