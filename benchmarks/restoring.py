"""Do the estimated effects of `eics compare` order a model's parts as restoring each of them does?

All weights get noise, as a share of each tensor's standard deviation. The estimate comes from gradients for all parts
at once; the truth from writing the original's value of one part into the run, for all MLPs, embeddings, read-out and
one in ten heads. Rank correlations and relative errors of the means over prompts, with bootstrap intervals over parts.

    python benchmarks/restoring.py --model smollm2 --prompts facts --noise 0.01 0.2
"""

import argparse
import copy

import numpy as np
import torch

import eics
from eics.models.base import Model
from eics.models.prompts import as_prompts, tokenize
from eics.studies.comparison.batches import Item, Step, as_batches
from eics.studies.comparison.drivers import Together
from eics.studies.comparison.models import compare_models
from eics.studies.comparison.parts import Parts
from eics.studies.statistics import Interval, resampled_indices, spearman


def noisy(model: Model, noise: float, seed: int) -> Model:
    """A copy with noise in all weights."""
    module = copy.deepcopy(model.module)
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
            parameter.add_(torch.randn(parameter.shape, generator=stream), alpha=noise * spread)
    return eics.adapt(module, model.tokenizer, name=f"{model.name} with {noise:.0%} noise")


def measured_parts(model: Model) -> list[str]:
    """All MLPs, the embeddings, the read-out and every tenth head."""
    names = Parts.of(model.transformer, None).names
    heads = [name for name in names if ".h" in name]
    return [name for name in names if name in heads[::10] or not name.startswith("a")]


def restored(model: Model, against: Model, prompts: list[eics.Prompt], names: list[str]) -> dict[str, float]:
    """The true effect of each of these parts, mean over prompts."""
    items = [Item(prompt, tokenize(model, prompt)) for prompt in prompts]
    totals = dict.fromkeys(names, 0.0)
    step = Step(Parts.named(names), "kl")
    for _, effects in Together(model, against).restored(step, as_batches(items, 8)):
        for name, values in effects.items():
            totals[name] += sum(values) / len(items)
    return totals


def shown(estimated: np.ndarray, true: np.ndarray, chosen: np.ndarray) -> str:
    """Rank correlation and relative error over some of the parts."""
    x, y = estimated[chosen], true[chosen]
    drawn = resampled_indices(len(x), 1000, np.random.default_rng(0))
    rank = Interval.of(float(spearman(x, y)), spearman(x[drawn], y[drawn]))
    return f"rank correlation {rank:.2f}, relative error {np.linalg.norm(x - y) / np.linalg.norm(y):.2f}"


def main() -> None:
    """Measures every level of noise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", default="facts")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.2])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model = eics.load_model(given.model)
    prompts = as_prompts(eics.read_prompts(given.prompts, shuffle=True)[: given.count])
    names = measured_parts(model)
    mlps = np.array([name.startswith("m") for name in names])
    for noise in given.noise:
        against = noisy(model, noise, given.seed)
        found = compare_models(model, None, prompts, against)
        true = restored(model, against, prompts, names)
        estimates = np.array([found[name].effect.value for name in names])
        truths = np.array([true[name] for name in names])
        print(
            f"{noise:.0%} noise, {len(prompts)} prompts, KL {found.total:.4f}, residue {found.residue:.1e}", flush=True
        )
        print(f"  {mlps.sum()} MLPs: {shown(estimates, truths, mlps)}")
        print(f"  all {len(names)} measured parts: {shown(estimates, truths, np.ones_like(mlps))}", flush=True)


if __name__ == "__main__":
    main()
