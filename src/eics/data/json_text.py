"""JSON from users: every way in which a text can fail to be JSON is one kind of error."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """The value of a JSON text; raises `json.JSONDecodeError` also for endless nesting and endless numbers.

    >>> parse_json("[" * 10**5)
    Traceback (most recent call last):
    json.decoder.JSONDecodeError: it is nested too deeply: line 1 column 1 (char 0)
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None
    except ValueError:  # Python refuses to convert thousands of digits
        raise json.JSONDecodeError("it has a number with thousands of digits", text, 0) from None


def parse_row(text: str) -> Any:
    """The value of a line of records, with lone surrogates spelt out.

    >>> parse_row('{"id": "\\\\ud800"}')
    {'id': '\\\\ud800'}
    """
    value = parse_json(text)
    if "\\ud" not in text and "\\uD" not in text:
        return value
    try:
        return spelt_out(value)
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None


def spelt_out(value: Any) -> Any:
    """The value with lone surrogates as text, `\\ud800`: neither UTF-8 nor Parquet nor a data frame can hold them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {spelt_out(key): spelt_out(part) for key, part in value.items()}
    return type(value)(map(spelt_out, value)) if isinstance(value, list | tuple) else value
