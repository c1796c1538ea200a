"""The FLOPs of a score step by step, as multiples of those of the forward pass.

    python benchmarks/shares.py                                       # medium and ioi in fast mode
    python benchmarks/shares.py --mode exact --circuits heads,medium

Shape and batch are those of `eics bench`: GPT-2 with random weights, 8 prompts of 16 tokens. What is computed once from
weights for all batches is not counted.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch

from eics.circuits.graph import Circuit
from eics.errors import EICSError
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.emergence import emergence_spectra, macro_spectrum
from eics.scoring.options import PAPER, Options
from eics.scoring.sheaf import sheaf_terms
from eics.studies.bench.circuits import REFERENCES
from eics.studies.bench.measure import count
from eics.studies.bench.rows import Setting
from eics.studies.bench.run import Bench, Plan
from eics.studies.bench.shapes import random_model, shape_named
from eics.transformer.forward import ForwardState, run
from eics.transformer.linearize import TransformerRun

_STEPS = ("setting up", "edges", "macro map", "all of the emergence term")


def shares(state: ForwardState, circuit: Circuit, options: Options) -> list[int]:
    """FLOPs of each step on a freshly linearized circuit, so that work shared by steps counts in each of them."""

    def linearize() -> LinearizedCircuit:
        return TransformerRun(state, circuit).linearize(options.linearization)

    def emergence(linearized: LinearizedCircuit) -> object:
        return emergence_spectra(linearized.engine(), options).at(float(options.alpha), options.emergence)

    steps: tuple[Callable[[LinearizedCircuit], object], ...] = (
        lambda _: linearize(),
        lambda linearized: sheaf_terms(linearized.engine(), residual=options.residual, metric=options.metric),
        lambda linearized: macro_spectrum(linearized.engine(), options)[0].ei(float(options.alpha)),
        emergence,
    )
    for step in steps:
        step(linearize())
    return [count(partial(step, linearize())).flops for step in steps]


def main() -> None:
    """Prints a line for each circuit and linearization."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circuits", default="medium,ioi", help=f"any of {', '.join(REFERENCES)}")
    parser.add_argument("--mode", default="fast", choices=("limit", "fast", "lanczos", "exact"))
    parser.add_argument("--shape", default="gpt2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    names = arguments.circuits.split(",")
    unknown = [name for name in names if name not in REFERENCES]
    if unknown:
        parser.error(f"--circuits must be any of {', '.join(REFERENCES)}. Got {unknown[0]!r}.")
    model = random_model(shape_named(arguments.shape), name=arguments.shape)
    bench = Bench(model, Setting(arguments.shape, "cpu", "float32", arguments.batch, arguments.tokens), Plan())
    for name in names:
        circuit = bench.circuit(name)
        with torch.no_grad():
            state = run(model, bench.tokens, circuit)
            forward = count(partial(run, model, bench.tokens, circuit)).flops
            for linearization in ("frozen", "jacobian"):
                options = PAPER.with_(mode=arguments.mode, linearization=linearization)
                steps = zip(_STEPS, shares(state, circuit, options), strict=True)
                ratios = ", ".join(f"{step} {flops / forward:.2f}" for step, flops in steps)
                print(f"{name} {arguments.mode} {linearization}: {ratios}")


if __name__ == "__main__":
    try:
        main()
    except EICSError as error:
        raise SystemExit(str(error)) from None
