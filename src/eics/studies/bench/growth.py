"""How cost grows with positions, nodes, edges, width and batch, one at a time, with a curve per mode.

Positions grow on a single prompt, width on two-layer models. Circuits are random; on the axis of edges they have about
2 sqrt(edges) nodes, at most 150, and heads are entered through ports, so that there is room for all the edges. A curve
ends once a point takes longer than the limit, or the next one is expected to, by extrapolation from the last two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt, log
from typing import Any

from eics.models.base import Model
from eics.reporting.plots import COLOURS, panels
from eics.scoring.options import PAPER
from eics.studies.bench.circuits import random_circuit
from eics.studies.bench.measure import Spread
from eics.studies.bench.rows import GIVEN, Row, Setting
from eics.studies.bench.run import Bench, ForwardResult, Plan
from eics.studies.bench.shapes import gpt2, random_model

SIZES: dict[str, tuple[int, ...]] = {
    "positions": (8, 32, 128, 512),
    "nodes": (4, 16, 50, 150),
    "edges": (10, 100, 1000, 10000),
    "width": (256, 512, 1024, 2048, 4096),
    "batch": (1, 8, 32, 128),
}
CURVES = (("fast", "frozen"), ("fast", "jacobian"), ("exact", "frozen"), ("exact", "jacobian"))
_EDGES_PER_NODE = 3


@dataclass(frozen=True)
class Point:
    """The cost at one size of one curve."""

    axis: str
    size: int
    mode: str
    linearization: str
    forward_equivalents: Spread
    seconds: float
    flop_ratio: float

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"forward_equivalents": self.forward_equivalents.to_json()}


def steps() -> int:
    """The largest possible number of points."""
    return len(CURVES) * sum(map(len, SIZES.values()))


def grow(
    model: Model,
    setting: Setting,
    *,
    limit: float = 5.0,
    repeats: int = 3,
    sizes: dict[str, tuple[int, ...]] = SIZES,
    tick: Callable[[], None] = lambda: None,
    done: Callable[[Sequence[Point]], None] = lambda _: None,
) -> tuple[Point, ...]:
    """Measures every curve; `tick` is called once per point, even a skipped one, `done` with all points so far."""
    points: list[Point] = []
    plan = Plan(repeats=repeats, budget=limit)
    for axis, axis_sizes in sizes.items():
        curves: dict[tuple[str, str], list[Point]] = {curve: [] for curve in CURVES}
        for size in axis_sizes:
            affordable = [curve for curve in CURVES if expected_seconds(curves[curve], size) <= limit]
            if affordable:
                bench = _sized(model, setting, plan, axis, size)
                plain = bench.measure_forward()
            for curve in CURVES:
                if curve in affordable:
                    curves[curve].append(_point(bench, axis, size, curve, plain))
                    points.append(curves[curve][-1])
                tick()
            done(tuple(points))
    return tuple(points)


def expected_seconds(points: Sequence[Point], size: int) -> float:
    """Seconds that the next point of a curve should take: by the slope of the last two on logarithmic axes, or in
    proportion to the size after a single one. So a curve that has ended stays ended."""
    if not points:
        return 0.0
    last, slope = points[-1], 1.0
    if len(points) > 1:
        before = points[-2]
        slope = max(0.0, log(last.seconds / before.seconds) / log(last.size / before.size))
    return float(last.seconds * (size / last.size) ** slope)


def _point(bench: Bench, axis: str, size: int, curve: tuple[str, str], plain: ForwardResult) -> Point:
    mode, linearization = curve
    row = Row("-".join((axis, str(size), *curve)), GIVEN, (PAPER.with_(mode=mode, linearization=linearization),))
    result = bench.measure(row, plain)
    return Point(axis, size, mode, linearization, result.timing.ratio, result.timing.seconds.median, result.flop_ratio)


def _sized(model: Model, setting: Setting, plan: Plan, axis: str, size: int) -> Bench:
    blocks = model.transformer.blocks
    circuit = partial(random_circuit, layers=len(blocks), heads=blocks[0].attention.heads)
    if axis == "positions":
        return Bench(model, replace(setting, batch=1, tokens=size), plan, circuit(16, 44))
    if axis == "batch":
        return Bench(model, replace(setting, batch=size), plan, circuit(16, 44))
    if axis == "nodes":
        return Bench(model, setting, plan, circuit(size, _EDGES_PER_NODE * size - 6))
    if axis == "edges":
        nodes = min(150, max(5, 2 * isqrt(size)))
        return Bench(model, setting, plan, circuit(nodes, size, ports=True))
    heads = size // 64
    shape = gpt2(size, 2, heads, 1000, 64)
    wide = random_model(shape, name=f"width {size}", device=setting.device, dtype=setting.dtype)
    setting = replace(setting, shape=None, tokens=min(setting.tokens, 64))
    return Bench(wide, setting, plan, random_circuit(8, 16, layers=2, heads=heads))


def growth_figure(points: Sequence[Point]) -> Any:
    """A panel per axis, doubly logarithmic; markers are medians, bars quartiles, dotted lines FLOPs."""
    names = list(dict.fromkeys(point.axis for point in points))
    figure, axes = panels(2.6 * len(names) + 1.6, 3.4, columns=len(names), sharey=True)
    for panel, axis in zip(axes, names, strict=True):
        for curve in CURVES:
            _draw_curve(panel, [p for p in points if p.axis == axis and (p.mode, p.linearization) == curve])
        panel.set_xscale("log")
        panel.set_yscale("log")
        sizes = sorted({point.size for point in points if point.axis == axis})
        panel.set_xticks(sizes, labels=[f"{size:,}" for size in sizes], fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel(axis)
        panel.axhline(1.0, color="0.6", linewidth=0.8)
        panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    axes[0].set_ylabel("forward-equivalents")
    axes[0].plot([], [], color="0.4", linestyle=":", linewidth=0.9, label="FLOPs over the pass's")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _draw_curve(panel: Any, points: Sequence[Point]) -> None:
    if not points:
        return
    mode, linearization = points[0].mode, points[0].linearization
    colour = COLOURS[0] if mode == "fast" else COLOURS[1]
    filled = linearization == "frozen"
    sizes, ratios = [p.size for p in points], [p.forward_equivalents for p in points]
    quartiles = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
    panel.errorbar(
        sizes, [r.median for r in ratios], quartiles, color=colour, marker="o" if filled else "s", markersize=4,
        linewidth=1.2, markerfacecolor=colour if filled else "none", label=f"{mode}, {linearization}",
    )  # fmt: skip
    panel.plot(sizes, [p.flop_ratio for p in points], color=colour, linestyle=":", linewidth=0.9, alpha=0.8)
