"""Large reference sets: what grows with the number of prompts, in bytes, and what stays exact while nothing is slow."""

import dataclasses
import gc
import tracemalloc

import numpy as np
import pytest
import torch

import eics
from eics.linalg.memory import memory_limit
from eics.models.prompts import as_prompts
from eics.scoring.calibration.sheaf.assign import assign
from eics.scoring.calibration.sheaf.bases import ROWS, Coordinates
from eics.scoring.calibration.sheaf.learned import mean_by_prompt
from eics.scoring.calibration.sheaf.reader import Reader
from eics.scoring.calibration.sheaf.reference import Reference
from eics.scoring.calibration.summary import _quantiles, _robust, contamination, node_summaries, sheaf_sentences
from eics.scoring.options import CALIBRATED
from eics.transformer.forward import run
from support.learned import random_prompts, small, small_calibration
from support.live_bytes import LiveBytes


def peak_of_fit(prompts, **how):
    """The most bytes of tensors that are alive at any time of a fit."""
    model, circuit = small()
    gc.collect()
    with LiveBytes() as live:
        eics.calibrate(model, circuit, prompts, terms="sheaf", batch_size=64, **how)
    return live.peak


def test_the_fit_takes_three_numbers_for_each_node_and_calibration_prompt():
    """A quarter of the prompts calibrates; their distances are held in at most four copies while they are put in order
    and standardised. Everything else is there for 2,000 prompts as for 8,000."""
    prompts = as_prompts(random_prompts(8000))
    peak_of_fit(prompts[:200])  # whatever depends on weights alone is cached with the model
    peaks = [peak_of_fit(prompts[:count]) for count in (2000, 8000)]
    nodes = len(small()[1].inner)
    assert (peaks[1] - peaks[0]) / 6000 < 0.25 * 4 * 3 * 8 * nodes


def test_prompts_themselves_take_a_few_hundred_bytes_each():
    model, circuit = small()
    sizes = []
    for count in (2000, 8000):
        prompts = as_prompts(random_prompts(count))
        reader = Reader(model, circuit, CALIBRATED, "answer", 8)
        tracemalloc.start()
        items = reader.items(prompts, None, seed=0)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(items) == count
    assert (sizes[1] - sizes[0]) / 6000 < 320


def test_every_position_of_the_basis_prompts_is_never_held_at_once():
    """Prompts five times as long: a batch takes five times as much, the 256 basis prompts do not."""
    _, circuit = small()
    row = 4 * 24 * (len(circuit.order) + len(circuit.inner))
    peaks = [peak_of_fit(random_prompts(400, least=n, most=n), at="all", memory=1) for n in (6, 30)]
    assert peaks[1] - peaks[0] < 256 * (30 - 6) * row


@pytest.mark.parametrize("draw", ["normal", "ties", "constant"])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 40, 41])
def test_robust_deviations_are_exactly_those_of_a_loop(draw, count):
    rng = np.random.default_rng(count)
    drawn = {"normal": rng.normal(size=count), "ties": rng.integers(0, 3, size=count) / 3.0, "constant": np.ones(count)}
    values = torch.from_numpy(drawn[draw])
    by_hand = []
    for index in range(count):
        others = torch.cat([values[:index], values[index + 1 :]])
        middle = others.quantile(0.5)
        spread = 1.4826 * (others - middle).abs().quantile(0.5)
        by_hand.append((values[index] - middle) / spread.clamp(min=1e-12))
    assert torch.equal(_robust(values), torch.stack(by_hand))


