"""LoRA adapters merged into the weights of their model, by peft (an extra): what the model computes with them.

The adapter is a folder as peft saves it. Its weights must be safetensors, and a config that makes peft import modules
by name is refused: nothing that comes with an adapter runs.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from eics.errors import ModelError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KIND = "LORA"
_IMPORTS = ("megatron_config",)  # peft imports what `megatron_core` names if this is set


def with_adapter(module: Any, folder: str | Path) -> Any:
    """The model with the adapter merged into its weights, in place."""
    folder = Path(folder)
    _check(folder)
    try:
        from peft import PeftModel
    except ImportError:
        raise ModelError("An adapter needs peft: pip install 'eics[lora]'.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers' own changes, which are peft's to follow
            return PeftModel.from_pretrained(module, str(folder)).merge_and_unload()
    except (ValueError, RuntimeError, KeyError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(f"The adapter {str(folder)!r} must fit the model. It does not: {reason}") from error


def _check(folder: Path) -> None:
    """Refuses what is no LoRA adapter with weights as safetensors."""
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"An adapter must be a folder with {_CONFIG} and {_WEIGHTS}, as peft saves it. {str(folder)!r} has no "
                f"{name}."
            )
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise ModelError(f"{str(folder / _CONFIG)!r} must be a JSON object.")
    if config.get("peft_type") != _KIND:
        raise ModelError(f"An adapter must be of type {_KIND}. {str(folder)!r} is {config.get('peft_type')!r}.")
    for name in _IMPORTS:
        if config.get(name) is not None:
            raise ModelError(f"An adapter must not make peft import modules: remove {name!r} from its {_CONFIG}.")
