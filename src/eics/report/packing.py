"""Numbers in little room: lists of floats as base64 text, and floats with as many digits as anyone reads."""

import math
import struct
from base64 import b64encode
from collections.abc import Iterable, Sequence

_HALF = 65504.0  # the largest half-precision number


def halves(values: Iterable[float | None]) -> str:
    """Half precision, three digits. None becomes nan.

    >>> halves([0.5, None])
    'ADgAfg=='
    """
    numbers = [math.nan if v is None else max(-_HALF, min(_HALF, v)) for v in values]
    return b64encode(struct.pack(f"<{len(numbers)}e", *numbers)).decode()


def roots(values: Iterable[float | None]) -> str:
    """Square roots in half precision: three digits still of a share of one in a hundred million."""
    return halves(None if v is None else math.copysign(math.sqrt(abs(v)), v) for v in values)


def singles(values: Iterable[float | None]) -> str:
    """Single precision; None, and what is too large for it, become nan."""
    numbers = [math.nan if v is None or abs(v) > 3e38 else v for v in values]
    return b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def short(value: float | None) -> float | None:
    """Six digits."""
    return None if value is None else float(f"{value:.6g}")


def shorts(values: Sequence[float | None]) -> list[float | None]:
    """Six digits each."""
    return [short(value) for value in values]
