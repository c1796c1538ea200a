"""What rounded products (`eics.linalg.precision`) do to a score: `fast` on a bfloat16 model, with and without rounding.

    python benchmarks/rounding.py                      # the 8B shape, random weights, 8 prompts of 128 tokens
    python benchmarks/rounding.py --shape llama-1b

Prints the largest relative change over the prompts of each number and of the EI of the parts.
"""

import argparse
from contextlib import nullcontext
from unittest.mock import patch

import torch

import eics
from eics.errors import EICSError
from eics.scoring.cuda_graphs import without_cuda_graphs
from eics.studies.bench.rows import Setting
from eics.studies.bench.run import Bench, Plan
from eics.studies.bench.shapes import random_model, shape_named


def main() -> None:
    """Prints a line for each linearization."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("Products are rounded on a GPU only: this needs a GPU.")
    model = random_model(shape_named(arguments.shape), name=arguments.shape, device="cuda", dtype="bfloat16")
    setting = Setting(arguments.shape, "cuda", "bfloat16", arguments.batch, arguments.tokens)
    bench = Bench(model, setting, Plan())
    circuit = bench.circuit("medium")

    def scores(linearization: str) -> list[eics.Score]:
        with without_cuda_graphs():
            results = eics.score(
                model, circuit, bench.tokens, mode="fast", linearization=linearization, batch_size=arguments.batch
            )
        return list(results) if not isinstance(results, eics.Score) else [results]

    for linearization in ("frozen", "jacobian"):
        rounded = scores(linearization)
        with patch("eics.scoring.batch.products", lambda *_: nullcontext()):
            exact = scores(linearization)
        pairs = list(zip(rounded, exact, strict=True))
        changes = {
            name: max(abs(getattr(r, name) / getattr(e, name) - 1.0) for r, e in pairs)
            for name in ("c_sh", "dei", "ei_macro")
        }
        changes["ei_parts"] = max(
            abs(r.ei_parts[part] / e.ei_parts[part] - 1.0) for r, e in pairs for part in e.ei_parts
        )
        print(f"{linearization}: " + ", ".join(f"{name} {change:.1e}" for name, change in changes.items()))


if __name__ == "__main__":
    try:
        main()
    except EICSError as error:
        raise SystemExit(str(error)) from None
