"""The six nodes: random weights and activations, drawn in the order of the paper's script.

    n1 --W13--> n3 --W34--> n4 --W46--> n6
    n2 --W23--> n3 --W35--> n5 --W56--> n6

`W23`, `W35` and `W56` are 90% copies of `W13`, `W34` and `W46`: two aligned branches. For a given seed the script draws
the same numbers at every tau and only mixes them differently, so they are drawn once here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DIM = 32
ALIGN = 0.9
FIRST_SEED = 1000
TAUS = tuple(float(tau) for tau in np.linspace(0.0, 2.0, 11))
EDGES = ("n1->n3", "n2->n3", "n3->n4", "n3->n5", "n4->n6", "n5->n6")
_BASE = ("W13", "W34", "W46", "R23", "R35", "R56")
_SCALES = (0.8, 0.9, 0.9, 0.8, 0.9, 0.9)


@dataclass(frozen=True)
class Draws:
    """All random numbers for a set of seeds.

    Attributes:
        matrices: `W13 W34 W46` and the random parts `R23 R35 R56` of the other three; each (seeds, 32, 32).
        fresh: the matrices towards which tau moves `W56` and `W35`.
        inputs: a_1 and a_2, each (seeds, 32).
        noise: for each of the six nodes, the noise that tau scales, (seeds, 32).
    """

    matrices: dict[str, Tensor]
    fresh: dict[str, Tensor]
    inputs: tuple[Tensor, Tensor]
    noise: tuple[Tensor, ...]

    def weights(self, tau: float) -> dict[str, Tensor]:
        """The six edge maps at this tau: alignment, then decoherence of the second branch."""
        m, h = self.matrices, min(1.0, tau / 2.0)
        mixed = {name: (1 - ALIGN) * m[f"R{name[1:]}"] + ALIGN * m[base] for name, base in _COPIES.items()}
        mixed |= {name: (1 - h) * mixed[name] + h * self.fresh[name] for name in ("W35", "W56")}
        named = m | mixed
        return {edge: named[f"W{edge[1]}{edge[5]}"] for edge in EDGES}


_COPIES = {"W23": "W13", "W35": "W34", "W56": "W46"}


def draw(seeds: Iterable[int]) -> Draws:
    """Draws the numbers of these seeds, each from its own numpy generator, as in the script."""
    rows = [_draw_one(np.random.default_rng(seed)) for seed in seeds]
    stacked = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}
    return Draws(
        matrices={name: stacked[name] for name in _BASE},
        fresh={name: stacked[f"fresh {name}"] for name in ("W56", "W35")},
        inputs=(stacked["a1"], stacked["a2"]),
        noise=tuple(stacked[f"noise {node}"] for node in range(1, 7)),
    )


def _draw_one(rng: np.random.Generator) -> dict[str, np.ndarray]:
    drawn = {name: _matrix(scale, rng) for name, scale in zip(_BASE, _SCALES, strict=True)}
    fresh = np.random.default_rng(rng.integers(10**9))
    drawn |= {f"fresh {name}": _matrix(0.9, fresh) for name in ("W56", "W35")}
    drawn |= {name: rng.normal(size=DIM) for name in ("a1", "a2")}
    drawn |= {f"noise {node}": rng.normal(size=DIM) for node in range(1, 7)}
    return drawn


def _matrix(scale: float, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(scale * rng.normal(size=(DIM, DIM)) / np.sqrt(DIM))


def run(
    weights: dict[str, Tensor], a1: Tensor, a2: Tensor, on_edge: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Activations of the six nodes from the two inputs, (..., 32) each, with optional additive noise on edges.

    Weights are (seeds, 32, 32), inputs (seeds, 32) or (seeds, samples, 32).
    """
    values = {"n1": a1, "n2": a2}
    for edge in EDGES:
        source, target = edge.split("->")
        message = _apply(weights[edge], values[source])
        if on_edge and edge in on_edge:
            message = message + on_edge[edge]
        values[target] = values[target] + message if target in values else message
    return values


def _apply(matrix: Tensor, vectors: Tensor) -> Tensor:
    if vectors.ndim == matrix.ndim:
        return vectors @ matrix.mT
    return (matrix @ vectors.unsqueeze(-1)).squeeze(-1)
