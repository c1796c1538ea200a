"""Compact numbers, with as many digits as a page shows.

A page holds two numbers for every edge of every prompt, which share three letters. Lists of other numbers are stored in
half precision, scaled by the largest of the list. None stands for a missing number.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence

import numpy as np

LETTERS = "".join(chr(code) for code in range(33, 127) if chr(code) not in '"<\\')
"""91 characters that JSON inside a page need not escape."""

_CODES = np.frombuffer(LETTERS.encode(), dtype=np.uint8)
_SHARES, _COSINES = 2941, 254  # steps; one more code means "missing": 2943 * 256 < 91 ** 3
_TOP = 32768.0  # half precision reaches 65504 and keeps three digits down to 6e-5

Packed = list[float | str]


def pairs(shares: Sequence[float | None], cosines: Sequence[float | None], most: float) -> str:
    """A share from 0 to `most` and a cosine from -1 to 1, in three letters per pair.

    The share is stored as the fourth root of its fraction of `most`: the error is at most 0.07% near `most` and 0.7% at
    a ten-thousandth of it. The error of the cosine is at most 0.004.

    >>> pairs([1.0, 0.25, None], [1.0, -0.5, None], 1.0)
    '~zEd?.~}4'
    """
    share, cosine = np.array(shares, dtype=float), np.array(cosines, dtype=float)
    part = np.clip(share / most, 0.0, 1.0) if most > 0 else 0.0 * share
    high = np.nan_to_num(np.rint(_SHARES * part**0.25), nan=_SHARES + 1)
    low = np.nan_to_num(np.rint(_COSINES / 2 * (1 + np.clip(cosine, -1.0, 1.0))), nan=_COSINES + 1)
    number = ((_COSINES + 2) * high + low).astype(int)
    codes = _CODES[np.stack([number // 91**2, number // 91 % 91, number % 91], axis=1)]
    return bytes(codes.tobytes()).decode()


def halves(values: Iterable[float | None]) -> Packed:
    """The largest magnitude, then all numbers scaled by it in half precision: three digits.

    >>> halves([5.0, -2.5, None])
    [5.0, 'AHgA9AB+']
    """
    numbers = np.array(list(values), dtype=float)
    most = max(np.abs(numbers[~np.isnan(numbers)]), default=0.0)
    scaled = numbers / most * _TOP if most else 0.0 * numbers
    return [short(most), b64encode(scaled.astype("<f2").tobytes()).decode()]


def short(value: float, digits: int = 6) -> float:
    """A number rounded to a few significant digits."""
    return float(f"{value:.{digits}g}")


def shorts(values: Iterable[float | None], digits: int = 6) -> list[float | None]:
    """Numbers rounded to a few significant digits; None stays None."""
    return [None if value is None else short(value, digits) for value in values]
