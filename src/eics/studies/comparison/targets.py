"""Which number of the logits at the answer position a change is measured on, and its gradient there.

| metric | value | needs |
|---|---|---|
| `kl` | KL(p_A || p_B) | |
| `log_prob` | log p_B(answer) - log p_A(answer) | an answer for every prompt |
| `logit_diff` | the same of logit(answer) - logit(foil) | an answer and a foil |

Texts count by their first token.

What is lost if a part's change m is taken out of B's run alone is, to second order in the logits with J the map from
the part's write to them and H = diag(p_B) - p_B p_B^T,

    effect = g^T J m - (curvature / 2) (J m)^T H (J m)        g the gradient at B

The curvature is 1 for KL, -1 for a log-probability and 0 for a difference of logits. The gradient alone overstates a
part's effect on KL, which is quadratic near A: by a factor of two if no other part changed anything. The second term
needs J m for each part. It is sampled: for a token y drawn from p_B, `s = (e_y - p_B)^T J m` squared has the mean
(J m)^T H (J m), and one pass back through the model gives s for all parts at once. In place of s^2 / 2 stands
log cosh s, which is the same for small changes; what a large one costs grows with s and not with its square.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, encode
from eics.studies.discovery.metrics import Targets, measure, slope

METRICS = ("kl", "log_prob", "logit_diff")
CURVATURE = {"kl": 1.0, "log_prob": -1.0, "logit_diff": 0.0}
_NEEDED = {"kl": (), "log_prob": ("answer",), "logit_diff": ("answer", "foil")}


def check_metric(metric: str, prompts: Sequence[Prompt]) -> None:
    """Refuses an unknown metric, and one that needs what the prompts do not have."""
    if metric not in METRICS:
        raise OptionError.of("metric", f"one of {', '.join(METRICS)}", metric)
    for prompt in prompts:
        for name in _NEEDED[metric]:
            if getattr(prompt, name) is None:
                raise OptionError(
                    f"Metric {metric!r} needs the field {name!r} in every prompt. Prompt {prompt.id!r} has none: add "
                    "it, or use 'kl', which needs no labels."
                )


def check_targets(metric: str, model: Model, prompt: Prompt) -> None:
    """Refuses a prompt whose answer or foil is no token of the model."""
    for name in _NEEDED[metric]:
        _first_token(model, getattr(prompt, name), name)


def difference(metric: str, model: Model, prompts: Sequence[Prompt], ours: Tensor, theirs: Tensor) -> Tensor:
    """How far the metric has moved from our logits to theirs, (B,) each."""
    targets = _targets(metric, model, prompts, ours)
    moved = measure(metric, theirs, targets) - measure(metric, ours, targets)
    return -moved if metric == "kl" else moved


def direction(metric: str, model: Model, prompts: Sequence[Prompt], ours: Tensor, theirs: Tensor) -> Tensor:
    """The gradient of that by their logits, (B, V)."""
    gradient = slope(metric, theirs, _targets(metric, model, prompts, ours))
    return -gradient if metric == "kl" else gradient


def sampled_directions(theirs: Tensor, tokens: Sequence[Sequence[int]], seed: int, draws: int) -> list[Tensor]:
    """`draws` times e_y - p_B with y drawn from p_B, (B, V); which y depends on the prompt and the seed alone.

    The draws of a prompt are stratified: one from each of as many equal shares of the probability.
    """
    probabilities = theirs.double().softmax(dim=1)
    cumulated = probabilities.cumsum(dim=1)
    start = torch.tensor([[uniform(own, seed)] for own in tokens], dtype=torch.float64, device=theirs.device)
    found = []
    for draw in range(draws):
        place = torch.searchsorted(cumulated, (draw + start) / draws).clamp(max=theirs.shape[1] - 1)
        found.append((torch.zeros_like(probabilities).scatter_(1, place, 1.0) - probabilities).to(theirs.dtype))
    return found


def uniform(tokens: Sequence[int], seed: int) -> float:
    """A number between 0 and 1 that belongs to a prompt and a seed."""
    digest = hashlib.blake2b(f"{seed}:{','.join(map(str, tokens))}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _targets(metric: str, model: Model, prompts: Sequence[Prompt], ours: Tensor) -> Targets:
    weights = torch.zeros(2, *ours.shape, dtype=ours.dtype, device=ours.device)
    for row, prompt in enumerate(prompts):
        for kind, name in enumerate(_NEEDED[metric]):
            weights[kind, row, _first_token(model, getattr(prompt, name), name)] = 1.0
    return Targets(weights[0], weights[1], ours)


def _first_token(model: Model, text: str, name: str) -> int:
    tokens = encode(model, text, add_special_tokens=False)
    if not tokens:
        raise PromptError(f"the {name} must have a token; {text!r} has none")
    return tokens[0]
