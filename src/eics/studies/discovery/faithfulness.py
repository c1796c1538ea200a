"""Faithfulness: how much of the model's metric remains when everything outside the circuit is ablated.

    faithfulness f = (M(circuit) - M(nothing)) / (M(full) - M(nothing))

with M the metric's mean over prompts and `nothing` the model with every edge ablated. Over circuits of growing size,
measured as the share k of all edges, the curve has two areas (Mueller et al. 2025, MIB): CPR, the area under f (higher
is better: which components help), and CMD, the area between f and 1 (lower is better: does the circuit do what the
model does). Both use the trapezoid rule in k. Intervals come from resampling prompts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.integrate import trapezoid

from eics.circuits.graph import Circuit
from eics.errors import CircuitError, OptionError
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.reporting.plots import COLOURS, panels
from eics.studies.discovery.ablate import circuit_logits
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import measure
from eics.studies.discovery.reference import Writes, mean_writes
from eics.studies.discovery.task import Task, targets
from eics.studies.statistics import Interval, Numbers, resampled_indices
from eics.transformer.forward import run

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The circuit sizes of MIB's curve."""

_RESAMPLES = 2000


@dataclass(frozen=True)
class Point:
    """One circuit: its number of edges, their share of all edges, and its faithfulness."""

    name: str
    edges: int
    share: float
    faithfulness: Interval


@dataclass(frozen=True)
class Faithfulness:
    """Faithfulness over circuits, with the two areas if there is more than one circuit.

    `full` and `empty` are the metric's means with nothing and with everything ablated.
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


@memory_explained
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
    """Runs every circuit by itself on every prompt of the task; `ablation` says what replaces all other edges."""
    task.check(metric, ablation)
    for circuit in circuits.values():
        model.check_circuit(circuit)
        if circuit.positions:
            raise CircuitError(
                "A circuit must have whole nodes to be run by itself. Got one restricted to some positions at "
                f"{next(iter(circuit.positions))!r}: remove its positions."
            )
    graph = FullGraph.of(model)
    masks = {name: graph.mask(circuit) for name, circuit in circuits.items()}
    nothing = torch.zeros_like(graph.valid)
    columns = []  # the metric on each prompt: full model, everything ablated, each circuit
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
            alone = [circuit_logits(clean, ablated, graph, mask) for mask in (nothing, *masks.values())]
            values = torch.stack([measure(metric, logits, aims) for logits in (clean.logits, *alone)])
            columns.append(values.double().cpu().numpy())
            tick(len(batch))
    full, empty, *each = np.concatenate(columns, axis=1)
    if np.isclose(full.mean(), empty.mean(), rtol=1e-5, atol=1e-7):
        raise OptionError(
            f"Ablating everything must change the metric. {metric} is {full.mean():.6g} either way on {task.name!r}: "
            "use another ablation, or more varied prompts."
        )
    edges = {name: int(mask.sum()) for name, mask in masks.items()}
    return _over_sizes(edges, graph.edges, full, empty, np.array(each), np.random.default_rng(seed))


def _over_sizes(
    edges: Mapping[str, int], total: int, full: Numbers, empty: Numbers, each: Numbers, rng: np.random.Generator
) -> Faithfulness:
    """The result from each circuit's number of edges and the metric on each prompt; `each` is (circuits, prompts)."""
    shares = [count / total for count in edges.values()]
    drawn = resampled_indices(len(full), _RESAMPLES, rng)
    curves = _curve(full[drawn], empty[drawn], each[:, drawn])  # (circuits, resamples)
    curve = _curve(full, empty, each)
    points = tuple(
        Point(name, count, share, Interval.of(value, samples))
        for (name, count), share, value, samples in zip(edges.items(), shares, curve, curves, strict=True)
    )
    cpr = cmd = None
    if len(edges) > 1:
        order = np.argsort(shares)
        x, y, samples = np.array(shares)[order], curve[order], curves[order]
        cpr = Interval.of(trapezoid(y, x), trapezoid(samples, x, axis=0))
        cmd = Interval.of(trapezoid(np.abs(1 - y), x), trapezoid(np.abs(1 - samples), x, axis=0))
    return Faithfulness(points, float(full.mean()), float(empty.mean()), len(full), cpr, cmd)


def _curve(full: Numbers, empty: Numbers, each: Numbers) -> Numbers:
    """Faithfulness of each circuit, with prompts along the last axis."""
    drop = full.mean(axis=-1) - empty.mean(axis=-1)
    curve: Numbers = (each.mean(axis=-1) - empty.mean(axis=-1)) / np.where(drop == 0, np.nan, drop)
    return curve


def faithfulness_figure(result: Faithfulness, title: str) -> Any:
    """Faithfulness over circuit size, with intervals; 1 is the full model, 0 the model with everything ablated."""
    figure, (axes,) = panels(7, 4.2)
    points = sorted(result.points, key=lambda point: point.share)
    own = [point for point in points if point.name == "circuit"]
    curve = [point for point in points if point.name != "circuit"]
    for group, colour, label in ((curve, COLOURS[0], "top edges"), (own, COLOURS[1], "the file's circuit")):
        if group:
            shares, kept = [point.share for point in group], [point.faithfulness for point in group]
            errors = [[f.value - f.low for f in kept], [f.high - f.value for f in kept]]
            axes.errorbar(shares, [f.value for f in kept], yerr=errors, fmt="o-", color=colour, capsize=3, label=label)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.axhline(0.0, color="0.5", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("edges, as a share of all")
    axes.set_ylabel("faithfulness (95% interval over prompts)")
    areas = f"\nCPR {result.cpr}, CMD {result.cmd}" if result.cpr is not None else ""
    axes.set_title(title + areas, fontsize=10, parse_math=False)
    axes.legend(frameon=False, fontsize=9)
    return figure
