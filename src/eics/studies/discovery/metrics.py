"""Task metrics: from logits at the answer position, (B, V), to one number per prompt; higher is better.

| metric | value |
|---|---|
| `logit_diff` | mean logit of the answers minus mean logit of the foils |
| `log_prob` | log of the answers' total probability |
| `kl` | minus KL(full model || these logits); its gradient vanishes at the full model itself |
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.errors import OptionError

METRICS = ("logit_diff", "log_prob", "kl")


@dataclass(frozen=True)
class Targets:
    """What the metric of a batch is measured against.

    Attributes:
        answers, foils: weights over the vocabulary, (B, V): 1/n on each of n tokens. Foils may be all zero.
        full: logits of the full model on the clean prompts, (B, V), for `kl`.
    """

    answers: Tensor
    foils: Tensor
    full: Tensor | None = None


def measure(metric: str, logits: Tensor, targets: Targets) -> Tensor:
    """The metric of each prompt, (B,)."""
    if metric == "logit_diff":
        return (logits * (targets.answers - targets.foils)).sum(dim=-1)
    if metric == "log_prob":
        logs = logits.log_softmax(dim=-1).masked_fill(targets.answers == 0, float("-inf"))
        return logs.logsumexp(dim=-1)
    if metric == "kl":
        assert targets.full is not None
        full = targets.full.log_softmax(dim=-1)
        return -(full.exp() * (full - logits.log_softmax(dim=-1))).sum(dim=-1)
    raise OptionError.of("metric", f"one of {', '.join(METRICS)}", metric)


def slope(metric: str, logits: Tensor, targets: Targets) -> Tensor:
    """Gradient of the metric by the logits, prompt by prompt, (B, V)."""
    with torch.enable_grad():
        point = logits.detach().requires_grad_()
        gradient: Tensor = torch.autograd.grad(measure(metric, point, targets).sum(), point)[0]
    return gradient
