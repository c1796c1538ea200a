"""What a model's name stands for: a folder, a bundled or fetched model, or a hub id; decided without asking a hub."""

import json
import re
from pathlib import Path

from eics.errors import ModelError, as_path, did_you_mean

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_IDS_OF_OLD_NAMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}


def locate(path: str | Path) -> str:
    """The folder of a bundled or fetched model if this is its name; else a checked folder, or a hub id, unchanged."""
    from eics.models.download.cache import fetched
    from eics.models.download.sources import SOURCES, bundled_model

    name = str(path if isinstance(path, str) else as_path(path, "model's folder or hub id", ModelError))
    try:
        exists = bool(name) and Path(path).exists()
    except (OSError, ValueError) as error:  # a name that is too long, a null byte, a folder without permission
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"The model must be a folder or hub id. Got {name[:80]!r}: {reason}.") from None
    if exists:
        _check_folder(Path(path))
        return name
    bundled = bundled_model(name)
    if bundled is not None:
        return str(bundled)
    if name in SOURCES:
        folder = fetched(name)
        if folder is None:
            raise ModelError(f"The model {name!r} must be fetched first: run `eics models fetch {name}`.")
        return str(folder)
    if isinstance(path, Path) or not _HUB_ID.fullmatch(name) or name.endswith((".json", ".safetensors", ".gguf")):
        raise ModelError(_unknown(name))
    return name


def model_names() -> list[str]:
    """The names that `eics models list` lists."""
    from eics.models.download.sources import SOURCES, bundled_models

    return [*SOURCES, *bundled_models()]


def _unknown(name: str) -> str:
    is_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1
    what = "there is no such folder" if is_path else "there is no such folder, and a hub id has the form owner/name"
    hint = did_you_mean(name.rpartition("/")[2], [*model_names(), *_HUB_IDS_OF_OLD_NAMES])
    if name in _HUB_IDS_OF_OLD_NAMES:
        hint = f" Did you mean {_HUB_IDS_OF_OLD_NAMES[name]!r}?"
    return f"The model must be a folder or hub id, or a name from `eics models list`. Got {name[:80]!r}: {what}." + (
        hint or ("" if is_path else f" Names: {', '.join(model_names())}.")
    )


def _check_folder(folder: Path) -> None:
    """Refuses a folder that is no model before transformers is imported, which takes seconds."""
    if not folder.is_dir():
        raise ModelError(f"The model must be a folder or hub id. {str(folder)!r} is a file: name its folder.")
    config = folder / "config.json"
    try:
        names = {entry.name for entry in folder.iterdir()}
        content = json.loads(config.read_text(encoding="utf-8")) if "config.json" in names else None
    except OSError as error:
        raise ModelError(f"The model folder {str(folder)!r} must be readable: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"The file {str(config)!r} must be JSON: {error}.") from None
    if content is None:
        raise ModelError(f"The model folder {str(folder)!r} must have a config.json. {_instead(names)}")
    if not isinstance(content, dict):
        raise ModelError(f"The file {str(config)!r} must be a JSON object. It holds a {type(content).__name__}.")
    if "adapter_config.json" in names:
        raise ModelError(
            f"The model folder {str(folder)!r} must hold one model. It has a LoRA adapter (adapter_config.json) beside "
            "a config.json: merge the adapter and save the result, or move it elsewhere."
        )
    weights = [name for name in names if name.endswith((".safetensors", ".safetensors.index.json"))]
    if not weights:
        pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
        raise ModelError(
            f"The model folder {str(folder)!r} must have its weights as safetensors. "
            + (
                f"It has {pickled[0]!r}, a pickle, which can run code and is not opened: convert it to safetensors."
                if pickled
                else "It has none."
            )
        )


def _instead(names: set[str]) -> str:
    if "adapter_config.json" in names:
        return "It holds a LoRA adapter: merge it into its base model and save that."
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf:
        return f"It holds {gguf[0]!r}: GGUF files are not read directly."
    return "It has none." if names else "It is empty."
