"""What a run with `--details` keeps of a prompt: shares by token position, attention patterns, top tokens of a write,
and what judged nodes wrote against what was expected of them.

Records come from anywhere, so `clean` keeps what has the agreed shape; `packed` is what the page stores of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eics.reporting.page.packing import halves, short, shorts

_TOP_TOKENS = 10  # of a node, as many as the page lists
_PARENTS = 12  # of a node, likewise
_WRITES = ("wrote", "expected", "difference")


def finite(value: Any) -> float | None:
    """The value as a float if it is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def all_finite(values: Any) -> list[float]:
    """The numbers, or an empty list if one of them is not a finite number."""
    numbers = [finite(value) for value in values] if isinstance(values, list) else []
    return [] if None in numbers else [number for number in numbers if number is not None]


def clean(details: Any) -> dict[str, Any] | None:
    """The parts of `details` that have the agreed shape; None if nothing has.

    >>> clean({"positions": {"m0": [0.1, 0.2], "m1": "many"}, "patterns": [], "colour": 1})
    {'positions': {'m0': [0.1, 0.2]}}
    """
    given = details if isinstance(details, Mapping) else {}
    parts = {
        name: {str(node): kept for node, value in given[name].items() if (kept := read(value))}
        for name, read in _READERS.items()
        if isinstance(given.get(name), Mapping)
    }
    return {name: nodes for name, nodes in parts.items() if nodes} or None


def _pattern(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("rows"), list):
        return None
    queries, rows = value.get("queries"), [all_finite(row) for row in value["rows"]]
    if not isinstance(queries, list) or not rows or len(queries) != len(rows) or not all(rows):
        return None
    return {"queries": queries, "rows": rows} if all(_is_position(query) for query in queries) else None


def _is_position(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _top_tokens(value: Any) -> list[dict[str, Any]]:
    entries = [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    logits = [(token_of(entry), finite(entry.get("logit"))) for entry in entries]
    return [{"token": token, "logit": logit} for token, logit in logits if logit is not None]


def _expected(value: Any) -> dict[str, Any] | None:
    """Top tokens of two writes and of their difference, and signed shares; nothing that is not finite."""
    if not isinstance(value, Mapping):
        return None
    tops = {name: tokens for name in _WRITES if (tokens := _top_tokens(value.get(name)))}
    parents = value.get("parents")
    listed = [(str(node), finite(share)) for node, share in parents.items()] if isinstance(parents, Mapping) else []
    shares = {name: finite(value.get(name)) for name in ("other_parents", "rest", "off_circuit")}
    return tops | {"parents": {node: share for node, share in listed if share is not None}} | shares if tops else None


_READERS: dict[str, Callable[[Any], Any]] = {
    "positions": all_finite,
    "patterns": _pattern,
    "top_tokens": _top_tokens,
    "expected": _expected,
}
PARTS = tuple(_READERS)


def token_of(entry: Mapping[str, Any]) -> str:
    """The token of an entry as text, or its id if the model has no tokenizer.

    >>> token_of({"token": " Paris", "id": 7}), token_of({"token": None, "id": 7})
    (' Paris', 'id 7')
    """
    token = entry.get("token")
    return str(token) if token is not None else f"id {entry.get('id', '?')}"


def packed(details: Any) -> dict[str, Any] | None:
    """The details as the page stores them; the zeros after a query's own position are left out of its row."""
    parts = clean(details)
    if parts is None:
        return None
    patterns = {head: _packed_pattern(**pattern) for head, pattern in parts.get("patterns", {}).items()}
    tops = {node: _packed_tokens(entries) for node, entries in parts.get("top_tokens", {}).items()}
    positions = {node: halves(shares) for node, shares in parts.get("positions", {}).items()}
    expected = {node: _packed_expected(entry) for node, entry in parts.get("expected", {}).items()}
    whole = {"positions": positions, "patterns": patterns, "tops": tops}
    return whole | ({"expected": expected} if expected else {})


def _packed_tokens(entries: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    return [[entry["token"], short(entry["logit"], 4)] for entry in entries[:_TOP_TOKENS]]


def _packed_expected(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Top tokens, and shares in the order in which the page lists them: parents, other parents, expected, off circuit.

    Parents beyond the largest count with the others.
    """
    ranked = sorted(entry["parents"].items(), key=lambda pair: -abs(pair[1]))
    left, rest, off_circuit = sum(share for _, share in ranked[_PARENTS:]), entry["rest"], entry["off_circuit"]
    others = None if entry["other_parents"] is None and not left else (entry["other_parents"] or 0.0) + left
    itself = None if rest is None or off_circuit is None else rest - off_circuit
    return {
        "tops": [_packed_tokens(entry.get(name, ())) for name in _WRITES],
        "parents": [[node, short(share, 4)] for node, share in ranked[:_PARENTS]],
        "shares": shorts((others, itself, off_circuit), 4),
    }


def _packed_pattern(queries: list[int], rows: list[list[float]]) -> dict[str, Any]:
    kept = [row[: query + 1] if not any(row[query + 1 :]) else row for query, row in zip(queries, rows, strict=True)]
    return {
        "queries": queries,
        "keys": max(map(len, rows)),
        "lengths": [len(row) for row in kept],
        "weights": halves(weight for row in kept for weight in row),
    }
