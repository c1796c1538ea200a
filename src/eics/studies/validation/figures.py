"""ROC curves and distributions of the test split."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eics.studies.validation.analysis import Validation
from eics.studies.validation.columns import BY_NAME, REFERENCE
from eics.studies.validation.metrics import cumulated

_CURVES = ("eics_paper_alpha", "eics_well_posed", "propagated", REFERENCE)
_SPREADS = ("eics_paper", "dei_paper", "eics_well_posed", "propagated", REFERENCE, "length")
_BINS = 24

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222")
"""Okabe-Ito: readable without colour vision."""


def roc(found: Validation) -> Any:
    """ROC curves of the score, its companions, max-probability and the strongest suspect, directed on development."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 7.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
    names = [name for name in (*_CURVES, found.comparison.suspect) if name in found.results]
    for index, name in enumerate(dict.fromkeys(names)):
        false, true = _curve(found, name)
        label = f"{BY_NAME[name].title}: {found.results[name].auroc}"

        axes.plot(false, true, color=COLOURS[index], label=label, linewidth=1.6)
    axes.set(xlabel="wrong prompts called correct", ylabel="correct prompts called correct")
    axes.set_title(f"test split: {found.counts.test[0]} correct, {found.counts.test[1]} wrong", fontsize=11)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", title="AUROC (95% interval)", title_fontsize=8)
    axes.set_box_aspect(1)
    return figure


def distributions(found: Validation) -> Any:
    """How scores are spread over the test prompts, correct and wrong apart."""
    from matplotlib.figure import Figure

    names = [name for name in _SPREADS if name in found.columns.values]
    columns = 3
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(11, 2.4 * rows), layout="constrained")
    grid: Sequence[Any] = list(figure.subplots(rows, columns, squeeze=False).flat)
    test, labels = found.columns.test, found.columns.labels
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(grid, names, strict=False):
        values = found.columns.values[name]
        shown = [values[test & labels], values[test & ~labels]]
        low, high = float(min(map(np.min, shown))), float(max(map(np.max, shown)))
        bounds = (low, high) if low < high else (low - 0.5, high + 0.5)
        for some, colour, label in zip(shown, COLOURS, ("correct", "wrong"), strict=False):
            counts, edges = np.histogram(some, bins=_BINS, range=bounds)
            axes.stairs(counts, edges, color=colour, label=label, linewidth=1.3)
        axes.set_title(BY_NAME[name].title, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=5)
    grid[0].legend(frameon=False, fontsize=8)
    return figure


def _curve(found: Validation, name: str) -> tuple[Any, Any]:
    test = found.columns.test
    labels = found.columns.labels[test]
    values = found.results[name].decision.sign * found.columns.values[name][test]
    tp, n = cumulated(values, labels, np.ones((1, len(labels))))
    fp = n - tp
    return np.append(0, fp[0] / fp[0, -1]), np.append(0, tp[0] / tp[0, -1])
