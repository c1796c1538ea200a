"""Norm modules of transformers as weights."""

from typing import Any

from eics.models.spec import Norm


def layer_norm(module: Any) -> Norm:
    """torch.nn.LayerNorm."""
    return Norm(module.weight, module.bias, module.eps, centred=True)


def rms_norm(module: Any) -> Norm:
    """RMSNorm as Llama, Mistral, Qwen and Phi have it."""
    return Norm(module.weight, None, module.variance_epsilon, centred=False)


def gemma_norm(module: Any) -> Norm:
    """RMSNorm as Gemma has it: the weight is an offset from 1."""
    return Norm(1.0 + module.weight, None, module.eps, centred=False)
