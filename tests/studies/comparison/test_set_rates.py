"""On the bundled model of people: equal sets have entries as rarely as the level says; a changed node comes first."""

import functools

import numpy as np
import pytest

import eics
from eics.scoring.calibration.sheaf.assign import assign
from eics.studies.comparison.set_statistics import Sample, shifts
from support.prompt_sets import people, people_lines, people_table, table, usual

LEVEL, SPLITS = 0.1, 200


def names():
    return list(usual().learned.sheaf.layout.judged)


def entries(a, b, groups_a, groups_b, *, paired=False, level=LEVEL):
    """Which nodes are entries, the most shifted first."""
    found = shifts(Sample.of(a, groups_a), Sample.of(b, groups_b), paired=paired, resamples=2)
    order = np.argsort(-np.abs(found.value))
    return [int(node) for node in order if found.q[node] < level]


def check_rates(found, nodes):
    """`found` has the entries of each split."""
    limit = LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / len(found))
    assert np.mean([bool(one) for one in found]) < limit
    each = np.bincount([node for one in found for node in one], minlength=nodes) / len(found)
    assert each.max() <= LEVEL


def people_groups(part=1):
    return np.array([line["person"] for line in people_lines(part)])


@pytest.mark.parametrize("number", [0, 1])  # z, the whitened write
@pytest.mark.parametrize("size", [50, None])
def test_halves_of_a_set_that_did_not_teach(number, size):
    numbers, groups, found = people_table()[number], people_groups(), []
    for split in range(SPLITS):
        draw = np.random.default_rng([11, split])
        if size is None:  # whole people, tested by person
            in_a = np.isin(groups, draw.permutation(np.unique(groups))[: len(np.unique(groups)) // 2])
            a, b = np.flatnonzero(in_a), np.flatnonzero(~in_a)
        else:  # one prompt of each of a hundred people
            once = [int(draw.choice(np.flatnonzero(groups == person))) for person in np.unique(groups)]
            a, b = np.split(draw.permutation(once)[: 2 * size], 2)
        found.append(entries(numbers[a], numbers[b], groups[a], groups[b]))
    check_rates(found, numbers.shape[1])


def test_halves_of_a_set_in_pairs():
    """Two prompts of one person are a pair; which of them is in A is drawn."""
    numbers, groups = people_table()[0], people_groups()
    pairs = [np.flatnonzero(groups == person)[:2] for person in np.unique(groups)]
    pairs = np.array([pair for pair in pairs if len(pair) == 2])
    found = []
    for split in range(SPLITS):
        draw = np.random.default_rng([12, split])
        turned = np.where(draw.random(len(pairs))[:, None] < 0.5, pairs, pairs[:, ::-1])
        persons = groups[turned[:, 0]]
        found.append(entries(numbers[turned[:, 0]], numbers[turned[:, 1]], persons, persons, paired=True))
    check_rates(found, numbers.shape[1])


@functools.cache
def fitted_on_a_half(split):
    """A calibration from half of the people of part 1, and the numbers of all."""
    draw, groups = np.random.default_rng([13, split]), people_groups()
    in_a = np.isin(groups, draw.permutation(np.unique(groups))[: len(np.unique(groups)) // 2])
    lines = [line for line, chosen in zip(people_lines(1), in_a, strict=True) if chosen]
    calibration = eics.calibrate(
        *people(),
        [line["prompt"] for line in lines],
        group=[line["person"] for line in lines],
        terms="sheaf",
        batch_size=64,
        seed=split,
    )
    taught = np.array([assign(f"group:{group}", split).fits for group in groups])
    return in_a, taught, table(people_lines(1), calibration=calibration, batch_size=64)


def test_halves_of_a_set_of_which_one_taught():
    """Without a calibration: only what taught nothing is compared. Few splits, since each takes a fit."""
    found, groups = [], people_groups()
    for split in range(4):
        in_a, taught, (z, _) = fitted_on_a_half(split)
        a, b = np.flatnonzero(in_a & ~taught), np.flatnonzero(~in_a)
        found.append(entries(z[a], z[b], groups[a], groups[b]))
    assert sum(bool(one) for one in found) <= 2  # of 4 at 10%: more has a probability below 0.4%


def test_prompts_that_taught_look_more_usual():
    """Why they are left out."""
    in_a, taught, (z, _) = fitted_on_a_half(0)
    groups, a, b = people_groups(), np.flatnonzero(in_a & taught), np.flatnonzero(~in_a)
    assert entries(z[a], z[b], groups[a], groups[b])
    assert z[a].mean() < z[b].mean()


@functools.cache
def changed(node):
    """The places of prompts on which a node writes what it writes on another one, and z of these runs."""
    lines, draw = people_lines(1), np.random.default_rng([14, names().index(node)])
    places = draw.permutation(len(lines))[:80]
    donors = draw.integers(len(lines), size=len(places))
    patches = {
        lines[place]["id"]: [eics.Patch(node, prompt=lines[donor]["prompt"], at="last")]
        for place, donor in zip(places, donors, strict=True)
    }
    return places, table([lines[place] for place in places], patches)[0]


def first_entries(node, repetitions=20, size=50):
    """The first entry of each repetition, or None."""
    numbers, (places, runs) = people_table()[0], changed(node)
    firsts = []
    for repetition in range(repetitions):
        draw = np.random.default_rng([15, repetition])
        rows = draw.permutation(len(places))[:size]
        in_a = draw.permutation(np.setdiff1d(np.arange(len(numbers)), places[rows]))[:size]
        labels = [str(row) for row in range(size)]
        found = entries(numbers[in_a], runs[rows], labels, labels, level=0.05)
        firsts.append(names()[found[0]] if found else None)
    return firsts


def test_a_changed_node_is_the_first_entry():
    """At 50 prompts, in 95% of repetitions at every node of which the circuit explains something."""
    r2 = dict(zip(names(), usual().learned.sheaf.regressions.r2.tolist(), strict=True))
    explained = [node for node in names() if node != "logits" and r2[node] > 0.2]
    assert len(explained) >= 20
    for node in explained:
        assert np.mean([first == node for first in first_entries(node)]) >= 0.95, node


def test_a_node_that_is_not_explained_is_not_found():
    """Another prompt's write is as usual there as its own; the sentences name such nodes."""
    assert usual().learned.sheaf.regressions.r2[names().index("a0.h3")] < 0.1
    assert np.mean([first == "a0.h3" for first in first_entries("a0.h3")]) < 0.2
