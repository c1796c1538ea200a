"""Values that every JSON parser accepts."""

from math import isfinite
from typing import Any


def json_safe(value: Any) -> Any:
    """The value with null for NaN and infinities, which Python writes but JSON does not allow."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: json_safe(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(part) for part in value]
    return value


def scalars(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that fit into a cell: text, numbers, true and false."""
    return {key: value for key, value in attributes.items() if isinstance(value, str | int | float | bool)}
