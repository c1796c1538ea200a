"""What a run with `--details` keeps of a prompt: shares by token position, attention patterns, top tokens of a write.

Records come from anywhere, so `clean` keeps what has the agreed shape; `packed` is what the page stores of it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from eics.reporting.page.packing import halves, short

PARTS = ("positions", "patterns", "top_tokens")
_TOP_TOKENS = 10  # of a node, as many as the page lists


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
    readers: dict[str, Callable[[Any], Any]] = dict(zip(PARTS, (all_finite, _pattern, _top_tokens), strict=True))
    given = details if isinstance(details, Mapping) else {}
    parts = {
        name: {str(node): kept for node, value in given[name].items() if (kept := read(value))}
        for name, read in readers.items()
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
    tops = {
        node: [[entry["token"], short(entry["logit"], 4)] for entry in entries[:_TOP_TOKENS]]
        for node, entries in parts.get("top_tokens", {}).items()
    }
    positions = {node: halves(shares) for node, shares in parts.get("positions", {}).items()}
    return {"positions": positions, "patterns": patterns, "tops": tops}


def _packed_pattern(queries: list[int], rows: list[list[float]]) -> dict[str, Any]:
    kept = [row[: query + 1] if not any(row[query + 1 :]) else row for query, row in zip(queries, rows, strict=True)]
    return {
        "queries": queries,
        "keys": max(map(len, rows)),
        "lengths": [len(row) for row in kept],
        "weights": halves(weight for row in kept for weight in row),
    }
