"""How a number is shown to a person: three significant digits, wherever it is printed. Files keep every digit."""

import math


def number(value: float | None, *, trim: bool = False) -> str:
    """A number with three significant digits; a whole number as it is, and "" for None.

    `trim` drops trailing zeros: for settings such as alpha, which are exact, unlike what was measured.

    >>> [number(x) for x in (0.5, 12.345, -359318.6, 1.2345e-9, 1234.5, 7, 0.0, -0.0, None)]
    ['0.500', '12.3', '-3.59e+05', '1.23e-09', '1230', '7', '0', '0', '']
    >>> number(0.01, trim=True), number(1.0, trim=True), number(float("nan"))
    ('0.01', '1', 'nan')
    """
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    rounded = float(f"{value:.2e}")
    size = abs(rounded)
    if not 1e-4 <= size < 1e5:
        return f"{value:.2e}"
    shown = f"{rounded:.{max(0, 2 - math.floor(math.log10(size)))}f}"
    return shown.rstrip("0").rstrip(".") if trim and "." in shown else shown


def signed(value: float | None) -> str:
    """A difference, with its sign.

    >>> signed(0.25), signed(-2.0), signed(0.0)
    ('+0.250', '-2.00', '0')
    """
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def with_error(value: float | None, error: float | None) -> str:
    """A number and its standard error, if it has one.

    >>> with_error(0.5, 0.0123), with_error(0.5, None)
    ('0.500 ± 0.0123', '0.500')
    """
    return number(value) if value is None or error is None else f"{number(value)} ± {number(error)}"


def percent(share: float | None) -> str:
    """A share of 1 in percent.

    >>> percent(0.4567), percent(1.0), percent(0.00012)
    ('45.7%', '100%', '0.0120%')
    """
    return "" if share is None else f"{number(100 * share)}%"


def shortened(text: str, width: int) -> str:
    """A text of at most `width` characters, with an ellipsis in the middle if it is longer.

    >>> shortened("a very long name", 9)
    'a ve…name'
    """
    if len(text) <= width:
        return text
    kept = max(0, width - 1)
    return text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]
