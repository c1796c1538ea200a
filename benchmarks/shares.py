"""Which step of a score takes how many operations: FLOPs over the forward pass's, step by step.

    python benchmarks/shares.py                                       # medium and ioi in fast mode
    python benchmarks/shares.py --mode exact --circuits heads,medium

The batch and the shape are those of `eics bench`: GPT-2's, random weights, 8 prompts of 16 tokens. What weights give
once for all batches is computed before anything is counted.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch

from eics.circuits.graph import Circuit
from eics.errors import EICSError
from eics.linearized.circuit import LinearizedCircuit
from eics.models.base import Model
from eics.scoring.emergence import emergence_spectra, macro_spectrum
from eics.scoring.options import PAPER, Options
from eics.scoring.sheaf import sheaf_terms
from eics.studies.bench.circuits import REFERENCES
from eics.studies.bench.counts import count
from eics.studies.bench.shapes import random_model, shape_named
from eics.transformer.forward import ForwardState, run
from eics.transformer.linearize import TransformerRun

_STEPS = ("setting up", "edges", "macro map", "all of the emergence term")


def shares(state: ForwardState, circuit: Circuit, options: Options) -> list[int]:
    """FLOPs of each step, each on a circuit linearized for it: what steps share is counted in every one."""

    def linearize() -> LinearizedCircuit:
        return TransformerRun(state, circuit).linearize(options.linearization)

    def emergence(linearized: LinearizedCircuit) -> object:
        return emergence_spectra(linearized, options).at(float(options.alpha), options.emergence)

    steps: tuple[Callable[[LinearizedCircuit], object], ...] = (
        lambda _: linearize(),
        lambda linearized: sheaf_terms(linearized, residual=options.residual, metric=options.metric),
        lambda linearized: macro_spectrum(linearized, options)[0].ei(float(options.alpha)),
        emergence,
    )
    for step in steps:
        step(linearize())
    return [count(partial(step, linearize())).flops for step in steps]


def main() -> None:
    """Prints a line for each circuit and linearization."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circuits", default="medium,ioi", help="of: " + ", ".join(REFERENCES))
    parser.add_argument("--mode", default="fast", choices=("fast", "lanczos", "exact"))
    parser.add_argument("--shape", default="gpt2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    strangers = [name for name in arguments.circuits.split(",") if name not in REFERENCES]
    if strangers:
        parser.error(f"--circuits must be of {', '.join(REFERENCES)}. Got {strangers[0]!r}.")
    model: Model = random_model(shape_named(arguments.shape), name=arguments.shape)
    stream = torch.Generator().manual_seed(0)
    size = (arguments.batch, arguments.tokens)
    prompts = torch.randint(0, model.vocabulary, size, generator=stream).tolist()
    blocks = model.transformer.blocks
    for name in arguments.circuits.split(","):
        circuit = REFERENCES[name](len(blocks), blocks[0].attention.heads)
        with torch.no_grad():
            state = run(model, prompts, circuit)
            forward = count(lambda circuit=circuit: run(model, prompts, circuit)).flops
            for linearization in ("frozen", "jacobian"):
                options = PAPER.with_(mode=arguments.mode, linearization=linearization)
                found = zip(_STEPS, shares(state, circuit, options), strict=True)
                said = ", ".join(f"{step} {flops / forward:.2f}" for step, flops in found)
                print(f"{name} {arguments.mode} {linearization}: {said}")


if __name__ == "__main__":
    try:
        main()
    except EICSError as error:
        raise SystemExit(str(error)) from None
