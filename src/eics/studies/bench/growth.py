"""How cost grows: positions, nodes, edges, width and batch, one at a time, each mode a curve.

Positions are grown on one prompt, nodes and edges on random circuits (to have room for many edges, nodes grow with
the root of their number, up to 150, and heads are entered through ports), width on two-layer models, batch on `medium`.
A curve ends where a point took longer than the limit, or where the next would: as it grew from the one before last to
the last, so it is expected to grow on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt, log
from typing import Any

from eics.models.base import Model
from eics.scoring.options import PAPER
from eics.studies.bench.circuits import random_circuit
from eics.studies.bench.measure import Spread
from eics.studies.bench.rows import GIVEN, Row, Setting
from eics.studies.bench.run import Bench, Plan
from eics.studies.bench.shapes import gpt2, random_model

SIZES: dict[str, tuple[int, ...]] = {
    "positions": (8, 32, 128, 512),
    "nodes": (4, 16, 50, 150),
    "edges": (10, 100, 1000, 10000),
    "width": (256, 512, 1024, 2048, 4096),
    "batch": (1, 8, 32, 128),
}
CURVES = (("fast", "frozen"), ("fast", "jacobian"), ("exact", "frozen"), ("exact", "jacobian"))
_FEW_EDGES_A_NODE = 3


@dataclass(frozen=True)
class Point:
    """One size of one curve."""

    axis: str
    size: int
    mode: str
    linearization: str
    ratio: Spread
    seconds: float
    flop_ratio: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "axis": self.axis,
            "size": self.size,
            "mode": self.mode,
            "linearization": self.linearization,
            "forward_equivalents": self.ratio.to_json(),
            "seconds": self.seconds,
            "flop_ratio": self.flop_ratio,
        }


@dataclass(frozen=True)
class Growth:
    """All points."""

    points: tuple[Point, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """A list of points."""
        return [point.to_json() for point in self.points]


def steps(sizes: dict[str, tuple[int, ...]] = SIZES) -> int:
    """How many points there are at most."""
    return len(CURVES) * sum(map(len, sizes.values()))


def grow(
    model: Model,
    setting: Setting,
    *,
    limit: float = 5.0,
    repeats: int = 3,
    sizes: dict[str, tuple[int, ...]] = SIZES,
    tick: Callable[[], None] = lambda: None,
    done: Callable[[Growth], None] = lambda growth: None,  # noqa: ARG005
) -> Growth:
    """Measures every curve; `tick` is called for each point, those left out included, `done` with all points so far."""
    points: list[Point] = []
    plan = Plan(repeats=repeats, budget=limit)
    for axis, chosen in sizes.items():
        known: dict[tuple[str, str], list[Point]] = {curve: [] for curve in CURVES}
        for size in chosen:
            going = [curve for curve, found in known.items() if expected_seconds(found, size) <= limit]
            if going:
                bench = _sized(model, setting, plan, axis, size)
                plain = bench.measure_forward()
            for curve in CURVES:
                if curve in going:
                    known[curve].append(_point(bench, axis, size, curve, plain))
                    points.append(known[curve][-1])
                tick()
            done(Growth(tuple(points)))
    return Growth(tuple(points))


def expected_seconds(points: Sequence[Point], size: int) -> float:
    """What a curve's next point will take: by the slope of its last two on logarithmic axes, in proportion to its size
    where there is one only. A curve that was left stays so."""
    if not points:
        return 0.0
    last, slope = points[-1], 1.0
    if len(points) > 1:
        before = points[-2]
        slope = max(0.0, log(last.seconds / before.seconds) / log(last.size / before.size))
    return float(last.seconds * (size / last.size) ** slope)


def _point(bench: Bench, axis: str, size: int, curve: tuple[str, str], plain: Any) -> Point:
    mode, way = curve
    row = Row("-".join((axis, str(size), *curve)), GIVEN, (PAPER.with_(mode=mode, linearization=way),))
    result = bench.measure(row, plain)
    return Point(axis, size, mode, way, result.timing.ratio, result.timing.seconds.median, result.flop_ratio)


def _sized(model: Model, setting: Setting, plan: Plan, axis: str, size: int) -> Bench:
    blocks = model.transformer.blocks
    some = partial(random_circuit, layers=len(blocks), heads=blocks[0].attention.heads)
    if axis == "positions":
        return Bench(model, replace(setting, batch=1, tokens=size), plan, some(16, 44))
    if axis == "batch":
        return Bench(model, replace(setting, batch=size), plan, some(16, 44))
    if axis == "nodes":
        return Bench(model, setting, plan, some(size, _FEW_EDGES_A_NODE * size - 6))
    if axis == "edges":
        nodes = min(150, max(5, 2 * isqrt(size)))
        return Bench(model, setting, plan, some(nodes, size, ports=True))
    return _wide(setting, plan, size)


def _wide(setting: Setting, plan: Plan, width: int) -> Bench:
    heads = width // 64
    shape = gpt2(width, 2, heads, 1000, 64)
    model = random_model(shape, name=f"width {width}", device=setting.device, dtype=setting.dtype)
    circuit = random_circuit(8, 16, layers=2, heads=heads)
    return Bench(model, replace(setting, shape=None, tokens=min(setting.tokens, 64)), plan, circuit)


def growth_figure(growth: Growth) -> Any:
    """A panel for each axis, doubly logarithmic; markers are medians, bars quartiles, dashes FLOPs."""
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(point.axis for point in growth.points))
    figure = Figure(figsize=(2.6 * len(axes_names) + 1.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(axes_names), sharey=True, squeeze=False)[0]
    colours = {"fast": "#0072B2", "exact": "#D55E00"}  # Okabe-Ito
    markers = {"frozen": "o", "jacobian": "s"}
    for panel, axis in zip(panels, axes_names, strict=True):
        for (mode, way), points in _curves(growth, axis):
            x, y = [p.size for p in points], [p.ratio.median for p in points]
            spread = [
                [p.ratio.median - p.ratio.low for p in points],
                [p.ratio.high - p.ratio.median for p in points],
            ]
            panel.errorbar(
                x, y, spread, color=colours[mode], marker=markers[way], markersize=4, linewidth=1.2,
                markerfacecolor="none" if way == "jacobian" else colours[mode], label=f"{mode}, {way}",
            )  # fmt: skip
            panel.plot(x, [p.flop_ratio for p in points], color=colours[mode], linestyle=":", linewidth=0.9, alpha=0.8)
        panel.set_xscale("log")
        panel.set_yscale("log")
        sizes = sorted({point.size for point in growth.points if point.axis == axis})
        panel.set_xticks(sizes, labels=[f"{size:,}" for size in sizes], fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel(axis)
        panel.axhline(1.0, color="0.6", linewidth=0.8)
        panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    panels[0].set_ylabel("forward-equivalents")
    panels[0].plot([], [], color="0.4", linestyle=":", linewidth=0.9, label="FLOPs over the pass's")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _curves(growth: Growth, axis: str) -> Iterator[tuple[tuple[str, str], list[Point]]]:
    for curve in CURVES:
        points = [p for p in growth.points if p.axis == axis and (p.mode, p.linearization) == curve]
        if points:
            yield curve, points
