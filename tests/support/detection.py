"""Prompts, fits and damaged runs of the bundled model of people, for tests of the study of detection."""

import functools
import json

import eics
from eics.data.bundled import bundled_file
from eics.models.prompts import Prompt, tokenize
from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.measure import Trial, run_trial
from eics.studies.detection.ways import WAYS

PER_PROMPT = {"write": 4, "read": 2, "mean": 2, "noise": 2, "steer": 2}
OFF_CIRCUIT = 2


@functools.cache
def people():
    """The model and its circuit; tests must not change them."""
    return eics.load_model("people-0"), eics.load_circuit("people")


@functools.cache
def people_rows(count: int = 360) -> tuple[tuple[int, ...], ...]:
    """Token lists of the bundled prompts, of several lengths."""
    model, _ = people()
    return tuple(tuple(tokenize(model, Prompt(row["id"], text=row["prompt"]))) for row in _lines()[:count])


@functools.cache
def people_prompts(count: int = 360) -> Prompts:
    """The prompts' undamaged runs; a group is a person."""
    groups = [row["person"] for row in _lines()[:count]]
    return Prompts.observed(*people(), people_rows(count), groups, distributions=True)


@functools.cache
def halves() -> tuple[Prompts, Prompts]:
    """A reference, and test prompts of other people."""
    return people_prompts().split(0.2, 0)


@functools.cache
def fitted() -> Fitted:
    """Every way, fitted to the reference."""
    return Fitted.of(*people(), halves()[0], 0, WAYS)


@functools.cache
def trial() -> Trial:
    """Damaged runs of twenty-four of the test prompts."""
    return run_trial(*people(), fitted(), halves()[1].some(24, 0), PER_PROMPT, seed=0, off=OFF_CIRCUIT)


def _lines():
    found = bundled_file("prompts", "people", ".jsonl")
    assert found is not None
    return [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
