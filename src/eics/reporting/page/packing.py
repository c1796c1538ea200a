"""Compact numbers, with as many digits as a page shows.

A page holds two numbers for every edge of every prompt, which share three letters; the largest get a fourth. Lists of
other numbers are stored in half precision, scaled by the largest of the list. None stands for a missing number.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence

import numpy as np

LETTERS = "".join(chr(code) for code in range(33, 127) if chr(code) not in '"<\\')
"""91 characters that JSON inside a page need not escape."""

_CODES = np.frombuffer(LETTERS.encode(), dtype=np.uint8)
_SHARES, _COSINES = 3728, 200  # the largest codes; one more means "missing": (3728 + 2) * (200 + 2) <= 91 ** 3
_DECADES = 12  # a share this many decades below the largest is stored as 0
FINE = 60
"""How many of the largest shares get a letter more: as many as the page draws in full."""
_TOP = 32768.0  # half precision reaches 65504 and keeps three digits down to 6e-5

Packed = list[float | str]


def pairs(shares: Sequence[float | None], cosines: Sequence[float | None], most: float) -> tuple[str, str]:
    """A share from 0 to `most` and a cosine from -1 to 1 in three letters per pair, and a letter more for large shares.

    The share is stored as the logarithm of its fraction of `most`, so that its relative error is the same for all: at
    most 0.38%, and for the largest shares, which have a letter more, 0.005%. The cosine has the two decimals that are
    shown. Large shares are in descending order of their first code, then in the order given.

    >>> pairs([1.0, 0.25, None], [1.0, -0.5, None], 1.0)
    ('~{TzEl~}j', 'PQ')
    """
    share, cosine = np.array(shares, dtype=float), np.array(cosines, dtype=float)
    part = np.clip(share / most, 0.0, 1.0) if most > 0 else 0.0 * share
    # Code 0 means no share at all, code 1 the smallest.
    level = 1 + (_SHARES - 1) * (1 + np.log10(np.maximum(part, 10.0 ** -(_DECADES + 1))) / _DECADES)
    high = np.nan_to_num(np.where(level < 0.5, 0.0, np.rint(level)), nan=_SHARES + 1)
    low = np.nan_to_num(np.rint(_COSINES / 2 * (1 + np.clip(cosine, -1.0, 1.0))), nan=_COSINES + 1)
    number = ((_COSINES + 2) * high + low).astype(int)
    codes = _CODES[np.stack([number // 91**2, number // 91 % 91, number % 91], axis=1)]
    large = [index for index in np.argsort(-high, kind="stable") if 0 < high[index] <= _SHARES][:FINE]
    rest = np.rint(90 * (level[large] - high[large] + 0.5)).astype(int)
    return bytes(codes.tobytes()).decode(), bytes(_CODES[rest].tobytes()).decode()


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


_CODES_OF_TWO = 91**2
_FAR, _NONE = _CODES_OF_TWO - 2, _CODES_OF_TWO - 1  # codes of what is out of range, and of what is missing
_LOWEST = -2000  # hundredths; the highest is 6278


def codes(numbers: Iterable[int | None]) -> str:
    """Integers from 0 to 8278 in two letters each; None stands for a missing one.

    >>> codes([0, 90, 91, None])
    '!!!~#!~~'
    """
    given = np.array([_NONE if number is None else number for number in numbers], dtype=int)
    return _two_letters(given)


def hundredths(numbers: np.ndarray) -> tuple[str, list[float]]:
    """Numbers to two decimals, two letters each, and apart those out of the range -20 to 62.78; NaN is a missing one.

    >>> hundredths(np.array([-20.0, 9.146, np.nan, 700.0]))
    ('!!C%~~~}', [700.0])
    """
    missing = np.isnan(numbers)
    level = np.rint(np.where(missing, 0.0, numbers) * 100) - _LOWEST
    far = ~missing & ((level < 0) | (level >= _FAR))
    code = np.where(missing, _NONE, np.where(far, _FAR, level)).astype(int)
    return _two_letters(code), [round(float(number), 2) for number in numbers[far]]


def _two_letters(code: np.ndarray) -> str:
    return bytes(_CODES[np.stack([code // 91, code % 91], axis=-1)].tobytes()).decode()
