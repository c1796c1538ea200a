"""Values that every JSON parser takes."""

from math import isfinite
from typing import Any


def json_safe(value: Any) -> Any:
    """The same with null for NaN and infinities, which Python writes and JSON does not know."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: json_safe(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(part) for part in value]
    return value


def scalars(said: dict[str, Any]) -> dict[str, Any]:
    """The attributes that fit a cell: text, numbers, true and false."""
    return {key: value for key, value in said.items() if isinstance(value, str | int | float | bool)}
