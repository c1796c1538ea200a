"""A sheaf learned from a reference set: closed forms against scikit-learn and numpy, and what a user relies on."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.linear_model import Ridge as SklearnRidge

import eics
from eics.errors import OptionError
from eics.models.prompts import as_prompts
from eics.scoring.calibration.sheaf.assign import FOLDS, assign
from eics.scoring.calibration.sheaf.bases import OUTPUTS, REGRESSORS, Bases, Coordinates, coordinates
from eics.scoring.calibration.sheaf.learned import TINY, Distances
from eics.scoring.calibration.sheaf.moments import Moments
from eics.scoring.calibration.sheaf.reader import Reader
from eics.scoring.calibration.sheaf.reference import Reference
from eics.scoring.calibration.sheaf.ridge import PENALTIES, fit_ridge
from eics.scoring.options import CALIBRATED
from eics.transformer.adapt import adapt
from support.learned import random_prompts, small, small_calibration
from support.tiny_models import full_circuit, tiny_module

X = 2 * REGRESSORS


def drawn(rows: int, nodes: int = 2, seed: int = 0, outputs: int = OUTPUTS) -> tuple[Coordinates, torch.Tensor]:
    """Coordinates in which y follows from a few of the x, with noise of unequal sizes; and folds of unequal sizes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(nodes, rows, X)) * np.geomspace(10, 0.01, X) + rng.normal(size=X)
    mix = rng.normal(size=(nodes, X, OUTPUTS)) * (rng.random((nodes, X, 1)) < 0.1)
    y = x @ mix + rng.normal(size=(nodes, rows, OUTPUTS)) * np.geomspace(3, 0.1, OUTPUTS) + 2.0
    y[..., outputs:] = 0.0
    energies = [torch.from_numpy(rng.random((nodes, rows))) for _ in range(5)]
    counts = torch.ones(nodes, rows, dtype=torch.float64)
    fold = torch.from_numpy(rng.choice(FOLDS, size=rows, p=[0.3, 0.25, 0.2, 0.15, 0.1]))
    return Coordinates(torch.from_numpy(y), torch.from_numpy(x), *energies, counts), fold


