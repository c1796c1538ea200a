"""Why a model could not be loaded, in one line: what transformers and the hub raise, in our words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from eics.errors import EICSError, ModelError
from eics.models.families.registry import unknown_family
from eics.models.out_of_memory import is_out_of_memory

_OFFLINE = ("couldn't connect", "connection", "offline", "resolve host", "name resolution", "max retries", "timed out")
_TORN = ("invalidheader", "headertoo", "metadataincompletebuffer", "incomplete metadata", "deserializing header")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns whatever loading raises into a `ModelError` of one line; the original stays behind it for `--debug`."""
    try:
        yield
    except EICSError:
        raise
    except Exception as error:
        raise ModelError(_sentence(name, error)) from error


def _sentence(name: str, error: Exception) -> str:
    texts = [str(link) for link in _chain(error)]
    lower = " ".join(texts).lower()
    if "trust_remote_code" in lower:
        return (
            f"The model {name!r} must load without code of its own. It brings Python files that would run on this "
            "machine; nothing was run. If you trust them, use --trust-remote-code (trust_remote_code=True in Python)."
        )
    if unknown := re.search(r"model type `(.*?)`", texts[0]):
        return unknown_family(unknown[1])
    if is_out_of_memory(error):
        return f"The model {name!r} must fit in memory. It does not: use --dtype bfloat16, or another device."
    return _about_files(name, error, texts[0], lower)


def _about_files(name: str, error: Exception, text: str, lower: str) -> str:
    if isinstance(error, PermissionError):
        return f"The files of {name!r} must be readable: {error.strerror} ({error.filename})."
    if type(error).__name__ == "SafetensorError" or any(word in lower for word in _TORN):
        return f"The weights of {name!r} must be whole safetensors files: {_first(text)} Download them again."
    if any(word in lower for word in _OFFLINE):
        return (
            f"The model {name!r} must be a folder, or a hub id that is cached or can be reached. It is no folder, and "
            "the hub could not be reached: check the network, or download the model first."
        )
    if isinstance(error, KeyError):  # of a table in transformers, such as the activation functions
        return f"The config.json of {name!r} must name what transformers knows. It does not know {_first(text)}"
    return f"The model must be a folder or hub id with safetensors. Got {name!r}: {_first(text)}"


def _first(text: str) -> str:
    line = (text.strip().splitlines() or ["no reason given"])[0].strip()[:300]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
