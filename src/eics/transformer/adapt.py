"""From a loaded model, a path or a hub id to an adapted model, its adapter checked on real activations."""

from pathlib import Path
from typing import Any

from eics.errors import EICSError, ModelError
from eics.models.base import Model
from eics.models.checkpoint import check_tokenizer
from eics.models.families.registry import adapter_for
from eics.models.load import load_pretrained
from eics.models.lora import with_adapter
from eics.models.out_of_memory import is_out_of_memory


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
    adapter = adapter_for(family)
    _check_module(model, tokenizer, str(origin))
    adapted = Model(model, adapter, tokenizer, str(origin), checked=check)
    if check:
        _check_adapter(adapted)
    return adapted


def load_model(
    path: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = "auto",
    trust_remote_code: bool = False,
    adapter: str | Path | None = None,
    **options: Any,
) -> Model:
    """Loads a model from a folder or a hub id: safetensors only, and no code that comes with it.

    Args:
        path: a folder, a hub id (owner/name), or a name from `eics models list`.
        dtype: `float32` (the default), `float64`, `bfloat16` or `float16`.
        device: a torch device name; `auto` is CUDA if there is a GPU, else MPS, else the CPU.
        trust_remote_code: lets Python files that come with the model run on this machine.
        adapter: the folder of a LoRA adapter to merge into the weights (`eics[lora]`).
        **options: for transformers' `from_pretrained`, such as `revision`.
    """
    module, tokenizer = load_pretrained(
        path, dtype=dtype, device=device, trust_remote_code=trust_remote_code, **options
    )
    if adapter is None:
        return adapt(module, tokenizer, name=str(path))
    return adapt(with_adapter(module, adapter), tokenizer, name=f"{path} + {adapter}")


def _check_module(model: Any, tokenizer: Any, name: str) -> None:
    """Refuses a model that predicts no tokens or whose weights are elsewhere, and a tokenizer of another model."""
    get_head = getattr(model, "get_output_embeddings", None)
    head = get_head() if callable(get_head) else None
    if not hasattr(head, "weight"):
        raise ModelError(
            f"The model must be a causal language model, with an unembedding. Got {type(model).__name__}: load it with "
            "AutoModelForCausalLM."
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(
            f"The weights of {name!r} must be in memory. Some are offloaded: load the model on one device."
        )
    if hasattr(tokenizer, "__len__"):
        check_tokenizer(name, tokenizer, model)


def _check_adapter(adapted: Model) -> None:
    """Proves the adapter; a module that is laid out otherwise than its family says so in one line."""
    from eics.transformer.check import check_adapter

    try:
        check_adapter(adapted)
    except EICSError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(f"The model {adapted.name!r} must leave memory for a pass over twelve tokens.") from error
        family = adapted.module.config.model_type
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"The model {adapted.name!r} must be laid out as transformers' {family}. It is not "
            f"({type(error).__name__}: {reason}): quantized and otherwise replaced layers are not supported."
        ) from error


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
