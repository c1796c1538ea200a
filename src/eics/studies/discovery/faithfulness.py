"""Is a circuit worth scoring? The model's metric with everything off the circuit ablated, over the full model's.

    faithfulness f = (M(circuit) - M(nothing)) / (M(full) - M(nothing))

with M the metric's mean over prompts and `nothing` the model with every edge ablated. Over circuits of growing size, as
shares k of all edges, the curve has two areas (Mueller et al. 2025, MIB): CPR, the area under f (more is better: which
components help), and CMD, the area between f and 1 (less is better: does the circuit do what the model does). Both by
the trapezoid rule in k. Intervals come from resampling prompts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import trapezoid

from eics.circuits.graph import Circuit
from eics.errors import CircuitError, OptionError
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.studies.discovery.ablate import circuit_logits
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import measure
from eics.studies.discovery.reference import Writes, mean_writes
from eics.studies.discovery.task import Task, targets
from eics.transformer.forward import run

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The sizes of MIB's curve."""

_RESAMPLES = 2000
_LEVEL = 0.95

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A number with its bootstrap interval over prompts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Point:
    """One circuit: how many edges, as a share of all, and its faithfulness."""

    name: str
    edges: int
    share: float
    faithfulness: Interval


@dataclass(frozen=True)
class Faithfulness:
    """A curve of faithfulness over circuits, with its two areas where there is more than one circuit.

    `full` and `empty` are the metric's means with everything live and with everything ablated.
    """

    points: tuple[Point, ...]
    full: float
    empty: float
    prompts: int
    cpr: Interval | None
    cmd: Interval | None

    def to_record(self) -> dict[str, object]:
        """JSON types only."""
        areas = {name: None if area is None else vars(area) for name, area in (("cpr", self.cpr), ("cmd", self.cmd))}
        points = [{**vars(point), "faithfulness": vars(point.faithfulness)} for point in self.points]
        return {"points": points, "full": self.full, "empty": self.empty, "prompts": self.prompts, **areas}


def faithfulness(
    model: Model,
    task: Task,
    circuits: Mapping[str, Circuit],
    *,
    metric: str = "logit_diff",
    ablation: str = "corrupted",
    batch_size: int = 8,
    memory: float = 512,
    seed: int = 0,
    tick: Callable[[int], None] = lambda _: None,
) -> Faithfulness:
    """Runs every circuit by itself on every prompt of the task; `ablation` says what the rest carries."""
    task.check(metric, ablation)
    for circuit in circuits.values():
        model.check_circuit(circuit)
        if circuit.positions:
            raise CircuitError(
                "A circuit must have whole nodes to be run by itself. Some of its positions are left out at "
                f"{next(iter(circuit.positions))!r}: remove its positions."
            )
    values = _values(model, task, circuits, metric, ablation, batch_size, memory, tick)
    full, empty, each = values[0], values[1], values[2:]
    if np.isclose(full.mean(), empty.mean(), rtol=1e-5, atol=1e-7):
        raise OptionError(
            f"Ablating everything must change the metric. {metric} is {full.mean():.6g} either way on {task.name!r}: "
            "take another ablation, or prompts that differ."
        )
    graph = FullGraph.of(model)
    counts = [int(graph.mask(circuit).sum()) for circuit in circuits.values()]
    shares = [count / graph.edges for count in counts]
    draw = np.random.default_rng(seed)
    samples = draw.integers(0, len(full), size=(_RESAMPLES, len(full)))
    curves = _curve(full[samples], empty[samples], each[:, samples])  # (circuits, resamples)
    curve = _curve(full, empty, each)
    points = tuple(
        Point(name, count, share, _interval(value, spread))
        for name, count, share, value, spread in zip(circuits, counts, shares, curve, curves, strict=True)
    )
    cpr = cmd = None
    if len(circuits) > 1:
        order = np.argsort(shares)
        at = np.array(shares)[order]
        cpr = _interval(trapezoid(curve[order], at), trapezoid(curves[order], at, axis=0))
        away, aways = np.abs(1 - curve[order]), np.abs(1 - curves[order])
        cmd = _interval(trapezoid(away, at), trapezoid(aways, at, axis=0))
    return Faithfulness(points, float(full.mean()), float(empty.mean()), len(full), cpr, cmd)


def _values(
    model: Model,
    task: Task,
    circuits: Mapping[str, Circuit],
    metric: str,
    ablation: str,
    batch_size: int,
    memory: float,
    tick: Callable[[int], None],
) -> Numbers:
    """The metric by prompt, (2 + circuits, prompts): full model, nothing, each circuit."""
    graph = FullGraph.of(model)
    masks = [torch.zeros_like(graph.valid), *(graph.mask(circuit) for circuit in circuits.values())]
    columns = []
    with torch.no_grad(), memory_limit(memory):
        means = None
        if ablation == "mean":
            means = mean_writes(run(model, [pair.clean for pair in batch]) for batch in task.batches(batch_size))
        for batch in task.batches(batch_size):
            clean = run(model, [pair.clean for pair in batch], logits=True)
            assert clean.logits is not None
            if ablation == "corrupted":
                ablated = Writes.of(run(model, [pair.corrupted or () for pair in batch]))
            else:
                ablated = means or Writes.of(clean).zero()
            aims = replace(targets(batch, model), full=clean.logits)
            logits = [clean.logits, *(circuit_logits(clean, ablated, graph, mask) for mask in masks)]
            columns.append(torch.stack([measure(metric, one, aims) for one in logits]).double().cpu().numpy())
            tick(len(batch))
    return np.concatenate(columns, axis=1)


def _curve(full: Numbers, empty: Numbers, each: Numbers) -> Numbers:
    """Faithfulness of each circuit, over the last axis's prompts."""
    below = full.mean(axis=-1) - empty.mean(axis=-1)
    curve: Numbers = (each.mean(axis=-1) - empty.mean(axis=-1)) / np.where(below == 0, np.nan, below)
    return curve


def _interval(value: float, samples: Numbers) -> Interval:
    low, high = np.nanquantile(samples, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(value), float(low), float(high))
