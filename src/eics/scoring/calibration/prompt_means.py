"""The means of what a circuit's nodes write and read over a reference set."""

from collections.abc import Callable, Iterator, Sequence

import torch

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means, mean_of


def prompt_means(
    model: Model,
    circuit: Circuit,
    prompts: Sequence[Prompt],
    batch_size: int = 8,
    tick: Callable[[int], None] = lambda _: None,
) -> Means:
    """The means of the nodes' writes and reads over all positions of the prompts that the model can run."""
    token_lists = []
    reason = "no prompt was given"
    for prompt in prompts:
        try:
            token_lists.append(tokenize(model, prompt))
        except PromptError as error:
            reason = str(error)
    if not token_lists:
        raise OptionError(f"A calibration must have a prompt that the model can run. It has none: {reason}.")
    tick(len(prompts) - len(token_lists))
    means = mean_of(_runs(model, circuit, token_lists, batch_size, tick))
    if _is_finite(means):
        return means
    # A prompt on which the model overflows fails when it is scored; here it must not spoil the others' means.
    finite = [tokens for tokens in token_lists if _is_finite(mean_of(_runs(model, circuit, [tokens], 1)))]
    if not finite:
        raise OptionError("A calibration must have a prompt with finite activations. The model overflows on each one.")
    return mean_of(_runs(model, circuit, finite, batch_size))


def _is_finite(means: Means) -> bool:
    return all(bool(mean.isfinite().all()) for part in (means.writes, means.reads) for mean in part.values())


def _runs(
    model: Model,
    circuit: Circuit,
    token_lists: Sequence[Sequence[int]],
    batch_size: int,
    tick: Callable[[int], None] = lambda _: None,
) -> Iterator[TransformerRun]:
    ordered = sorted(token_lists, key=len)  # prompts of similar length share a batch: little padding
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        with torch.no_grad():
            yield TransformerRun(run(model, batch, circuit), circuit)
        tick(len(batch))
