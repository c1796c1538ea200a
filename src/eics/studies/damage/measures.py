"""What is measured in one forward pass: scores, other residuals, circuit-free baselines, and the damaged node's rank.

Rows are flat: `well-posed.c_sh` is C_sh of that configuration, `max_probability` a number of the pass itself. A
damaged node is ranked among the circuit's nodes with parents by its share of the inconsistency (joint and propagated);
its best edge, in or out, is ranked among all edges. `..._change` ranks by the change from the undamaged run. Ties count
half, so that an uninformative share ranks like chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.options import Options
from eics.scoring.result import Score
from eics.scoring.sheaf import sheaf_term
from eics.transformer.forward import ForwardState

NUMBERS = ("eics", "c_sh", "consistency", "dei", "emergence_ratio")
RESIDUALS = ("joint", "propagated")
RANKS = tuple(f"rank_{by}{suffix}" for by in (*RESIDUALS, "edge") for suffix in ("", "_change"))


@dataclass(frozen=True)
class Measure:
    """A column, its label, and the direction in which damage should move it: +1 up, -1 down."""

    column: str
    label: str
    sign: int


_OF_CONFIGURATION = (
    ("eics", "EICS", -1),
    ("c_sh", "C_sh", 1),
    ("consistency", "consistency", -1),
    ("joint", "joint C_sh", 1),
    ("propagated", "propagated C_sh", 1),
    ("emergence_ratio", "r", -1),
    ("dei", "signed dEI", -1),
)
_OF_PASS = (("max_probability", -1), ("entropy", 1), ("activation_norm", 1), ("kl", 1))


def measures(configurations: Sequence[str]) -> tuple[Measure, ...]:
    """Everything that gets a curve, for these configurations."""
    scores = (
        Measure(f"{name}.{column}", f"{label}, {name}", sign)
        for name in configurations
        for column, label, sign in _OF_CONFIGURATION
    )
    return (*scores, *(Measure(column, column.replace("_", " "), sign) for column, sign in _OF_PASS))


def more_residuals(linearized: LinearizedCircuit, options: Options) -> list[dict[str, Any]]:
    """For each prompt, C_sh and its shares under those of the two node residuals that the score does not use itself."""
    restricted = linearized.restrict(options.positions)
    diagnostics: list[dict[str, Any]] = [{} for _ in range(restricted.batch)]
    for residual in RESIDUALS:
        if residual == options.residual:
            continue
        term = sheaf_term(restricted.engine(), residual=residual, metric=options.metric)
        for row, of_prompt in enumerate(diagnostics):
            shares = zip(map(str, term.names), term.share[row].nan_to_num(0.0, 0.0, 0.0).tolist(), strict=True)
            of_prompt[residual] = {"c_sh": _finite(float(term.c_sh[row])), "shares": dict(shares)}
    return diagnostics


def baselines(state: ForwardState, references: Sequence[Tensor | None]) -> list[dict[str, float | None]]:
    """For each prompt at its answer position: max-probability, entropy and norm of the final residual stream.

    Given the undamaged model's logits, also KL(undamaged || this pass).
    """
    assert state.logits is not None
    assert state.final_read is not None
    logs = state.logits.double().log_softmax(dim=1)
    rows = torch.arange(len(logs), device=logs.device)
    norms = torch.linalg.vector_norm(state.final_read[rows, state.answer].double(), dim=1)
    by_prompt = []
    for row, reference in enumerate(references):
        log, probability = logs[row], logs[row].exp()
        numbers = {
            "max_probability": float(probability.max()),
            "entropy": float(-(probability * log).sum()),
            "activation_norm": float(norms[row]),
        }
        if reference is not None:
            undamaged = reference.double().log_softmax(dim=0)
            numbers["kl"] = float((undamaged.exp() * (undamaged - log)).sum())
        by_prompt.append({name: _finite(number) for name, number in numbers.items()})
    return by_prompt


def numbers_of(scores: Mapping[str, Score]) -> dict[str, float | None]:
    """The flat numbers of a run, from its scores by configuration."""
    numbers: dict[str, float | None] = {}
    for name, score in scores.items():
        numbers |= {f"{name}.{number}": getattr(score, number) for number in NUMBERS}
        numbers |= {f"{name}.{residual}": _by_node(score, residual)[0] for residual in RESIDUALS}
    of_pass = next(iter(scores.values())).diagnostics.get("pass", {})
    return numbers | {name: of_pass.get(name) for name, _ in _OF_PASS}


def ranks_of(node: str, scores: Mapping[str, Score], undamaged: Mapping[str, Score]) -> dict[str, float | None]:
    """Ranks of the damaged node and its edges, None if undefined, with the number of candidates."""
    ranks: dict[str, float | None] = {}
    for name, score in scores.items():
        for residual in RESIDUALS:
            now, before = (_contributions(s, residual) for s in (score, undamaged[name]))
            ranks[f"{name}.rank_{residual}"] = _rank(now, [node])
            ranks[f"{name}.rank_{residual}_change"] = _rank(_difference(now, before), [node])
            ranks[f"{name}.nodes"] = len(now)
        now, before = ({str(edge): edge.residual for edge in s.edges} for s in (score, undamaged[name]))
        touching = [str(edge) for edge in score.edges if node in (edge.source, edge.target)]
        ranks[f"{name}.rank_edge"] = _rank(now, touching)
        ranks[f"{name}.rank_edge_change"] = _rank(_difference(now, before), touching)
        ranks |= {f"{name}.edges": len(now), f"{name}.touching": len(touching)}
    return ranks


def _by_node(score: Score, residual: str) -> tuple[float | None, dict[str, float]]:
    """C_sh and node shares under a residual: the score's own, or one from `more_residuals`."""
    if score.residual == residual:
        return score.c_sh, {term.node: term.share for term in score.nodes}
    term = score.diagnostics.get(residual) or {"c_sh": None, "shares": {}}
    return term["c_sh"], term["shares"]


def _contributions(score: Score, residual: str) -> dict[str, float]:
    """share_v C_sh^2: each node's contribution, on a scale that is the same before and after damage."""
    c_sh, shares = _by_node(score, residual)
    return {node: share * (c_sh or 0.0) ** 2 for node, share in shares.items()}


def _difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}


def _rank(values: Mapping[str, float], candidates: Sequence[str]) -> float | None:
    """Rank of the best candidate, 1 for the largest value; each non-candidate tied with it counts half."""
    own = [values[name] for name in candidates if name in values]
    if not own:
        return None
    best, excluded = max(own), set(candidates)
    others = [value for name, value in values.items() if name not in excluded]
    return 1.0 + sum(value > best for value in others) + 0.5 * sum(value == best for value in others)


def chance(total: int, candidates: int) -> tuple[float, float]:
    """Mean reciprocal rank and top-1 rate of the best of some candidates among `total` in random order.

    >>> [round(number, 4) for number in chance(4, 1)]
    [0.5208, 0.25]
    """
    beyond, reciprocal = 1.0, 0.0  # beyond: probability that the best candidate ranks below r
    for rank in range(1, total - candidates + 2):
        exactly = beyond * candidates / (total - rank + 1)
        reciprocal += exactly / rank
        beyond -= exactly
    return reciprocal, candidates / total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
