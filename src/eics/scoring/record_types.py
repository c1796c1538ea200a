"""What each field of a record may hold. Files come from anywhere; all that is computed from records relies on this.

>>> field_problem("eics", "high")
"must be a finite number. Got 'high'"
>>> field_problem("eics", 0.5) is None
True
"""

import sys
from collections.abc import Callable
from reprlib import Repr
from typing import Any

Check = Callable[[Any], bool]

_DEPTH = 32  # levels of free-shape fields; ours have 4
_INT64 = 2**63
_short = Repr()
_short.maxstring = _short.maxother = 60


def field_problem(name: str, value: Any) -> str | None:
    """What is wrong with the value of a field, as the rest of a sentence; None if nothing is.

    None is a value of every field but `id` and `status`; a field that is not listed may hold anything.
    """
    if name not in _FIELDS or (value is None and name != "id"):
        return None
    must, is_right = _FIELDS[name]
    return None if is_right(value) else f"must be {must}. Got {_short.repr(value)}"


def is_number(value: Any) -> bool:
    """Whether this is a finite number that fits into 64 bits."""
    return _is_whole(value) or (isinstance(value, float) and abs(value) <= sys.float_info.max)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_plain(value: Any, depth: int = _DEPTH) -> bool:
    """Whether JSON can hold it, not nested endlessly."""
    if value is None or isinstance(value, str | bool):
        return True
    if isinstance(value, int | float):
        return is_number(value)
    if depth == 0:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part, depth - 1) for key, part in value.items())
    return isinstance(value, list | tuple) and all(_is_plain(part, depth - 1) for part in value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list | tuple) and all(map(check, value))


def _map_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(_is_text, value)) and all(map(check, value.values()))


def _object(needed: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    """An object with these fields; others are free."""

    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value and is_right(value[name]) for name, is_right in needed.items())
            and all(value.get(name) is None or is_right(value[name]) for name, is_right in (optional or {}).items())
            and _is_plain(value)
        )

    return check


def _curve(value: Any) -> bool:
    columns = _map_of(_list_of(is_number))(value)
    return columns and len(value.get("alpha", ())) == len(value.get("dei", ()))


def _terms(names: tuple[str, ...], optional: dict[str, Check]) -> Check:
    """Terms of C_sh, each with its names, a residual and a share; each named once."""
    term = _object({**dict.fromkeys(names, _is_text), "residual": is_number, "share": is_number}, optional)

    def check(value: Any) -> bool:
        if not _list_of(term)(value):
            return False
        return len({tuple(part.get(key) for key in (*names, "port")) for part in value}) == len(value)

    return check


_RANDOM = _object({"circuits": _is_whole})
_AMONG_RANDOM = _object(dict.fromkeys(("low", "median", "high", "rank"), is_number))


def _against_random(value: Any) -> bool:
    return _RANDOM(value) and all(_AMONG_RANDOM(part) for name, part in value.items() if name != "circuits")


_NUMBER = ("a finite number", is_number)
_TEXT = ("text", _is_text)
_WHOLE = ("a whole number of 64 bits", _is_whole)
_NUMBERS = ("an object of finite numbers", _map_of(is_number))
_PLAIN = ("an object of JSON values", _object({}))
_FIELDS: dict[str, tuple[str, Check]] = {
    "id": ("text or a whole number", lambda value: _is_text(value) or _is_whole(value)),
    "label": ("text, a finite number, true or false", lambda v: isinstance(v, str | bool) or is_number(v)),
    "circuit": ("an object with 'name' and 'sha256'", _object({"name": _is_text, "sha256": _is_text})),
    **dict.fromkeys(
        (
            "eics",
            "c_sh",
            "consistency",
            "dei",
            "dei_norm",
            "ei_macro",
            "emergence_ratio",
            "percentile",
            "alpha",
            "c_ref",
            "p_value",
            "p_value_mean",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        ("model", "fingerprint", "mode", "linearization", "residual", "parts", "metric", "emergence"), _TEXT
    ),
    **dict.fromkeys(("positions", "readout", "dtype", "prompt", "answer", "reason"), _TEXT),
    **dict.fromkeys(("ei_parts", "norms", "stderr"), _NUMBERS),
    **dict.fromkeys(("seed", "forward_passes"), _WHOLE),
    **dict.fromkeys(("options", "details"), _PLAIN),
    "diagnostics": (
        "an object of JSON values, with a number as 'length' and our summary as 'against_random'",
        _object({}, {"length": is_number, "against_random": _against_random}),
    ),
    "edges": (
        "a list of edges, each once, which must have their fields (source, target, residual, share)",
        _terms(("source", "target"), {"port": _is_text, "cosine": is_number, "attribution": is_number}),
    ),
    "nodes": (
        "a list of nodes, each once, with node, residual and share",
        _terms(("node",), {"z": is_number, "p": is_number, "r2": is_number, "reason": _is_text}),
    ),
    "node_positions": ("an object of lists of whole numbers", _map_of(_list_of(_is_whole))),
    "curve": ("an object of lists of finite numbers, as many dei as alpha", _curve),
    "tokens": ("a list of texts", _list_of(_is_text)),
    "suspects": ("a list of names of nodes", _list_of(_is_text)),
    "token_ids": ("a list of whole numbers", _list_of(_is_whole)),
    "interventions": ("a list of objects", _list_of(_object({}))),
    "predictions": (
        "a list of objects with token, id and probability",
        _list_of(_object({"probability": is_number}, {"token": _is_text, "id": _is_whole})),
    ),
    "warnings": ("a list of objects with code and text", _list_of(_object({"code": _is_text, "text": _is_text}))),
}
