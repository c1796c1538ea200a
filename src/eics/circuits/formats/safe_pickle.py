"""Foreign pickles, read without executing any code in them.

Only the few globals that circuit files need are admitted: tensors are rebuilt by torch's own weights-only loader, and
classes of the tools that wrote the files become `Inert` stand-ins. Any other global is refused by name.
"""

import io
import pickle
import pickletools
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eics.errors import CircuitError

_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # magic number of torch.save before it wrote zip archives
_TOOLS = ("acdc", "auto_circuit", "circuit_tracer", "circuits_benchmark", "transformer_lens", "transformers")

_UNSUPPORTED = re.compile(r"GLOBAL (\S+)")  # in the error of torch's loader about a global it does not admit


class Inert:
    """Stands in for a class of another tool: holds its state and does nothing."""

    def __new__(cls, *arguments: Any, **_: Any) -> "Inert":  # accepts whatever the original class accepted
        self = object.__new__(cls)
        self.arguments = arguments
        return self

    arguments: tuple[Any, ...]

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def is_torch(data: bytes) -> bool:
    """Whether `torch.save` wrote this, as a zip archive or in its older stream format."""
    return data[:4] == b"PK\x03\x04" or (data[:1] == b"\x80" and data[2 : 2 + len(_LEGACY)] == _LEGACY)


def load_torch(data: bytes) -> Any:
    """Loads a file of `torch.save` with the weights-only loader."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    foreign: list[str] = []
    if data[:2] == b"PK":
        _check_archive(data)
        with _refusing("torch archive"):
            foreign = get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    for name in foreign:
        if not _of_a_tool(name):
            raise _forbidden(name)
    with _refusing("torch archive"), safe_globals([(Inert, name) for name in foreign]):
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    _check_tensors(value)
    return value


def load_pickle(data: bytes) -> Any:
    """Loads a plain pickle of containers, strings, numbers and tensors."""
    with _refusing("pickle"):
        _check_memo(data)
        value = _Restricted(io.BytesIO(data)).load()
    _check_tensors(value)
    return value


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        admitted = _admitted().get((module, name))
        if admitted is not None:
            return admitted
        if _of_a_tool(f"{module}.{name}"):
            return Inert
        raise _forbidden(f"{module}.{name}")


def _admitted() -> dict[tuple[str, str], Any]:
    import torch

    return {
        ("builtins", "slice"): slice,  # inside ACDC's TorchIndex
        ("__builtin__", "slice"): slice,  # its name in protocol 2
        ("_codecs", "encode"): _latin1,  # how protocol 2 writes bytes
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
        ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
        # torch's own `_load_from_bytes` unpickles without restriction
        ("torch.storage", "_load_from_bytes"): _storage,
    }


def _latin1(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin1")


def _storage(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _of_a_tool(name: str) -> bool:
    return name.split(".", 1)[0] in _TOOLS


def _forbidden(name: str) -> CircuitError:
    return CircuitError(
        f"must hold data only. Its pickle asks for {name!r}, which no circuit file needs. Nothing was run: distrust it."
    )


def _check_archive(data: bytes) -> None:
    """A torch archive stores its entries uncompressed, so one that claims more than the file's size is a zip bomb."""
    with _refusing("torch archive"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    claimed = sum(entry.file_size for entry in entries)
    if not any(entry.filename.endswith("/data.pkl") for entry in entries):
        raise CircuitError("must be a torch archive with a data.pkl. It is another kind of zip file.")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or claimed > len(data):
        raise CircuitError(
            "must be a torch archive whose entries are stored uncompressed. It claims more than it holds."
        )


def _check_memo(data: bytes) -> None:
    """A memo index of four billion would make the unpickler allocate four billion slots."""
    for opcode, argument, position in pickletools.genops(data):
        if "PUT" in opcode.name and argument is not None and int(argument) > len(data):
            raise CircuitError(f"must be a sensible pickle. Its memo index at byte {position} is {argument}.")


def _check_tensors(value: Any) -> None:
    """A view can claim to be far larger than its storage; expanding it would fill the memory."""
    import torch

    for tensor in _tensors(value):
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_complex()
        if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CircuitError(f"must hold plain tensors. One of shape {tuple(tensor.shape)} has no such storage.")


def _tensors(value: Any) -> Iterator[Any]:
    """Every tensor in nested containers; each container once, since a small pickle can repeat one a billion times."""
    import torch

    waiting, seen = [value], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, dict | list | tuple | Inert) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, Inert):
                waiting += [part.arguments, part.__dict__]
            else:
                waiting.extend(part.values() if isinstance(part, dict) else part)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turns any error that a broken stream causes in the parsers into one line."""
    try:
        yield
    except CircuitError:
        raise
    except Exception as error:
        if match := _UNSUPPORTED.search(str(error)):
            raise _forbidden(match[1]) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CircuitError(f"must be a whole {what} that holds data only: {reason[:200]}.") from None
