"""Secret damage, and whether it is found: twelve prompts, in three of which one node is tampered with.

    python scripts/find_the_damage.py --out demo/calibrated
    python scripts/find_the_damage.py --model people-0 --circuit people --reference people --prompts people-withheld \
        --group person --out found

From the reference prompts, on which the circuit works, `eics.calibrate` learns what is usual. Then twelve other prompts
are scored. In two of them a node's write at the last position is exchanged for that of another prompt, in a third one
what an MLP reads from outside the circuit. Nobody tells the score. It writes `records.jsonl`, `report.html` and
`usual.safetensors` into the folder, and prints what was done and what was found.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import eics
from eics.models.prompt_files import read_grouped

PROMPTS, TAMPERED = 12, 3
Exchange = eics.Patch | eics.PatchRead


def damage(prompts: Sequence[eics.Prompt], nodes: Sequence[str], seed: int) -> dict[str | int, Exchange]:
    """Three of the prompts, each with the intervention on it; the last one changes a read, the others a write."""
    draw = random.Random(f"secret damage {seed}")
    victims = draw.sample(range(len(prompts)), TAMPERED)
    mlps = [node for node in nodes if node.startswith("m")]
    chosen: dict[str | int, Exchange] = {}
    for turn, victim in enumerate(victims):
        donor = draw.choice([prompt.text for index, prompt in enumerate(prompts) if index != victim])
        is_read = turn == TAMPERED - 1 and bool(mlps)
        kind = eics.PatchRead if is_read else eics.Patch
        chosen[prompts[victim].id] = kind(draw.choice(mlps if is_read else nodes), prompt=donor, at="last")
    return chosen


def main() -> None:
    """Learns, damages, scores, reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--circuit", default="facts")
    parser.add_argument("--reference", default="facts", help="prompts on which the circuit works")
    parser.add_argument("--prompts", default="facts-withheld", help="prompts to damage")
    parser.add_argument("--group", default="subject", help="field of the reference prompts that groups them")
    parser.add_argument("--out", type=Path, required=True, help="folder for the records and the page")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    model, circuit = eics.load_model(given.model), eics.load_circuit(given.circuit)
    reference = read_grouped(given.reference, given.group)
    usual = eics.calibrate(
        model, circuit, [item.prompt for item in reference], group=[item.group for item in reference], terms="sheaf"
    )
    eics.save_calibration(usual, given.out / "usual.safetensors")
    prompts = eics.read_prompts(given.prompts, limit=PROMPTS, shuffle=True, seed=given.seed)
    judged = [node for node in circuit.inner if node != "logits" and node not in usual.learned.sheaf.reasons]
    secret = damage(prompts, judged, given.seed)
    scores = eics.score(
        model,
        circuit,
        prompts,
        preset="calibrated",
        terms="sheaf",
        calibration=usual,
        interventions={id: [intervention] for id, intervention in secret.items()},
        details=True,
    )
    scores = eics.Scores(told(score, secret.get(score.id)) for score in scores)
    eics.write_records(scores, given.out / "records.jsonl")
    eics.report.write_report(scores, given.out / "report.html", source="records.jsonl")
    for score in scores:
        print(f"{score.id}: {score.label}; found {', '.join(score.suspects) or 'nothing'} (p = {score.p_value:.2g})")


def told(score: eics.Score, intervention: Exchange | None) -> eics.Score:
    """The record with what was done and whether it was found as its label, in place of its interventions: all twelve
    then stand in one table of the page."""
    options = {name: value for name, value in score.options.items() if name != "interventions"}
    return replace(score, interventions=[], options=options, label=label(score, intervention))


def label(score: eics.Score, intervention: Exchange | None) -> str:
    """What was done to a prompt, and whether the first suspect is right."""
    if intervention is None:
        return f"untouched: {'wrong' if score.suspects else 'right'}"
    kind = "read" if isinstance(intervention, eics.PatchRead) else "write"
    return f"{intervention.node}, {kind} exchanged: {'right' if score.suspects[:1] == [intervention.node] else 'wrong'}"


if __name__ == "__main__":
    main()
