"""How close `fast` comes to `exact`: signs, ranks, bounds and standard errors over many prompts, at three alphas.

    python benchmarks/fast_against_exact.py                            # three tiny random models, a minute
    python benchmarks/fast_against_exact.py --model smollm2 --circuit facts --prompts FILE.jsonl --device cuda

For each preset and alpha, over all prompts: the share inside the bounds (`bounds`); the share of decisive cases, |dEI|
larger than its standard error, in which the sign of dEI is right (`sign`); rank correlations with `exact` of dEI and
the ratio r, with 95% bootstrap intervals over prompts; the median relative error; and how often two standard errors
cover the exact number. All prompts share their probes, so errors are alike: coverage over seeds is in
tests/linalg/test_coverage.py. What `fast` costs is in units of `limit`, which was `fast` before version 2 of the
records: the median over repeats, each timed right after the other.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from transformers import AutoConfig, AutoModelForCausalLM

import eics
from eics.models.base import Model
from eics.models.prompts import as_prompts
from eics.scoring.batch import check, linearize, run_model
from eics.scoring.emergence import emergence_spectra
from eics.scoring.job import Job
from eics.scoring.options import BOTH, PRESETS, Options
from eics.studies.bench.circuits import random_circuit

ALPHAS = (0.01, 1.0, 100.0)
_BATCH = 8
_RESAMPLES = 1000
_TIMED = 4  # batches

TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 48, "n_layer": 6, "n_head": 6, "vocab_size": 97, "n_positions": 64},
    "llama": {
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 6,
        "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64,
    },
    "gemma3_text": {
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "max_position_embeddings": 64,
    },
}  # fmt: skip


def tiny(family: str, device: str, seed: int) -> tuple[Model, eics.Circuit, list[list[int]]]:
    """A small random model of the family, a random circuit of it, and random prompts of 3 to 20 tokens."""
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **TINY[family])).eval().to(device)
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, 97, size=rng.integers(3, 21)).tolist() for _ in range(100)]
    return eics.adapt(module, name=family), random_circuit(14, 40, seed, layers=6, heads=6), prompts


def compare(
    model: Model, circuit: eics.Circuit, prompts: list[Any], preset: Options
) -> tuple[dict[float, list[dict[str, float]]], list[float]]:
    """For each alpha, one row of numbers per prompt; and the cost of `fast` over that of `limit`, batch by batch."""
    rows: dict[float, list[dict[str, float]]] = {alpha: [] for alpha in ALPHAS}
    modes = {
        "exact": preset.with_(mode="exact", factorization="svd", curve=True),
        "fast": preset.with_(mode="fast"),
        "limit": preset.with_(mode="limit"),
    }
    costs: list[float] = []
    with torch.no_grad():
        for start in range(0, len(prompts), _BATCH):
            job = Job(model, circuit, (preset,), None, None, {}, None, None, (None,))
            items, _ = check(job, as_prompts(prompts[start : start + _BATCH]))
            state = run_model(job, items)
            engine = linearize(job, state, preset).restrict(preset.positions).engine()
            spectra = {name: emergence_spectra(engine, options) for name, options in modes.items()}
            if start < _TIMED * _BATCH:
                costs += _costs(model, circuit, prompts[start : start + _BATCH], modes)
            for alpha in ALPHAS:
                exact, fast = (spectra[name].at(alpha, preset.emergence) for name in ("exact", "fast"))
                rows[alpha] += [_row(exact, fast, index) for index in range(len(items))]
    return rows, costs


def _row(exact: Any, fast: Any, index: int) -> dict[str, float]:
    def inside(estimate: Any) -> bool:
        lower, value, upper = (t[index].double() for t in (estimate.lower, estimate.value, estimate.upper))
        return bool(((lower <= value * (1 + 1e-6)) & (value * (1 - 1e-6) <= upper)).all())

    row = {"inside": inside(fast.ei_macro) and inside(fast.ei_parts)}
    for name in ("dei", "ratio"):
        if getattr(exact, name) is not None:
            row[name] = float(getattr(exact, name).value[index])
            row[f"fast {name}"] = float(getattr(fast, name).value[index])
            row[f"{name} error"] = float(getattr(fast, name).stderr[index])
    return row


def _costs(model: Model, circuit: eics.Circuit, prompts: list[Any], modes: dict[str, Options]) -> list[float]:
    """What `fast` takes over what `limit` takes, for the whole score, one right after the other."""
    ratios = []
    for _ in range(4):
        seconds = {}
        for name in ("limit", "fast"):
            begin = time.perf_counter()
            eics.score(model, circuit, prompts, preset=modes[name])
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name] = time.perf_counter() - begin
        ratios.append(seconds["fast"] / seconds["limit"])
    return ratios[1:]  # the first fills caches


def summary(rows: list[dict[str, float]], seed: int = 0) -> dict[str, str]:
    """The columns of one line of the table."""
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    decisive = np.abs(columns["fast dei"]) > columns["dei error"]
    signs = (np.sign(columns["dei"]) == np.sign(columns["fast dei"]))[decisive]
    found = {
        "prompts": str(len(rows)),
        "bounds": f"{columns['inside'].mean():.0%}",
        "sign": f"{signs.mean():.0%} of {decisive.sum()}" if decisive.any() else "-",
    }
    for name in ("dei", "ratio"):
        if name in columns:
            found[name] = _correlation(columns[name], columns[f"fast {name}"], seed)
            miss = np.abs(columns[name] - columns[f"fast {name}"]) / columns[f"{name} error"]
            found[f"{name} covered"] = f"{(miss <= 2).mean():.0%}"
            found[f"{name} error"] = f"{np.median(np.abs(columns[f'fast {name}'] / columns[name] - 1)):.1%}"
    return found


def _correlation(truth: np.ndarray, estimate: np.ndarray, seed: int) -> str:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(truth), size=(_RESAMPLES, len(truth)))
    values = [spearmanr(truth[index], estimate[index]).statistic for index in drawn]
    low, high = np.nanquantile(values, [0.025, 0.975])
    return f"{spearmanr(truth, estimate).statistic:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model that `eics score` takes; by default three tiny random ones")
    parser.add_argument("--circuit", default="facts")
    parser.add_argument("--prompts", type=Path, help="JSON lines with a `prompt` each")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", choices=BOTH, help="only this one")
    parser.add_argument("--linearization", choices=("jacobian", "frozen"), help="in place of the preset's own")
    given = parser.parse_args()
    if given.model is None:
        cases = {family: tiny(family, given.device, seed) for seed, family in enumerate(TINY)}
    else:
        lines = given.prompts.read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines][:: max(1, len(lines) // given.limit)][: given.limit]
        loaded = eics.load_model(given.model, device=given.device)
        cases = {given.model: (loaded, eics.load_circuit(given.circuit), prompts)}
    for name, case in cases.items():
        for preset, options in ((name, PRESETS[name]) for name in BOTH):
            if given.preset not in (None, preset):
                continue
            chosen = options if given.linearization is None else options.with_(linearization=given.linearization)
            rows, costs = compare(*case, chosen)
            print(
                f"\n{name}, {preset} ({chosen.linearization}): fast costs {np.median(costs):.2f} of limit", flush=True
            )
            for alpha in ALPHAS:
                cells = ", ".join(f"{key} {value}" for key, value in summary(rows[alpha]).items())
                print(f"  alpha {alpha:g}: {cells}", flush=True)


if __name__ == "__main__":
    main()