@pytest.mark.parametrize("outputs", [OUTPUTS, 5])
def test_the_regression_is_that_of_scikit_learn_fold_by_fold(outputs):
    at, fold = drawn(400, outputs=outputs)
    ridge = fit_ridge(Moments.of(at, fold, 400), torch.full((2,), outputs))
    for node in range(2):
        x, y = at.regressors[node].numpy(), at.outputs[node].numpy()
        standard = (x - x.mean(axis=0)) / x.std(axis=0)
        by_penalty = {}
        for penalty in PENALTIES:
            residuals = np.zeros_like(y)
            for index in range(FOLDS):
                held = fold.numpy() == index
                fitted = SklearnRidge(alpha=penalty).fit(standard[~held], y[~held])
                residuals[held] = y[held] - fitted.predict(standard[held])
            by_penalty[penalty] = residuals
        best = min(by_penalty, key=lambda penalty: (by_penalty[penalty] ** 2).sum())
        residuals = by_penalty[best]
        assert float(ridge.penalty[node]) == best
        whole = SklearnRidge(alpha=best).fit(standard, y)
        np.testing.assert_allclose(ridge.weight[node].numpy().T, whole.coef_, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(ridge.intercept[node].numpy(), y.mean(axis=0), rtol=1e-10)
        centred = (residuals - residuals.mean(axis=0))[:, :outputs]
        expected = OAS(assume_centered=True).fit(centred).covariance_
        np.testing.assert_allclose(ridge.covariance[node].numpy()[:outputs, :outputs], expected, rtol=1e-7, atol=1e-10)
        r2 = 1 - (residuals**2).sum() / ((y - y.mean(axis=0)) ** 2).sum()
        np.testing.assert_allclose(float(ridge.r2[node]), r2, rtol=1e-8)
        leverage = np.einsum("ij,jk,ik->i", standard, np.linalg.inv(standard.T @ standard + best * np.eye(X)), standard)
        np.testing.assert_allclose(float(ridge.leverage[node]), leverage.mean(), rtol=1e-8)


def test_moments_stream_and_merge_in_any_order():
    at, fold = drawn(300)
    whole = Moments.of(at, fold, 300)
    order = torch.from_numpy(np.random.default_rng(1).permutation(300))
    parts = []
    for rows in order.split(37):
        some = Coordinates(**{f.name: getattr(at, f.name)[:, rows] for f in dataclasses.fields(at)})
        parts.append(Moments.of(some, fold[rows], len(rows)))
    merged = parts[-1]
    for part in parts[:-1]:
        merged = merged + part
    for field in dataclasses.fields(whole):
        one, other = getattr(whole, field.name), getattr(merged, field.name)
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


def distances(rng: np.random.Generator, prompts: int, nodes: int = 6) -> Distances:
    values = [torch.from_numpy(rng.lognormal(size=(nodes, prompts))) for _ in range(3)]
    return Distances(*values)


def test_z_and_p_values_by_numpy():
    rng = np.random.default_rng(0)
    calibration, here = distances(rng, 40), distances(rng, 7)
    judged = torch.tensor([True, True, False, True, True, True])
    reference = Reference.of(calibration, judged)
    judgement = reference.judge(here, level=0.1)
    logs, new = (np.log(d.allowed.numpy().T + TINY) for d in (calibration, here))
    z = (new - logs.mean(axis=0)) / logs.std(axis=0, ddof=1)
    kept = judged.numpy()
    np.testing.assert_allclose(judgement.z.numpy()[:, kept], z[:, kept], rtol=1e-10)
    assert bool(judgement.z[:, 2].isnan().all())
    own = np.array([np.delete(logs, i, axis=0) for i in range(40)])
    loo = (logs - own.mean(axis=1)) / own.std(axis=1, ddof=1)
    np.testing.assert_allclose(reference.z.numpy(), loo, rtol=1e-9)
    largest = loo[:, kept].max(axis=1)
    p = (1 + (largest >= z[:, kept].max(axis=1)[:, None]).sum(axis=1)) / 41
    np.testing.assert_allclose(judgement.p_value.numpy(), p)
    p_node = (1 + (logs[None] >= new[:, None]).sum(axis=1)) / 41
    np.testing.assert_allclose(judgement.p.numpy()[:, kept], p_node[:, kept])
    as_largest = (1 + (largest[None, :, None] >= z[:, None, :]).sum(axis=1)) / 41
    np.testing.assert_array_equal(judgement.suspect.numpy(), (as_largest <= 0.1) & kept)
    c = [np.sqrt(d.whole.numpy()[kept].mean(axis=0)) for d in (calibration, here)]
    np.testing.assert_allclose(judgement.c_ref.numpy(), c[1] / np.median(c[0]), rtol=1e-10)


def test_p_values_are_uniform_over_draws_of_the_calibration_part():
    """Exchangeable prompts: a suspect at level 0.1 in about a tenth of them, whatever the calibration part."""
    rng = np.random.default_rng(3)
    p_values, suspected = [], []
    for _ in range(300):
        reference = Reference.of(distances(rng, 39), torch.ones(6, dtype=torch.bool))
        judgement = reference.judge(distances(rng, 10), level=0.1)
        p_values += judgement.p_value.tolist()
        suspected += judgement.suspect.any(dim=1).tolist()
    for level in (0.05, 0.1, 0.5):
        assert abs(np.mean(np.array(p_values) <= level) - level) < 0.02
    assert abs(np.mean(suspected) - 0.1) < 0.02


def test_parts_and_folds_follow_from_the_group_alone():
    places = {name: assign(name, seed=0) for name in map(str, range(2000))}
    assert abs(np.mean([place.fits for place in places.values()]) - 0.75) < 0.03
    folds = np.bincount([place.fold for place in places.values()], minlength=FOLDS) / 2000
    assert np.abs(folds - 0.2).max() < 0.03
    assert any(assign(name, seed=1) != place for name, place in places.items())


@pytest.mark.parametrize("at", ["answer", "all"])
def test_the_order_of_prompts_and_the_batch_size_change_nothing(at):
    model, circuit = small()
    prompts = as_prompts(random_prompts(150))
    one = eics.calibrate(model, circuit, prompts, terms="sheaf", at=at)
    other = eics.calibrate(model, circuit, prompts[::-1], terms="sheaf", at=at, batch_size=3)
    assert one.learned.ids == other.learned.ids
    torch.testing.assert_close(one.learned.reference.z, other.learned.reference.z, rtol=0, atol=1e-3)


def test_what_was_saved_judges_as_what_was_learned(tmp_path):
    model, circuit = small()
    calibration = small_calibration()
    path = tmp_path / "usual.safetensors"
    eics.save_calibration(calibration, path)
    loaded = eics.load_calibration(path)
    assert loaded.sha256 == calibration.sha256
    prompts = random_prompts(5, seed=9)
    how = {"preset": "calibrated", "terms": "sheaf"}
    one, other = (eics.score(model, circuit, prompts, calibration=c, **how) for c in (calibration, loaded))
    for before, after in zip(one, other, strict=True):
        assert [term.node for term in before.nodes] == [term.node for term in after.nodes]
        assert [term.z for term in before.nodes] == pytest.approx([term.z for term in after.nodes], rel=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_a_prompt_is_judged_the_same_alone_in_a_batch_and_padded(family):
    model, circuit = small(family)
    calibration = small_calibration(family)
    prompts = random_prompts(6, seed=5)
    how = {"preset": "calibrated", "terms": "sheaf", "calibration": calibration}
    together = eics.score(model, circuit, prompts, **how)
    for prompt, score in zip(prompts, together, strict=True):
        alone = eics.score(model, circuit, prompt, **how)
        for one, other in zip(
            sorted(score.nodes, key=lambda n: n.node), sorted(alone.nodes, key=lambda n: n.node), strict=True
        ):
            assert one.node == other.node
            if one.z is not None:
                assert one.z == pytest.approx(other.z, abs=1e-3)


def test_the_sheaf_alone_leaves_the_other_term_empty():
    model, circuit = small()
    score = eics.score(
        model, circuit, random_prompts(1)[0], preset="calibrated", terms="sheaf", calibration=small_calibration()
    )
    assert score.status == "ok"
    assert (score.eics, score.dei, score.dei_norm, score.ei_macro, score.alpha) == (None,) * 5
    assert score.c_ref == score.c_sh > 0
    assert score.consistency == pytest.approx(1 / (1 + score.c_ref))
    assert sum(node.share for node in score.nodes) == pytest.approx(1)
    assert len(score.predictions) == 5


def test_both_terms_make_equation_7():
    model, circuit = small()
    calibration = small_calibration(terms="all")
    score = eics.score(model, circuit, random_prompts(1)[0], preset="calibrated", calibration=calibration)
    assert score.eics == pytest.approx(score.dei_norm / (1 + score.c_ref))
    assert score.percentile is not None
    alone = eics.score(
        model, circuit, random_prompts(1)[0], preset="calibrated", terms="sheaf", calibration=calibration
    )
    assert alone.c_ref == pytest.approx(score.c_ref, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_full_graph_explains_everything_and_any_patched_write_alarms(dtype):
    """No alarm from rounding, batch size or padding; a write from another prompt is the most unusual one."""
    model = adapt(tiny_module("llama", dtype))
    circuit = full_circuit(model)
    calibration = eics.calibrate(model, circuit, random_prompts(300), terms="sheaf")
    how = {"preset": "calibrated", "terms": "sheaf", "calibration": calibration}
    fresh = random_prompts(60, seed=7)
    alarms = np.mean(
        [bool(s.suspects) for size in (1, 7) for s in eics.score(model, circuit, fresh, batch_size=size, **how)]
    )
    assert alarms < 0.15
    for node in ("a1.h2", "m1", "a2.h0"):
        patched = eics.score(
            model,
            circuit,
            fresh[:10],
            interventions=[eics.Patch(node, 1.0, tokens=fresh[20], at="last")],
            **how,
        )
        assert np.mean([s.nodes[0].node == node for s in patched]) >= 0.9


def test_a_calibration_of_something_else_is_refused():
    model, circuit = small()
    calibration = small_calibration()
    other = eics.Circuit([*circuit.edges, "input->logits"])
    prompt, how = random_prompts(1)[0], {"preset": "calibrated", "terms": "sheaf", "calibration": calibration}
    with pytest.raises(OptionError, match="same circuit"):
        eics.score(model, other, prompt, **how)
    with pytest.raises(OptionError, match="same readout"):
        eics.score(model, circuit, prompt, readout="tokens", tokens=[1, 2], **how)
    with pytest.raises(OptionError, match="needs a calibration"):
        eics.score(model, circuit, prompt, preset="calibrated")
    with pytest.raises(OptionError, match="'level' option must be at least"):
        eics.score(model, circuit, prompt, level=0.001, **how)
    with pytest.raises(OptionError, match="'linearization' option must be 'frozen'"):
        eics.score(model, circuit, prompt, linearization="jacobian", **how)


def test_what_has_no_reference_is_refused_rather_than_scored_otherwise():
    """An explicit circuit, random circuits and damage have no learned sheaf; none falls back on another residual."""
    model, circuit = small()
    explicit = eics.LinearCircuit(maps={"x->y": [[1.0]]}, activations={"x": [1.0], "y": [2.0]})
    with pytest.raises(OptionError, match="without a model"):
        eics.score(explicit, preset="calibrated")
    how = {"preset": "calibrated", "terms": "sheaf", "calibration": small_calibration()}
    with pytest.raises(OptionError, match="random circuits have no sheaf"):
        eics.score(model, circuit, random_prompts(1)[0], against_random=2, **how)
    for name, value in (("residual", "calibrated"), ("terms", "sheaf")):
        with pytest.raises(OptionError, match=f"'{name}' option must be .* when a circuit is damaged"):
            eics.damage(model, circuit, random_prompts(2), linearization="frozen", **{name: value})


def test_changed_weights_are_refused_until_they_change_back():
    model, circuit = adapt(tiny_module("llama", torch.float32)), small()[1]
    calibration = eics.calibrate(model, circuit, random_prompts(120), terms="sheaf")
    weight, how = model.module.model.layers[1].mlp.up_proj.weight, {"preset": "calibrated", "terms": "sheaf"}
    before, prompt = weight.data.clone(), random_prompts(1)[0]
    first = eics.score(model, circuit, prompt, calibration=calibration, **how)
    weight.data.mul_(1.5)
    with pytest.raises(OptionError, match="eics compare"):
        eics.score(model, circuit, prompt, calibration=calibration, **how)
    eics.score(model, circuit, prompt, calibration=calibration, allow_changed_weights=True, **how)
    weight.data.copy_(before)
    assert eics.score(model, circuit, prompt, calibration=calibration, **how).nodes == first.nodes


def test_too_few_prompts_or_groups_are_refused():
    model, circuit = small()
    with pytest.raises(OptionError, match="at least 100 prompts"):
        eics.calibrate(model, circuit, random_prompts(99))
    with pytest.raises(OptionError, match="folds"):
        eics.calibrate(model, circuit, random_prompts(120), group=["one"] * 60 + ["two"] * 60)
    with pytest.raises(OptionError, match="one for each of the 120 prompts"):
        eics.calibrate(model, circuit, random_prompts(120), group=["one"])
    with pytest.raises(OptionError, match="'at' option"):
        eics.calibrate(model, circuit, random_prompts(120), at="somewhere")


def test_a_node_that_does_not_vary_is_not_judged():
    """Prompts that end alike: the embedding at the answer position, and what only reads it, is constant."""
    model = small()[0]
    circuit = eics.Circuit(["input->m0", "m0->logits", "input->a1.h1<v>", "a1.h1->logits"])
    module = model.module
    prompts = [[*tokens, 5] for tokens in random_prompts(140)]
    silenced = tiny_module("llama", torch.float32)
    silenced.load_state_dict(module.state_dict())
    for part in (silenced.model.layers[0].self_attn.o_proj,):
        part.weight.data.zero_()
        part.bias.data.zero_()
    calibration = eics.calibrate(silenced, circuit, prompts, terms="sheaf")
    assert set(calibration.learned.sheaf.reasons) == {"m0"}
    score = eics.score(silenced, circuit, prompts[0], preset="calibrated", terms="sheaf", calibration=calibration)
    (term,) = (node for node in score.nodes if node.node == "m0")
    assert (term.z, term.p) == (None, None)
    assert "vary" in term.reason or "varies" in term.reason
    assert score.nodes[-1] is term


def test_duplicates_stay_on_one_side():
    model, circuit = small()
    prompts = random_prompts(60)
    reader = Reader(model, circuit, CALIBRATED, "answer", 8)
    items = reader.items(as_prompts(prompts + prompts), None, seed=0)
    assert [item.place for item in items[:60]] == [item.place for item in items[60:]]


def test_a_prompt_that_overflows_is_left_out_and_named():
    model, circuit = small()
    module = tiny_module("llama", torch.float32)
    module.load_state_dict(model.module.state_dict())
    adapted = adapt(module)
    module.model.embed_tokens.weight.data[60] = float("nan")
    prompts = [[t % 60 for t in tokens] for tokens in random_prompts(130)]
    failures = {}
    calibration = eics.calibrate(adapted, circuit, [*prompts, [1, 60, 2]], terms="sheaf", failures=failures)
    assert set(failures) == {130}
    assert calibration.prompts == 130


def test_bases_keep_to_the_fit_and_their_bounds():
    model, circuit = small()
    learned = small_calibration().learned
    bases = learned.sheaf.bases
    assert int(bases.outputs.max()) <= min(OUTPUTS, learned.fitted // 4)
    assert int(bases.by_explained.max()) <= learned.fitted // 8
    eye = bases.write @ bases.write.mT
    kept = torch.diag_embed((bases.write.abs().amax(dim=2) > 0).double())
    torch.testing.assert_close(eye, kept, rtol=0, atol=1e-5)
    samples, bad = Reader(model, circuit, CALIBRATED, "answer", 8).samples(random_prompts(3))
    assert not bad
    at = coordinates(bases, samples)
    assert at.outputs.shape == (len(circuit.inner), 3, OUTPUTS)
    assert isinstance(bases, Bases)


@pytest.mark.parametrize("at", ["answer", "all"])
def test_prompts_can_be_added_to_a_file(tmp_path, at):
    """In two steps as in one, but for the bases, which here come from the same prompts."""
    model, circuit = small()
    prompts = as_prompts(random_prompts(800 if at == "answer" else 420))
    reader = Reader(model, circuit, CALIBRATED, at, 8)
    items = reader.items(prompts, None, seed=0)
    fitting = sorted((item for item in items if item.place.fits), key=lambda item: item.order)
    usual = [item.id for item in items if not item.place.fits]
    later = {*(item.id for item in fitting[-30:]), *usual[40:]}
    first, rest = ([prompt for prompt in prompts if (prompt.id in later) == is_rest] for is_rest in (False, True))
    whole = eics.calibrate(model, circuit, prompts, terms="sheaf", at=at)
    begun = eics.calibrate(model, circuit, first, terms="sheaf", at=at, keep_moments=True)
    eics.save_calibration(begun, tmp_path / "begun.safetensors")
    begun = eics.load_calibration(tmp_path / "begun.safetensors")
    added = eics.calibrate(model, circuit, rest, add_to=begun, terms="sheaf")
    assert added.prompts == whole.prompts == len(prompts)
    assert set(added.learned.ids) == set(whole.learned.ids)
    fresh = random_prompts(4, seed=11)
    how = {"preset": "calibrated", "terms": "sheaf"}
    one, other = (eics.score(model, circuit, fresh, calibration=c, **how) for c in (whole, added))
    for before, after in zip(one, other, strict=True):
        z = {term.node: term.z for term in before.nodes}
        assert {term.node: term.z for term in after.nodes} == pytest.approx(z, abs=2e-3)
        assert after.p_value == pytest.approx(before.p_value, abs=1e-9)


def test_prompts_cannot_be_added_to_what_was_not_kept():
    model, circuit = small()
    with pytest.raises(OptionError, match="--keep-moments"):
        eics.calibrate(model, circuit, random_prompts(20), add_to=small_calibration(), terms="sheaf")


def test_a_circuit_that_never_varies_is_refused():
    model = small()[0]
    circuit = eics.Circuit(["input->m0", "m0->logits"])
    alike = [[*tokens[:-1], 5] for tokens in random_prompts(120)]  # at the answer, m0 reads the input and heads only
    same = [[3, 1, 4, 5] for _ in range(120)]
    with pytest.raises(OptionError, match="None does: take prompts that differ"):
        eics.calibrate(model, circuit, same, group=list(map(str, range(120))), terms="sheaf")
    assert eics.calibrate(model, circuit, alike, terms="sheaf").learned.sheaf.reasons.keys() <= {"m0"}


def test_a_node_with_a_single_parent_is_judged():
    model = small()[0]
    circuit = eics.Circuit(["m1->m2"])
    usual = eics.calibrate(model, circuit, random_prompts(160), terms="sheaf")
    assert usual.learned.sheaf.layout.judged == ("m2",)
    plain, steered = (
        eics.score(
            model, circuit, random_prompts(20, seed=5), preset="calibrated", terms="sheaf", calibration=usual,
            interventions=change,
        )
        for change in ([], [eics.Steer("m2", 5.0, at="last")])
    )  # fmt: skip
    assert np.mean([score.nodes[0].z for score in steered]) > 2 + np.mean([score.nodes[0].z for score in plain])
