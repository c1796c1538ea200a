"""What rounding products does to a score: `fast` on a bfloat16 model on a GPU, with and without it
(`eics.linalg.precision`).

    python benchmarks/rounding.py                      # the 8B shape, random weights, 8 prompts of 128 tokens
    python benchmarks/rounding.py --shape llama-1b

Printed: the largest relative change of each number over the prompts, and of the parts' information.
"""

import argparse
from contextlib import nullcontext
from unittest.mock import patch

import torch

import eics
from eics.errors import EICSError
from eics.scoring.cuda_graphs import without_cuda_graphs
from eics.studies.bench.circuits import REFERENCES
from eics.studies.bench.shapes import random_model, shape_named


def main() -> None:
    """Prints a line for each linearization."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("Products are rounded on a GPU only: this needs one.")
    model = random_model(shape_named(arguments.shape), name=arguments.shape, device="cuda", dtype="bfloat16")
    blocks = model.transformer.blocks
    circuit = REFERENCES["medium"](len(blocks), blocks[0].attention.heads)
    size, stream = (arguments.batch, arguments.tokens), torch.Generator().manual_seed(0)
    prompts = torch.randint(0, model.vocabulary, size, generator=stream).tolist()

    def scores(linearization: str) -> list[eics.Score]:
        with without_cuda_graphs():
            found = eics.score(
                model, circuit, prompts, mode="fast", linearization=linearization, batch_size=arguments.batch
            )
        return list(found) if not isinstance(found, eics.Score) else [found]

    for linearization in ("frozen", "jacobian"):
        rounded = scores(linearization)
        with patch("eics.scoring.batch.products", lambda *_: nullcontext()):
            whole = scores(linearization)
        pairs = list(zip(rounded, whole, strict=True))
        found = {
            name: max(abs(getattr(one, name) / getattr(other, name) - 1.0) for one, other in pairs)
            for name in ("c_sh", "dei", "ei_macro")
        }
        found["ei_parts"] = max(
            abs(one.ei_parts[part] / other.ei_parts[part] - 1.0) for one, other in pairs for part in other.ei_parts
        )
        print(f"{linearization}: " + ", ".join(f"{name} {change:.1e}" for name, change in found.items()))


if __name__ == "__main__":
    try:
        main()
    except EICSError as error:
        raise SystemExit(str(error)) from None
