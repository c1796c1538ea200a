"""Whether a loaded model is what its checkpoint holds: every weight present, none left over, all of them finite.

transformers makes up what a checkpoint lacks and drops what it does not know, with a warning; a score of such a model
would be a score of noise.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eics.errors import ModelError

_SHOWN = 4  # names in a message
_HARMLESS = re.compile(
    r"(rotary_emb\.inv_freq|attn\.(masked_)?bias|attention\.(masked_)?bias)$"  # buffers that old checkpoints stored
    r"|(^|\.)(vision_tower|vision_model|vision_embed\w*|visual|audio_tower|embed_vision|embed_audio"
    r"|multi_modal_projector|mm_projector)\."  # the other senses of a model whose language part is loaded
    r"|^(model\.)?mtp\."  # heads that predict several tokens ahead, beside the model
)


def check_weights(name: str, info: dict[str, Any]) -> None:
    """Refuses a model whose checkpoint lacks weights, has more than the model takes, or has them in another shape.

    `info` is what `from_pretrained(output_loading_info=True)` returns; tied weights are not missing in it.
    """
    wrong = sorted(str(key) for key, *_ in info.get("mismatched_keys", ()))
    if wrong:
        shapes = {str(key): (tuple(has), tuple(takes)) for key, has, takes in info["mismatched_keys"]}
        has, takes = shapes[wrong[0]]
        raise ModelError(
            f"The checkpoint of {name!r} must have weights of the shapes that its config.json says. {_named(wrong)}: "
            f"shape {has} instead of {takes}. Config and weights do not belong together."
        )
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"The checkpoint of {name!r} must have all weights of the model. It lacks {len(missing)}: "
            f"{_named(missing)}. It is incomplete, or of another architecture."
        )
    surplus = sorted(key for key in info.get("unexpected_keys", ()) if not _HARMLESS.search(key))
    if surplus:
        raise ModelError(
            f"The checkpoint of {name!r} must have no weights that the model does not take. It has {len(surplus)}: "
            f"{_named(surplus)}. Its config.json describes another model, perhaps one with fewer layers."
        )
    if info.get("error_msgs"):
        raise ModelError(f"The checkpoint of {name!r} must load without errors. {str(info['error_msgs'][0])[:200]}")


def check_stored(name: str, folder: Path | None, module: Any) -> None:
    """Refuses weights that are stored as integers: codes of a quantization, which transformers takes for numbers."""
    from safetensors import safe_open

    taken = {key for key, parameter in module.named_parameters() if parameter.is_floating_point()}
    for file in sorted(folder.glob("*.safetensors")) if folder is not None else ():
        with safe_open(file, "pt") as tensors:
            kinds = {key: tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118 - no mapping
        whole = {key: kind for key, kind in kinds.items() if not kind.startswith(("F", "BF"))}
        for key, kind in whole.items():
            # A checkpoint of the inner model lacks the prefix of its names.
            if key in taken or any(parameter.endswith(f".{key}") for parameter in taken):
                raise ModelError(
                    f"The checkpoint of {name!r} must store weights as floating-point numbers. {key!r} is stored as "
                    f"{kind}: it is quantized, and its codes are not the weights. Use an unquantized checkpoint."
                )


def check_finite(name: str, module: Any, dtype: Any) -> None:
    """Refuses weights that are NaN or infinite, by name."""
    import torch

    for parameter_name, parameter in module.named_parameters():
        if parameter.numel() == 0 or not parameter.is_floating_point():
            continue
        extremes = torch.stack(torch.aminmax(parameter.detach()))  # NaN if anything is, and no copy of the weights
        if not bool(torch.isfinite(extremes).all()):
            short = dtype is torch.float16 and not bool(torch.isnan(extremes).any())
            advice = "float16 ends at 65504: use bfloat16 or float32." if short else "The checkpoint is damaged."
            raise ModelError(
                f"The weights of {name!r} must be finite. {parameter_name!r} has values that are NaN or infinite. "
                f"{advice}"
            )


def check_tokenizer(name: str, tokenizer: Any, module: Any) -> None:
    """Refuses a tokenizer with more tokens than the model has embeddings: it belongs to another model."""
    embeddings = module.get_input_embeddings().weight.shape[0]
    vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
    tokens = max([len(tokenizer), *(index + 1 for index in vocabulary.values())])
    if tokens > embeddings:
        raise ModelError(
            f"The tokenizer of {name!r} must belong to the model. It has {tokens} tokens, but the model embeds "
            f"{embeddings}: use the tokenizer that the model was trained with, or resize and train its embeddings."
        )


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(repr(name[:100]) for name in listed[:_SHOWN]) + more
