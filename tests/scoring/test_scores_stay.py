"""Scores of a fixed set of circuits equal those from before any optimisation.

`scores_before.json` was written by code that formed every product explicitly (commit c3b2436~1), with

    PYTHONPATH=<that checkout>/src:tests python -c "import test_scores_stay; test_scores_stay.write_scores()"

and must never be rewritten with later code: its value is that it is older.
"""

import json
from pathlib import Path

import pytest

import eics
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model

BEFORE = Path(__file__).with_name("scores_before.json")
PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5]]
CIRCUITS = {"some": some_circuit, "full": full_circuit}
CONFIGURATIONS = [
    {"preset": "paper", "linearization": "frozen"},
    {"preset": "paper", "linearization": "jacobian"},
    {"preset": "well-posed", "linearization": "frozen"},
    {"preset": "well-posed", "linearization": "jacobian"},
]
NUMBERS = ("eics", "c_sh", "dei", "ei_macro")


def cases():
    for family in FAMILIES:
        for circuit in CIRCUITS if family in ("gpt2", "llama") else ("some",):
            for configuration in CONFIGURATIONS:
                yield family, circuit, configuration


def name(family, circuit, configuration) -> str:
    return "-".join((family, circuit, *configuration.values()))


def scores(family, circuit, configuration) -> list[dict]:
    model = tiny_model(family)
    results = eics.score(model, CIRCUITS[circuit](model), PROMPTS, mode="exact", **configuration)
    return [
        {number: getattr(score, number) for number in NUMBERS}
        | {"ei_parts": score.ei_parts, "edges": {f"{e.source}->{e.target}<{e.port}>": e.residual for e in score.edges}}
        for score in results
    ]


def write_scores() -> None:
    by_case = {name(*case): scores(*case) for case in cases()}
    BEFORE.write_text(json.dumps(by_case, separators=(",", ":")) + "\n")


@pytest.mark.parametrize(("family", "circuit", "configuration"), list(cases()), ids=[name(*case) for case in cases()])
def test_scores_have_not_changed(family, circuit, configuration):
    before = json.loads(BEFORE.read_text())[name(family, circuit, configuration)]
    for now, then in zip(scores(family, circuit, configuration), before, strict=True):
        for number in NUMBERS:
            assert now[number] == pytest.approx(then[number], rel=1e-7, abs=1e-10)
        assert now["ei_parts"] == pytest.approx(then["ei_parts"], rel=1e-7, abs=1e-10)
        assert now["edges"] == pytest.approx(then["edges"], rel=1e-7, abs=1e-10)
