"""Figures of studies, read back: every bar stands at the label of its score."""

import numpy as np
import pytest

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.statistics import CorrectedInterval
from eics.studies.tracking.analysis import POOLED, TARGETS, OverPrompts
from eics.studies.tracking.figure import tracking_figure
from eics.studies.tracking.scores import SCORES
from eics.studies.tracking.words import NAMES

ROWS = [
    {"task": "t", "kind": "discovered", "propagated_mean": x, **{f"kl_{a}": x for a in ABLATIONS}} for x in (0.1, 0.2)
]


def finding(target, score, ablation, value):
    interval = CorrectedInterval(value, value - 0.01, value + 0.01, value - 0.02, value + 0.02)
    return OverPrompts(POOLED, "discovered", ablation, target, score, 9, *[interval] * 5)


def test_correlations_stand_at_their_labels_even_if_a_panel_lacks_some():
    """The panels share their rows: a score that only one of them has must not move the bars of the other."""
    names = list(SCORES)
    rng = np.random.default_rng(0)
    values = {
        (target, name, ablation): float(rng.uniform(0.1, 0.9))
        for target, own in zip(TARGETS, (names[1:], names[:-1]), strict=True)
        for name in own
        for ablation in ABLATIONS
    }
    figure = tracking_figure(ROWS, [finding(*key, value) for key, value in values.items()])
    labelled = figure.axes[-2]
    ticks = dict(zip((t.get_text() for t in labelled.get_yticklabels()), labelled.get_yticks(), strict=True))
    for axes, target in zip(figure.axes[-2:], TARGETS, strict=True):
        bars = [bar for bar in axes.patches if bar.get_width()]
        for name in names:
            at = ticks[NAMES.get(name, name)]
            widths = sorted(bar.get_width() for bar in bars if abs(bar.get_y() + bar.get_height() / 2 - at) < 0.4)
            assert widths == pytest.approx(sorted(v for key, v in values.items() if key[:2] == (target, name)))
