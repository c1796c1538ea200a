"""A ratio that says only that nothing gets through is said, and what random circuits of the same size give."""

import numpy as np
import pytest

import eics
from eics import Circuit, LinearCircuit, OptionError
from eics.circuits.random_circuits import Layers, random_like
from eics.scoring.cautions import HARDLY_ANY_PATH, LEAST_RATIO
from support.tiny_models import some_circuit, tiny_model

PROMPTS = [[3, 5, 7, 11, 13], [1, 2, 3]]
INTENSIVE = {"emergence": "intensive", "mode": "exact"}
SIZE = Layers(layers=3, heads=4, parallel=False)


def chain(strength: float) -> LinearCircuit:
    """Two maps that carry as much each, but not in the same directions: of the first, `strength` enters the second."""
    first, second = np.diag([1.0, 0.0]), np.diag([strength, 1.0])
    return LinearCircuit({"x->y": first, "y->z": second}, {n: [1.0, 1.0] for n in "xyz"})


@pytest.mark.parametrize(("strength", "meaningless"), [(1.0, False), (0.01, False), (1e-4, True), (1e-6, True)])
def test_a_ratio_of_almost_nothing_is_said_in_the_record(strength, meaningless):
    score = eics.score(chain(strength), **INTENSIVE)
    assert (0 < score.emergence_ratio < LEAST_RATIO) == meaningless
    assert [warning["code"] for warning in score.to_record()["warnings"]] == [HARDLY_ANY_PATH] * meaningless
    said = [line for line in eics.Scores([score]).summary() if line.startswith("Hardly any path")]
    assert len(said) == meaningless
    if meaningless:
        assert f"{score.emergence_ratio:.1e}" in score.warnings[0]["text"]
        assert "the only prompt" in said[0]


def test_a_zero_map_has_its_reason_and_no_ratio_to_warn_of():
    score = eics.score(chain(0.0), **INTENSIVE)
    assert score.emergence_ratio == 0.0
    assert "macro map is zero" in score.reason
    assert score.warnings == []
    assert eics.score(chain(1e-6)).warnings == []  # the difference has no ratio


def test_the_warning_does_not_depend_on_alpha_while_it_is_small():
    codes = {len(eics.score(chain(1e-4), alpha=alpha, **INTENSIVE).warnings) for alpha in (1e-6, 1e-3, 0.1)}
    assert codes == {1}


def test_random_circuits_stand_beside_the_score():
    model, circuit, count = tiny_model("gpt2"), some_circuit(tiny_model("gpt2")), 4
    options = {"preset": "well-posed", "positions": "all", "seed": 3}
    plain = eics.score(model, circuit, PROMPTS, **options)
    beside = eics.score(model, circuit, PROMPTS, against_random=count, **options)
    drawn = [random_like(circuit, SIZE, np.random.default_rng([3, 15, index])) for index in range(count)]
    others = [eics.score(model, one, PROMPTS, **options) for one in drawn]
    for row, (score, without) in enumerate(zip(beside, plain, strict=True)):
        summary = score.diagnostics.pop("against_random")
        assert score.options.pop("against_random") == count
        assert score == without  # nothing else has changed
        assert summary["circuits"] == count
        for name in ("emergence_ratio", "dei_norm", "c_sh", "eics"):
            values = [getattr(other[row], name) for other in others]
            assert summary[name] == pytest.approx({
                "median": np.median(values),
                "low": min(values),
                "high": max(values),
                "rank": 1 + sum(np.sign(value - getattr(score, name)) / 2 + 0.5 for value in values),  # ties: middle
            })  # fmt: skip


def test_random_circuits_use_the_alpha_that_was_chosen_and_the_interventions_in_force():
    model, circuit = tiny_model("gpt2"), some_circuit(tiny_model("gpt2"))
    options = {"alpha": "auto", "emergence": "intensive", "interventions": [eics.Noise("m0", 1.0)]}
    score = eics.score(model, circuit, PROMPTS, against_random=1, **options)[0]
    drawn = random_like(circuit, SIZE, np.random.default_rng([0, 15, 0]))
    other = eics.score(model, drawn, PROMPTS, **(options | {"alpha": score.alpha}))[0]
    assert score.diagnostics["against_random"]["emergence_ratio"]["median"] == pytest.approx(other.emergence_ratio)


def test_random_circuits_are_said_in_the_summary():
    model, circuit = tiny_model("gpt2"), some_circuit(tiny_model("gpt2"))
    scores = eics.score(model, circuit, PROMPTS, preset="well-posed", positions="all", against_random=3)
    (said,) = [line for line in scores.summary() if "random circuits" in line]
    assert said.startswith("3 random circuits of this size give r = ")
    assert said.endswith("of 4, medians over prompts.")
    assert not [line for line in eics.score(model, circuit, PROMPTS).summary() if "random" in line]


@pytest.mark.parametrize("count", [-1, 1.5, True, "3"])
def test_a_wrong_number_of_random_circuits_is_refused(count):
    with pytest.raises(OptionError, match="'against_random'"):
        eics.score(tiny_model("gpt2"), some_circuit(tiny_model("gpt2")), PROMPTS, against_random=count)


def test_an_explicit_circuit_has_no_model_to_draw_from():
    with pytest.raises(OptionError, match="'against_random'"):
        eics.score(chain(1.0), against_random=2)


def test_the_means_of_a_calibration_have_none_for_random_circuits():
    model, circuit = tiny_model("gpt2"), Circuit(["input->a0.h1", "a0.h1->m1", "m1->logits"])
    options = {"preset": "well-posed", "residual": "propagated", "positions": "all"}
    calibration = eics.calibrate(model, circuit, PROMPTS, **options)
    with pytest.raises(OptionError, match="random circuits have none"):
        eics.score(model, circuit, PROMPTS, calibration=calibration, against_random=2, **options)
