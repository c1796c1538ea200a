"""ROC curves and score distributions on the test split."""

from typing import Any

import numpy as np

from eics.studies.statistics import Numbers
from eics.studies.validation.analysis import Validation
from eics.studies.validation.columns import BY_NAME, REFERENCE
from eics.studies.validation.metrics import cumulative

_CURVES = ("eics_paper_alpha", "eics_well_posed", "propagated", REFERENCE)
_HISTOGRAMS = ("eics_paper", "dei_paper", "eics_well_posed", "propagated", REFERENCE, "length")
_BINS = 24
_COLUMNS = 3

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222")
"""Okabe-Ito: readable without colour vision."""


def roc(validation: Validation) -> Any:
    """ROC curves of the main scores, max-probability and the strongest suspect, in their development direction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 7.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
    names = [name for name in (*_CURVES, validation.comparison.suspect) if name in validation.results]
    for index, name in enumerate(dict.fromkeys(names)):
        label = f"{BY_NAME[name].title}: {validation.results[name].auroc}"
        axes.plot(*_rates(validation, name), color=COLOURS[index], label=label, linewidth=1.6)
    axes.set(xlabel="wrong prompts called correct", ylabel="correct prompts called correct")
    correct, wrong = validation.counts.test
    axes.set_title(f"test split: {correct} correct, {wrong} wrong", fontsize=11)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", title="AUROC (95% interval)", title_fontsize=8)
    axes.set_box_aspect(1)
    return figure


def distributions(validation: Validation) -> Any:
    """Histograms of scores over the test prompts, correct and wrong ones apart."""
    from matplotlib.figure import Figure

    names = [name for name in _HISTOGRAMS if name in validation.columns.values]
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(11, 2.4 * rows), layout="constrained")
    grid = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    test, labels = validation.columns.test, validation.columns.labels
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(grid, names, strict=False):
        values = validation.columns.values[name]
        shown = {"correct": values[test & labels], "wrong": values[test & ~labels]}
        low, high = float(min(map(np.min, shown.values()))), float(max(map(np.max, shown.values())))
        bounds = (low, high) if low < high else (low - 0.5, high + 0.5)
        for (label, part), colour in zip(shown.items(), COLOURS, strict=False):
            counts, edges = np.histogram(part, bins=_BINS, range=bounds)
            axes.stairs(counts, edges, color=colour, label=label, linewidth=1.3)
        axes.set_title(BY_NAME[name].title, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=5)
    grid[0].legend(frameon=False, fontsize=8)
    return figure


def _rates(validation: Validation, name: str) -> tuple[Numbers, Numbers]:
    """False and true positive rates of the directed score."""
    test = validation.columns.test
    labels = validation.columns.labels[test]
    values = validation.results[name].decision.sign * validation.columns.values[name][test]
    tp, n = cumulative(values, labels, np.ones((1, len(labels))))
    fp = n - tp
    return np.append(0, fp[0] / fp[0, -1]), np.append(0, tp[0] / tp[0, -1])