def test_quantiles_by_column_copy_one_column():
    values = torch.randn(3000, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with LiveBytes() as live:
        found = _quantiles(values, 0.95)
    assert live.peak < values.nbytes / 4
    assert torch.equal(found, values.quantile(0.95, dim=0))


def test_a_file_with_thirty_thousand_calibration_prompts(tmp_path):
    calibration = small_calibration()
    learned, count = calibration.learned, 30_000
    draw = torch.Generator().manual_seed(0)
    logs = [torch.randn(count, len(learned.sheaf.layout.judged), generator=draw, dtype=torch.float64) for _ in range(3)]
    ids = tuple(f"a-prompts-file-with-a-long-name.jsonl:{line}" for line in range(count))
    reference = Reference(*logs, learned.reference.judged)
    large = dataclasses.replace(
        calibration, learned=dataclasses.replace(learned, reference=reference, ids=ids, fitted=3 * count)
    )
    eics.save_calibration(large, tmp_path / "large.safetensors")
    again = eics.load_calibration(tmp_path / "large.safetensors")
    assert again.learned.ids == ids
    assert again.sha256 == large.sha256
    assert contamination(again.learned) == contamination(large.learned)
    assert len(node_summaries(again.learned)) == len(learned.sheaf.layout.judged)
    assert list(sheaf_sentences(again.learned))


def test_kept_rows_are_judged_again_in_bytes_that_grow_with_the_rows_alone():
    """Two rows for each of 4,000 prompts: a table of rows by prompts would take 256 MB."""
    sheaf = dataclasses.replace(small_calibration().learned.sheaf, at="all")
    nodes, prompts = len(sheaf.layout.judged), 4000
    draw = torch.Generator().manual_seed(0)
    shapes = {name: (nodes, 2 * prompts, *more) for name, more in ROWS.items()}
    at = Coordinates(**{name: torch.rand(shape, generator=draw) for name, shape in shapes.items()})
    prompt = torch.randperm(2 * prompts, generator=draw) % prompts
    with memory_limit(8), LiveBytes() as live:
        found = mean_by_prompt(sheaf.by_row_of(at, prompt), at.counts, prompt, prompts)
    assert live.peak < 50 * (1 << 20)
    mine = prompt == 17
    by_row = sheaf.regressions.distances(Coordinates(**{name: getattr(at, name)[:, mine].double() for name in ROWS}))
    weights = at.counts[:, mine].double()
    by_hand = (by_row.whole * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    torch.testing.assert_close(found.whole[:, 17], by_hand)


def written_out(learned, prompts, groups):
    """r2 aside, what `node_summaries` says of each node, from the definition: writes of the fit part, S_v and D_v^2."""
    model, circuit = small()
    fitting = [tokens for tokens, group in zip(prompts, groups, strict=True) if assign(f"group:{group}", 0).fits]
    bases, fit, found = learned.sheaf.bases, learned.sheaf.regressions, {}
    states = [run(model, [tokens], circuit, nodes=("logits",)) for tokens in fitting]
    for place, node in enumerate(learned.sheaf.layout.judged):
        at_last = (state.final if node == "logits" else state.write(node) for state in states)
        writes = np.stack([write[0, -1].double().numpy() for write in at_last])
        count, row = int(bases.outputs[place]), int(bases.places[place])
        own = (writes - bases.write_mean[row].numpy()) @ bases.write[row, :count].numpy().T
        factor = fit.whitener[place, :count, :count].numpy()
        whole = np.exp(learned.reference.log_whole[:, place].numpy())
        excess = np.quantile(whole, 0.95) - whole.mean()
        rms = np.sqrt(((own - own.mean(axis=0)) ** 2).sum(axis=1).mean())
        found[node] = np.sqrt(count**2 * excess / np.trace(factor.T @ factor)) / rms if excess >= 0 else None
    return found


def test_the_smallest_change_that_is_noticed_is_that_of_the_definition():
    model, circuit = small()
    prompts, groups = random_prompts(220), [f"g{place}" for place in range(220)]
    learned = eics.calibrate(model, circuit, prompts, group=groups, terms="sheaf").learned
    by_hand = written_out(learned, prompts, groups)
    rows = node_summaries(learned)
    assert {row.node for row in rows} == set(by_hand)
    for row in rows:
        assert row.notices == (by_hand[row.node] if row.reason else pytest.approx(by_hand[row.node], rel=1e-3))
    known = [row.notices for row in rows if row.notices is not None]
    assert known == sorted(known, reverse=True)


def test_where_a_few_prompts_stand_out_nothing_is_said_of_the_smallest_change():
    learned = small_calibration().learned
    spoilt = learned.reference.log_whole.clone()
    spoilt[0, 1] = 20.0  # one prompt carries the mean above all other quantiles
    odd = dataclasses.replace(learned, reference=dataclasses.replace(learned.reference, log_whole=spoilt))
    before, after = ({row.node: row.notices for row in node_summaries(one)} for one in (learned, odd))
    node = learned.sheaf.layout.judged[1]
    assert after[node] is None
    assert before[node] is not None
    assert {name for name in before if before[name] != after[name]} == {node}
