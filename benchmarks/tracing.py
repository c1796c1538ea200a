"""How often tracing finds the node and the token that were tampered with, and what scoring while generating costs.

    python benchmarks/tracing.py --known known_1000.jsonl      # minutes; with `eics models fetch smollm2`
    python benchmarks/tracing.py --generation                  # the cost alone, in a minute

**Found.** The prompts (ROME's known_1000: JSON lines with `prompt` and `subject`) are split in halves by subject. One
half calibrates (`at="all"`, grouped by subject). From the other, nodes and texts are drawn with a seed: one node writes
at one token from the middle of a text what it writes at that place of another text with as many tokens. Printed are
the shares of cases in which the largest z is that of the node, of the token, of both, and in which the text is alarmed,
with 95% intervals over nodes (bootstrap); and the share of untouched texts with an alarm.

**Cost.** Greedy generation of 50 tokens after a prompt of 12, by transformers' `generate` and with every token scored:
medians over repeats that take turns, and their ratio.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

import eics
from eics.models.prompts import tokenize
from eics.studies.tracing.generation import Generation
from eics.studies.tracing.task import checked_task


def halves(path: Path) -> tuple[list[dict], list[dict]]:
    """The prompts whose subjects calibrate, and the others."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    subjects = sorted({row["subject"] for row in rows})
    np.random.default_rng(0).shuffle(subjects)
    usual = set(subjects[: len(subjects) // 2])
    return [row for row in rows if row["subject"] in usual], [row for row in rows if row["subject"] not in usual]


def cases(model, circuit, rows: list[dict], nodes: int, texts: int, reasons: dict) -> list[dict]:
    """A node, a text, a token from its middle and another text of that length, for each case."""
    draw = np.random.default_rng(1)
    tokens = [tokenize(model, eics.Prompt(row["id"], row["prompt"])) for row in rows]
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(tokens):
        by_length.setdefault(len(ids), []).append(index)
    usable = [index for index, ids in enumerate(tokens) if len(ids) >= 5 and len(by_length[len(ids)]) > 1]
    patched = [name for name in circuit.inner if name != "logits" and name not in reasons]
    found = []
    for node in draw.permutation(patched)[:nodes].tolist():
        for index in draw.permutation(usable)[:texts].tolist():
            length = len(tokens[index])
            place = int(draw.integers(2, length - 1))
            other = int(draw.choice([i for i in by_length[length] if i != index]))
            found.append({"node": node, "tokens": tokens[index], "other": tokens[other], "place": place})
    return found


def interval(hits: np.ndarray, groups: np.ndarray) -> str:
    """A share with its 95% interval over groups."""
    draw, names = np.random.default_rng(2), np.unique(groups)
    means = np.array([hits[groups == name].mean() for name in names])
    drawn = [means[draw.integers(0, len(means), len(means))].mean() for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{hits.mean():.2f} ({low:.2f} to {high:.2f})"


def found(arguments: argparse.Namespace) -> None:
    """Prints how often node and token are right."""
    model, circuit = eics.load_model(arguments.model), eics.load_circuit(arguments.circuit)
    usual, fresh = halves(arguments.known)
    if arguments.calibration is not None and arguments.calibration.exists():
        calibration = eics.load_calibration(arguments.calibration)
    else:
        prompts = [eics.Prompt(row["id"], row["prompt"]) for row in usual]
        groups = [row["subject"] for row in usual]
        calibration = eics.calibrate(model, circuit, prompts, terms="sheaf", at="all", group=groups, batch_size=16)
        if arguments.calibration is not None:
            eics.save_calibration(calibration, arguments.calibration)
    how = {"calibration": calibration, "batch_size": 16}
    clean = eics.trace(model, circuit, [row["prompt"] for row in fresh], **how)
    alarms = np.mean([bool(trace.suspects) for trace in clean if not trace.failed])
    listed = cases(model, circuit, fresh, arguments.nodes, arguments.texts, calibration.learned.sheaf.reasons)
    interventions = {
        index: [eics.Patch(case["node"], tokens=case["other"], at=(case["place"],))]
        for index, case in enumerate(listed)
    }
    traces = eics.trace(model, circuit, [case["tokens"] for case in listed], interventions=interventions, **how)
    most = [trace.most_unusual for trace in traces]
    node = np.array([one.node == case["node"] for one, case in zip(most, listed, strict=True)])
    token = np.array([one.position == case["place"] for one, case in zip(most, listed, strict=True)])
    alarmed = np.array([bool(trace.suspects) for trace in traces])
    named = np.array([any(s.node == c["node"] and s.position == c["place"] for s in t.suspects)
                      for t, c in zip(traces, listed, strict=True)])  # fmt: skip
    groups = np.array([case["node"] for case in listed])
    print(f"{len(usual)} prompts calibrate, {len(calibration.learned.ids)} of them say what is usual")
    print(f"{len(set(groups))} nodes, {len(listed)} cases; {len(clean)} untouched texts")
    for name, hits in {"node right": node, "token right": token, "both right": node & token, "alarm": alarmed,
                       "node and token among the suspects": named}.items():  # fmt: skip
        print(f"{name}: {interval(hits, groups)}")
    error = 1.96 * np.sqrt(alarms * (1 - alarms) / len(clean))
    print(f"untouched texts with an alarm at 5%: {alarms:.3f} (+- {error:.3f})")
    if arguments.by_node:
        for name in sorted(set(groups)):
            of = groups == name
            print(f"  {name}: both {np.mean((node & token)[of]):.2f}, token {np.mean(token[of]):.2f}")


def plainly(model, tokens: list[int], count: int) -> list[int]:
    """Greedy generation as transformers does it."""
    ids = torch.tensor([tokens])
    how = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    return model.module.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, len(tokens) :].tolist()


def cost(arguments: argparse.Namespace) -> None:
    """Prints what scoring while generating costs."""
    model, circuit = eics.load_model(arguments.model), eics.load_circuit(arguments.circuit)
    draw = np.random.default_rng(0)
    prompts = draw.integers(0, model.vocabulary, size=(160, 24)).tolist()
    calibration = eics.calibrate(model, circuit, prompts, terms="sheaf", at="all") if arguments.calibration is None \
        else eics.load_calibration(arguments.calibration)  # fmt: skip
    prompt = tokenize(model, eics.Prompt(0, "The Eiffel Tower is located in the city of Paris, and"))[:12]
    task = checked_task(
        model, circuit, [eics.Prompt(0, tokens=tuple(prompt))], calibration, level=0.05, seed=0, memory=None,
        batch_size=1, interventions=None, generate=arguments.tokens, temperature=0.0, allow_changed_weights=False,
    )  # fmt: skip
    model.module.config.eos_token_id = model.module.generation_config.eos_token_id = None  # both write every token
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    times: dict[str, list[float]] = {"plain": [], "traced": []}
    for _ in range(arguments.repeats + 1):
        start = clock()
        written = plainly(model, prompt, arguments.tokens)
        middle = clock()
        generation = Generation(task, task.prompts[0])
        steps = list(generation)
        end = clock()
        assert generation.tokens[len(prompt) :] == written[: len(steps) - 1]
        times["plain"].append(middle - start)
        times["traced"].append(end - middle)
    plain, traced = (statistics.median(values[1:]) for values in times.values())
    print(f"{len(prompt)} + {arguments.tokens} tokens, {torch.get_num_threads()} threads: plain {plain:.2f} s, "
          f"traced {traced:.2f} s, ratio {traced / plain:.2f}")  # fmt: skip
    print("all ratios: " + ", ".join(f"{b / a:.2f}" for a, b in zip(*(v[1:] for v in times.values()), strict=True)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=Path, help="JSON lines with prompt and subject")
    parser.add_argument("--generation", action="store_true", help="measure the cost of scoring while generating")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--circuit", default="facts")
    parser.add_argument("--calibration", type=Path, help="file of the calibration, made if it is missing")
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="of this process: for a machine that others use too")
    parser.add_argument("--by-node", action="store_true", help="also the rate of each node")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    if given.known is None and not given.generation:
        sys.exit("Give --known FILE, --generation, or both.")
    if given.known is not None:
        found(given)
    if given.generation:
        cost(given)
