"""Finds and measures the bundled circuits: `python scripts/make_circuits.py [NAME ...]`.

Each is found by EAP-IG on pairs of its task (corrupted ablation, logit difference, greedy selection; 64 pairs and 200
edges for all tasks of SmolLM2) and measured on the test part of the task, which shares no subject, name, event or
person with it. Writes `src/eics/data/circuits/NAME.json`, which includes the command and the numbers, and the curves of
the docs; prints the table of the docs.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from eics.circuits.formats.files import write_graph
from eics.circuits.graph import Circuit
from eics.circuits.load import load_circuit
from eics.errors import CircuitError
from eics.reporting.plots import save
from eics.studies.discovery.eap import Attribution, How, attribute
from eics.studies.discovery.faithfulness import SHARES, Faithfulness, faithfulness, faithfulness_figure
from eics.studies.discovery.select import found_graph, select
from eics.studies.discovery.task import read_task
from eics.transformer.adapt import load_model

CIRCUITS = {
    "facts": ("smollm2", 64, 200),
    "ioi": ("smollm2", 64, 200),
    "greater-than": ("smollm2", 64, 200),
    "people": ("people-0", 120, 120),
    "induction": ("induction", 96, 20),
}
"""Model, pairs and edges of each task."""

BY_HAND = {"facts-by-hand": ("smollm2", "facts-test")}
"""Model and test of each circuit that nobody searched for: it is measured, not found."""


def main() -> None:
    """Finds, measures and writes one circuit after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*CIRCUITS, *BY_HAND]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(every)}  [default: all]")
    parser.add_argument("--circuits", type=Path, default=Path("src/eics/data/circuits"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args()
    rows = []
    for name in given.names or every:
        if name in BY_HAND:
            measure_by_hand(name, given.circuits / f"{name}.json")
            continue
        origin, pairs, edges = CIRCUITS[name]
        model, how = load_model(origin), How()
        attribution = attribute(model, read_task(name, model, pairs), how, batch_size=16)
        graph, _ = found_graph(model, name, attribution, how, edges, "greedy")
        circuit, test = graph.circuit(), read_task(f"{name}-test", model)
        measured = {"corrupted": faithfulness(model, test, {"circuit": circuit, **curve(attribution)}, batch_size=16)}
        for ablation in ("mean", "zero"):
            measured[ablation] = faithfulness(model, test, {"circuit": circuit}, ablation=ablation, batch_size=16)
        command = f"eics discover --model {origin} --task {name} --limit {pairs} --edges {edges} --batch-size 16"
        numbers = {ablation: vars(result.points[0].faithfulness) for ablation, result in measured.items()}
        provenance = {"command": f"{command} --out {name}.json", "faithfulness": {"task": test.name, **numbers}}
        graph = replace(graph, metadata={**graph.metadata, **provenance})
        write_graph(graph, given.circuits / f"{name}.json", "eics-circuit")
        save(faithfulness_figure(measured["corrupted"], f"{name}, held-out prompts"), given.docs / f"curve-{name}.png")
        rows.append(row(name, circuit, attribution, measured))
    sys.stdout.write("\n".join([HEAD, *rows, ""]))


def measure_by_hand(name: str, file: Path) -> None:
    """Writes the faithfulness of a circuit made by hand into its file."""
    origin, task = BY_HAND[name]
    model = load_model(origin)
    circuit, test = load_circuit(file), read_task(task, model)
    numbers = {}
    for ablation in ("corrupted", "mean", "zero"):
        measured = faithfulness(model, test, {name: circuit}, ablation=ablation, batch_size=16)
        numbers[ablation] = vars(measured.points[0].faithfulness)
    content = json.loads(file.read_text(encoding="utf-8"))
    edges = content.pop("edges")
    content |= {"faithfulness": {"task": test.name, **numbers}, "edges": edges}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def curve(attribution: Attribution) -> dict[str, Circuit]:
    """The best edges at the sizes of MIB, except where a small model has too few of them to make a path."""
    circuits = {}
    for share in SHARES:
        try:
            circuits[f"top {share:.1%}"], _ = select(attribution, max(1, round(share * attribution.graph.edges)), "top")
        except CircuitError:
            continue
    return circuits


HEAD = """| circuit | nodes | edges | logit difference | faithfulness: corrupted | mean | zero | CPR | CMD |
|---|---|---|---|---|---|---|---|---|"""


def row(name: str, circuit: Circuit, attribution: Attribution, measured: dict[str, Faithfulness]) -> str:
    """One line of the table."""
    kept = [str(result.points[0].faithfulness) for result in measured.values()]
    areas = [str(measured["corrupted"].cpr), str(measured["corrupted"].cmd)]
    size = [str(len(circuit.order)), str(len(circuit.edges))]
    metric = f"{attribution.clean:.2f} / {attribution.ablated:.2f}"
    return f"| {' | '.join([f'`{name}`', *size, metric, *kept, *areas])} |"


if __name__ == "__main__":
    main()
