"""Finds the bundled circuits of SmolLM2 and measures them: `python scripts/make_circuits.py`.

Each is found by EAP-IG on the first 64 pairs of its task (corrupted ablation, logit difference, 200 edges chosen
greedily: the same for all tasks) and measured on the task's test part, which shares no subject, name or event with it.
Writes `src/eics/circuits/NAME.json` with the command and the numbers inside and the curves of docs/find-a-circuit.md,
and prints its table.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from eics.discovery.eap import How, attribute
from eics.discovery.faithfulness import SHARES, Faithfulness, faithfulness
from eics.discovery.find import found_graph
from eics.discovery.select import select
from eics.discovery.task import read_task
from eics.formats.files import write_graph
from eics.models import load_model
from eics.plots import faithfulness_figure, save

TASKS = ("facts", "ioi", "greater-than")
PAIRS, EDGES = 64, 200


def main() -> None:
    """One circuit after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circuits", type=Path, default=Path("src/eics/circuits"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args()
    model = load_model("smollm2")
    rows = []
    for name in TASKS:
        how = How()
        found = attribute(model, read_task(name, model, PAIRS), how, batch_size=16)
        graph, _ = found_graph(model, name, found, how, EDGES, "greedy")
        circuit, test = graph.circuit(), read_task(f"{name}-test", model)
        wanted = {f"top {share:.1%}": max(1, round(share * found.graph.edges)) for share in SHARES}
        curve = {label: select(found, count, "top")[0] for label, count in wanted.items()}
        measured = {"corrupted": faithfulness(model, test, {"circuit": circuit, **curve}, batch_size=16)}
        for ablation in ("mean", "zero"):
            measured[ablation] = faithfulness(model, test, {"circuit": circuit}, ablation=ablation, batch_size=16)
        command = f"eics discover --model smollm2 --task {name} --limit {PAIRS} --edges {EDGES} --batch-size 16"
        numbers = {ablation: vars(one.points[0].faithfulness) for ablation, one in measured.items()}
        about = {"command": f"{command} --out {name}.json", "faithfulness": {"task": test.name, **numbers}}
        write_graph(
            replace(graph, metadata={**graph.metadata, **about}), given.circuits / f"{name}.json", "eics-circuit"
        )
        save(faithfulness_figure(measured["corrupted"], f"{name}, held-out prompts"), given.docs / f"curve-{name}.png")
        rows.append(row(name, circuit, found.clean, found.ablated, measured))
    sys.stdout.write("\n".join([HEAD, *rows, ""]))


HEAD = """| circuit | nodes | edges | logit difference | faithfulness: corrupted | mean | zero | CPR | CMD |
|---|---|---|---|---|---|---|---|---|"""


def row(name: str, circuit: Any, clean: float, ablated: float, measured: dict[str, Faithfulness]) -> str:
    """One line of the table."""
    kept = [str(one.points[0].faithfulness) for one in measured.values()]
    areas = [str(measured["corrupted"].cpr), str(measured["corrupted"].cmd)]
    size = [str(len(circuit.order)), str(len(circuit.edges)), f"{clean:.2f} / {ablated:.2f}"]
    return f"| {' | '.join([f'`{name}`', *size, *kept, *areas])} |"


if __name__ == "__main__":
    main()
