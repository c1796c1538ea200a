"""Items 1, 2, 5 and 8: damage without a clean run, false alarms, what a circuit is worth, a second model."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import eics
from calibrated_sets import greater_than, indirect_objects
from eics.circuits.graph import Circuit
from eics.circuits.random_circuits import random_like
from eics.cli import main as command
from eics.errors import OptionError
from eics.models.base import Model
from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.measure import run_trial, summarise
from eics.studies.detection.summary import Verdicts, calm
from eics.studies.detection.ways import WAYS
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.tracking.families import rewire
from proof.common import KINDS, OFF_CIRCUIT, PER_PROMPT, SEED, TEST, Line, loaded, observed, progress, read_known

SIZES = (100, 200, 400, 800)
DRAWS = 3
FEW_PROMPTS = 100
"""Test prompts on which other circuits are tried."""

GEMMA = (
    "discover", "--model", "gemma3-270m", "--task", "facts", "--limit", "64", "--edges", "200", "--method", "eap",
    "--linearization", "frozen", "--batch-size", "16",
)  # fmt: skip


def facts(known: Path) -> dict[str, Any]:
    """`facts` on known_1000, with references of several sizes."""
    model, circuit = loaded("smollm2", "facts")
    return _damage(model, circuit, read_known(known), sizes=SIZES)


def ioi(_: Path) -> dict[str, Any]:
    """`ioi` on indirect objects."""
    return _damage(*loaded("smollm2", "ioi"), indirect_objects())


def greater(_: Path) -> dict[str, Any]:
    """`greater-than` on years."""
    return _damage(*loaded("smollm2", "greater-than"), greater_than())


def second_model(known: Path) -> dict[str, Any]:
    """A circuit of Gemma-3-270m, found here, on known_1000."""
    path = Path("runs/calibrated/gemma-facts.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    command([*GEMMA, "--out", str(path), "--overwrite", "--quiet"], standalone_mode=False)
    return _damage(*loaded("gemma3-270m", path), read_known(known))


def _damage(model: Model, circuit: Circuit, rows: Sequence[Line], sizes: Sequence[int] = ()) -> dict[str, Any]:
    """Calibrates on four fifths of the groups, damages the prompts of the others."""
    prompts = observed(model, circuit, rows, "undamaged")
    reference, test = prompts.split(TEST, SEED)
    fitted = Fitted.of(model, circuit, reference, SEED)
    with progress("damaged", (sum(PER_PROMPT.values()) + OFF_CIRCUIT) * len(test)) as tick:
        trial = run_trial(model, circuit, fitted, test, PER_PROMPT, seed=SEED, off=OFF_CIRCUIT, tick=tick)
    result = summarise(trial, WAYS, KINDS)
    result["splits"] = [_calm(model, circuit, prompts, seed) for seed in range(1, 6)]
    result["sizes"] = {}
    for size in sizes:
        draws = []
        for seed in range(DRAWS):
            smaller = Fitted.of(model, circuit, reference.some(size, seed), seed, ("calibrated",))
            draws.append(summarise(trial, ("calibrated",), ("write", "read"), fitted=smaller))
        result["sizes"][str(size)] = draws
    return result


def _calm(model: Model, circuit: Circuit, prompts: Prompts, seed: int) -> dict[str, Any]:
    """False alarms in another split; why there are none, where its groups do not fill the folds."""
    reference, test = prompts.split(TEST, seed)
    try:
        fitted = Fitted.of(model, circuit, reference, seed, ("calibrated",))
    except OptionError as error:
        return {"refused": str(error)}
    return calm(Verdicts.of(fitted.judge(test.runs)), fitted.references["calibrated"])


def circuits(known: Path) -> dict[str, Any]:
    """The found circuit, rewired ones, random ones and the full graph, on the same prompts."""
    model, found = loaded("smollm2", "facts")
    graph, rows = FullGraph.of(model), read_known(known)
    tried = {"found": found}
    tried |= {f"rewired-{i}": rewire(found, graph, np.random.default_rng([SEED, 2, i])) for i in range(2)}
    tried |= {f"random-{i}": random_like(found, graph, np.random.default_rng([SEED, 3, i])) for i in range(2)}
    tried["full graph"] = whole_graph(graph)
    results = {}
    for name, circuit in tried.items():
        sys.stderr.write(f"{name}: {circuit!r}\n")
        prompts = observed(model, circuit, rows, name)
        reference, test = prompts.split(TEST, SEED)
        fitted = Fitted.of(model, circuit, reference, SEED, ("calibrated",))
        some = test.some(FEW_PROMPTS, SEED)
        trial = run_trial(model, circuit, fitted, some, {"write": 8, "read": 4}, seed=SEED)
        results[name] = summarise(trial, ("calibrated",), ("write", "read"))
    return results


def whole_graph(graph: FullGraph) -> Circuit:
    """Every edge of a model, into heads through their values: all that carries anything under `frozen`."""
    edges = []
    for column, (_, port) in enumerate(graph.readers):
        if port in (None, "v"):
            edges += [graph.edge(row, column) for row in range(graph.prefix[column])]
    return eics.Circuit(edges)
