"""Models bundled with the package: the validation world of docs/validation-world.md."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

_WORLDS = files("eics.data") / "worlds"


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
