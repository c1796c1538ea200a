"""From a loaded model, a path or a hub id to an adapted model, its adapter checked on real activations."""

from pathlib import Path
from typing import Any

from eics.errors import ModelError
from eics.models.base import Model
from eics.models.families.registry import adapter_for
from eics.models.load import load_pretrained


def adapt(model: Any, tokenizer: Any = None, *, name: str | None = None, check: bool = True) -> Model:
    """Adapts a loaded transformers model; refuses an unknown family by name.

    `name` is what records call the model; by default the path it was loaded from, or its architecture. Unless `check`
    is off, the adapter proves itself on a short random input (`check_adapter`).
    """
    if isinstance(model, Model):
        return model
    if hasattr(model, "original_model"):
        return _adapt_bridge(model, tokenizer, name=name, check=check)
    config = getattr(model, "config", None)
    family = getattr(config, "model_type", None)
    if family is None:
        raise ModelError(f"The model must be a loaded transformers model. Got {type(model).__name__}.")
    origin = name or getattr(config, "name_or_path", None) or family
    adapted = Model(model, adapter_for(family), tokenizer, str(origin))
    if check:
        from eics.transformer.check import check_adapter

        check_adapter(adapted)
    return adapted


def load_model(path: str | Path, *, dtype: str | None = None, device: str | None = None, **options: Any) -> Model:
    """Loads a model from a folder or a hub id: safetensors only, no remote code unless `trust_remote_code=True`.

    A name from `eics models list` loads the model that comes with the package or was fetched under that name. `dtype`
    is `float32` (the default), `float64` or `bfloat16`; `device` is a torch device name.
    """
    module, tokenizer = load_pretrained(path, dtype=dtype, device=device, **options)
    return adapt(module, tokenizer, name=str(path))


def _adapt_bridge(bridge: Any, tokenizer: Any, *, name: str | None, check: bool) -> Model:
    """Adapts the model inside TransformerLens' TransformerBridge; the bridge's hooks stay in force.

    Processed weights (folded norms, centred writes) give the same logits from other parts, with other head writes and
    another read-out, so their scores would not be the model's.
    """
    import torch

    # The flag is private. A release without it still has compatibility mode, which processes weights by default.
    if getattr(bridge, "_weights_processed", getattr(bridge, "compatibility_mode", False)):
        raise ModelError(
            "A bridge must have the model's own weights. This one's were processed (folded, centred): boot a fresh "
            "one, without compatibility mode or with enable_compatibility_mode(no_processing=True)."
        )
    adapted = adapt(bridge.original_model, tokenizer or getattr(bridge, "tokenizer", None), name=name, check=check)
    tokens = torch.arange(6, device=adapted.device).unsqueeze(0) % adapted.vocabulary
    with torch.no_grad():
        theirs, ours = bridge(tokens), adapted.module(tokens).logits
    theirs = getattr(theirs, "logits", theirs)
    error = float((theirs - ours).norm() / ours.norm())
    if not error < 1e-3:
        raise ModelError(
            f"A bridge must give the logits of the model inside it. They differ by {error:.1e} (relative): pass the "
            "inner model itself."
        )
    return adapted
