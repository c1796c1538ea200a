"""Two sets of prompts on the bundled model of people, for tests of comparisons."""

import functools
import hashlib
import json

import numpy as np

import eics
from eics.data.bundled import bundled_file
from eics.models.prompts import as_prompts
from eics.scoring.options import CALIBRATED
from eics.studies.comparison.set_passes import Passes


@functools.cache
def people():
    """The model and its circuit; tests must not change them."""
    return eics.load_model("people-0"), eics.load_circuit("people")


@functools.cache
def people_lines(part: int):
    """Prompts with their fields; the two parts have different people."""
    lines = bundled_file("prompts", "people", ".jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if hashlib.sha256(row["person"].encode()).digest()[0] % 2 == part]


@functools.cache
def usual():
    """What is usual, from the people of part 0."""
    lines = people_lines(0)
    groups = [line["person"] for line in lines]
    return eics.calibrate(*people(), [line["prompt"] for line in lines], group=groups, terms="sheaf", batch_size=32)


def table(lines, interventions=None, calibration=None, batch_size=32):
    """z and the logarithm of the whitened write of every judged node on these prompts, (n, judged) each."""
    prompts, calibration = as_prompts(lines), calibration or usual()
    passes = Passes.of(*people(), calibration, CALIBRATED.with_(terms="sheaf"), prompts, interventions)
    rows = [
        row for start in range(0, len(prompts), batch_size) for row in passes.rows(prompts[start : start + batch_size])
    ]
    return tuple(np.array([row[name] for row in rows], dtype=float) for name in ("z", "write"))


@functools.cache
def people_table():
    """The numbers of part 1, unchanged."""
    return table(people_lines(1))
