"""Strategies for files and values that nobody meant to write, and the property that all of them must have.

A file is damaged in its bytes (`damaged_bytes`: flipped bits, cuts, repeats, text that parsers dislike) or in what it
says (`damaged`: a valid document with fields of the wrong type, lost, doubled or renamed).
"""

import copy
import json
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from click.testing import CliRunner, Result
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from eics.cli import main
from eics.cli.boundary import error_line
from eics.errors import EICSError

SECONDS = 5
FUZZ = settings(max_examples=200, deadline=SECONDS * 1000, suppress_health_check=list(HealthCheck))
"""How often each property is tried. The seed is fixed, unless HYPOTHESIS_PROFILE=search asks for new examples."""

_DEEP = 5000  # levels, more than Python's stack has
ODD_TEXTS = (
    "", " ", "\0", "\ufeff", "\ud800", "\udfff", "\r\n", "\x1b[2J\x07", "\u202eabc", "a\u2028b", "x" * 5000,
    "->", "<q>",
    "a0.h0", "a0.h0<q>", "a99999999999999999999.h0", "m-1", "input", "logits", "input->logits", "nan", "inf", "1e999",
    "0x10", "9" * 5000, "null", "true", "'", '"', "%s%n", "../../x", "<script>", "&amp;", "é" * 40, "😀", "٣",
)  # fmt: skip
ODD_NUMBERS = (
    0, -1, 1, 2, 3, 255, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 5e-324, 1e308, -1e308, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
_ODD_BYTES = (
    b"\0", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b"\r\n", b"\n\n", b"\r", b'"', b"'", b",", b";", b"\t", b"{",
    b"}",
    b"[", b"]", b"[" * _DEEP, b'{"a":' * _DEEP, b"<a>" * _DEEP, b"9" * 5000, b"1e999", b"-1", b"NaN", b"Infinity",
    b"null",
    b"true", b'""', b"<!DOCTYPE x>", b"<![CDATA[", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x7f" * 8, b"PK\x03\x04",
    b"PAR1",
    b"\x80\x04", b"cos\nsystem\n", b"\x1b[2J",
)  # fmt: skip


def nested(levels: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


ODD = st.one_of(
    st.sampled_from([*ODD_TEXTS, *ODD_NUMBERS, None, True, False, [], {}, [[]], {"": None}, [None], [0] * 300]),
    st.sampled_from([nested(50), {"a": nested(200)}, ["x->y"], [["input", "logits"]], {"name": 1, "sha256": 2}]),
    st.text(max_size=8),
    st.integers(),
    st.floats(),
)
"""A value of JSON that a field did not expect; also NaN and infinities, which Python's parser reads."""

ANY_JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(items):
        yield value, key
        yield from _places(part)


@st.composite
def damaged(draw: st.DrawFn, documents: Sequence[Any], odd: st.SearchStrategy[Any] = ODD) -> Any:
    """One of the documents with one to three changes: a field of another type, lost, repeated or renamed."""
    value = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            return draw(ANY_JSON)
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["change", "change", "change", "remove", "repeat", "swap"]))
        other, other_key = draw(st.sampled_from(places))
        if how == "remove":
            del holder[key]
        elif how == "repeat" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif how == "repeat":
            holder[draw(st.sampled_from(ODD_TEXTS))] = copy.deepcopy(holder[key])
        elif how == "swap":
            holder[key] = copy.deepcopy(other[other_key])
        else:
            holder[key] = copy.deepcopy(draw(odd))  # a later change must not reach the strategy
    return value


@st.composite
def damaged_bytes(draw: st.DrawFn, files: Sequence[bytes]) -> bytes:
    """One of the files after one to four accidents, or no file at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = draw(st.sampled_from(files))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        how = draw(st.sampled_from(["flip", "flip", "cut", "drop", "repeat", "insert", "replace", "lines", "tail"]))
        if how == "flip" and start < len(data):
            data = data[:start] + bytes([data[start] ^ (1 << draw(st.integers(0, 7)))]) + data[start + 1 :]
        elif how == "cut":
            data = data[:start]
        elif how == "drop":
            data = data[:start] + data[end:]
        elif how == "repeat":
            data = data[:end] + data[start:end] * draw(st.integers(1, 50)) + data[end:]
        elif how in ("insert", "replace"):
            data = data[:start] + draw(st.sampled_from(_ODD_BYTES)) + data[end if how == "replace" else start :]
        elif how == "lines":
            data = data.replace(b"\n", b"\r\n")
        else:
            data += draw(st.binary(max_size=20))
    return data


def as_json(value: Any) -> bytes:
    """JSON as loose as Python's parser reads it: NaN, infinities and lone surrogates included."""
    return json.dumps(value).encode()


def as_json_lines(rows: Any) -> bytes:
    """One line for each item of a list; anything else on a line of its own."""
    return b"".join(as_json(row) + b"\n" for row in (rows if isinstance(rows, list) else [rows]))


def as_safetensors(header: Any, data: bytes) -> bytes:
    """A safetensors file with this header, fitting or not."""
    text = as_json(header)
    return struct.pack("<Q", len(text)) + text + data


def split_safetensors(content: bytes) -> tuple[Any, bytes]:
    """The header and the data of a valid safetensors file; the order of its keys, which is random, is sorted."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return json.loads(json.dumps(header, sort_keys=True)), content[8 + length :]


class Hung(BaseException):
    """Nothing in the package may catch this."""


@contextmanager
def in_time() -> Iterator[None]:
    """Ends what takes longer than `SECONDS`: Hypothesis' deadline only measures what comes back."""

    def stop(*_: object) -> None:
        raise Hung(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function returns, or None if it raised one of our errors, of one clear line; others pass through."""
    with in_time():
        try:
            return function(*arguments, **options)
        except EICSError as error:
            line = error_line(error)
            assert line.strip(), "an error must say something"
            assert "\n" not in str(error), "an error must be one line"  # noqa: PT017 - it need not raise
            assert "internal error" not in line
            return None


def run(*words: str) -> Result:
    """The command in an empty folder, where it may write what it likes."""
    with in_time(), TemporaryDirectory() as empty, chdir(empty):
        return CliRunner().invoke(main, words)


def one_line(result: Result) -> None:
    """The exit code is ours, and an error is one line; click's usage errors have their usage before it."""
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert "internal error" not in result.output
    lines = [line for line in result.stderr.split("\n") if line and not line.startswith("eics: warning")]
    if (
        result.exit_code == 2 and "--help  Show this message and exit." not in result.output
    ):  # a group without a command
        usage = lines[:-1] if lines[0].startswith("Usage:") else []
        assert all(line.startswith(("Usage:", "Try ", " ")) for line in usage), lines
        assert lines[len(usage) :] == lines[-1:], lines
        assert lines[-1].startswith(("eics: ", "Error: ")), lines


def write(path: Path, content: bytes) -> Path:
    """The file with this content, in place of an earlier one."""
    path.write_bytes(content)
    return path
