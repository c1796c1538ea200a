"""What random circuits of the same size give on the same prompts: `score(..., against_random=N)`.

A number of a score has no natural scale: r sits near 0.1 on one circuit and near 1e-4 on another. Whether it is much is
said by circuits with as many heads, MLPs and edges that somebody drew without looking.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from eics.circuits.graph import Circuit
from eics.circuits.random_circuits import Layers, random_like
from eics.errors import OptionError
from eics.models.base import Model
from eics.scoring.result import Score, Scores

COMPARED = ("emergence_ratio", "dei_norm", "c_sh", "eics")
_STREAM = 15  # apart from other draws with the same seed


def random_circuits(model: Model, circuit: Circuit, count: Any, seed: int) -> tuple[Circuit, ...]:
    """So many circuits of this one's size, each from a stream of its own: the first ones are the same for any count."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise OptionError.of("against_random", "a whole number >= 0", count)
    blocks = model.transformer.blocks
    shape = Layers(len(blocks), blocks[0].attention.heads, blocks[0].parallel)
    return tuple(random_like(circuit, shape, np.random.default_rng([seed, _STREAM, index])) for index in range(count))


def compared(
    rows: Sequence[Scores], circuits: Sequence[Circuit], score: Callable[[Circuit], Iterator[Scores]]
) -> list[Scores]:
    """Results of some prompts, with those of the random circuits on the same prompts in their diagnostics.

    `score` gives the results of another circuit on these prompts, in the same configurations.
    """
    others = [list(score(circuit)) for circuit in circuits]
    return [
        Scores(_compared(own, [other[row][column] for other in others]) for column, own in enumerate(scores))
        for row, scores in enumerate(rows)
    ]


def _compared(own: Score, others: Sequence[Score]) -> Score:
    scored = [other for other in others if other.status != "failed"]
    if own.status == "failed" or not scored:
        return own
    summary: dict[str, Any] = {"circuits": len(scored)}
    for name in COMPARED:
        mine, values = getattr(own, name), [getattr(other, name) for other in scored]
        if mine is not None and None not in values:
            rank = 1 + sum(value > mine for value in values) + values.count(mine) / 2  # ties get the middle rank
            summary[name] = {"median": median(values), "low": min(values), "high": max(values), "rank": rank}
    return replace(own, diagnostics=own.diagnostics | {"against_random": summary})
