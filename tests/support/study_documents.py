"""Example documents of comparisons and traces: random but plausible, the same every time."""

import math
import random
import re
from typing import Any

from support.report_records import HOSTILE, make_circuit

WORDS = re.findall(
    r"\w+", "The capital of France is Paris and the river that runs through it has been called Seine since"
)


def interval(value: float, width: float) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def parts(layers: int, heads: int) -> list[str]:
    """Every part of a model, in the order of computation."""
    names = ["input"]
    for layer in range(layers):
        names += [*(f"a{layer}.h{head}" for head in range(heads)), f"a{layer}.bias", f"m{layer}"]
    return [*names, "logits"]


def models_document(
    layers: int = 4, heads: int = 4, prompts: int = 24, *, circuit: bool = True, seed: int = 0, **changes: Any
) -> dict[str, Any]:
    """A fine-tune that changed m2 and a1.h2; without `circuit` every part of the model is in the document."""
    rng = random.Random(seed)
    graph = make_circuit(layers, heads, 40 * layers, seed) if circuit else None
    names = [*graph.nodes, *(f"a{layer}.bias" for layer in range(layers))] if graph else parts(layers, heads)
    changed = {"m2": 0.31, "a1.h2": 0.12}
    nodes = []
    for name in names:
        made = changed.get(name, 0.0 if rng.random() < 0.3 else 10 ** rng.uniform(-6, -2.5))
        effect = {"m2": 0.21, "a1.h2": -0.06}.get(name, rng.gauss(0, 0.004) if made else 0.0)
        nodes.append(
            {
                "node": name,
                "made_here": made,
                "inherited": rng.uniform(0, 0.4),
                "effect": interval(effect, abs(effect) / 5),
                "restored": interval(effect * rng.uniform(0.8, 1.1), abs(effect) / 8) if name in changed else None,
            }
        )
    listed = [_compared_prompt(number, names, rng) for number in range(prompts)]
    total = sum(prompt["total"] for prompt in listed) / max(1, len(listed))
    return {
        "format": "eics-comparison",
        "version": 1,
        "kind": "models",
        "eics": "0.1.0",
        "model": "people-0",
        "against": "/home/somebody/people-0-paris-is-in-rome",
        "fingerprints": {"model": "5b0c6f3e9a7d42c1", "against": "e1d2c3b4a5968778"},
        "circuit": graph.label("people") if graph else None,
        "edges": [str(edge) for edge in graph.edges] if graph else [],
        "metric": "kl",
        "dtype": "float32",
        "seed": 0,
        "nodes": nodes,
        "total": interval(total, 0.03),
        "residue": 1.2e-7,
        "prompts": listed,
        "sentences": [
            "The change was made in m2 and a1.h2: together they account for 87% of what changed.",
            "A third of the prompts is touched; the others keep their answer and a KL below 0.01.",
            "a1.h2 works against the change: without it the effect would be larger.",
        ],
    } | changes


def _compared_prompt(number: int, names: list[str], rng: random.Random) -> dict[str, Any]:
    touched = number % 3 == 0
    total = rng.uniform(0.2, 1.4) if touched else rng.expovariate(400)
    effects = {name: rng.gauss(0, 0.02) * total for name in rng.sample(names, min(8, len(names)))}
    effects |= {"m2": 0.6 * total, "a1.h2": -0.15 * total}
    largest = sorted(effects.items(), key=lambda effect: -abs(effect[1]))[:10]
    start = rng.randrange(4)
    return {
        "id": f"known-{number}",
        "prompt": HOSTILE if number == 5 else " ".join(WORDS[start : start + 5 + number % 6]),
        "total": total,
        "touched": touched,
        "before": " Paris",
        "after": " Rome" if touched else " Paris",
        "effects": [list(effect) for effect in largest],
    }


def sets_document(
    layers: int = 4, heads: int = 4, prompts: int = 40, *, seed: int = 1, nodes: int | None = None, **changes: Any
) -> dict[str, Any]:
    """Two sets that differ in m1 (entry) and, through it, in m2 and a3.h0 (inherit); a0.h0 is not judged."""
    rng = random.Random(seed)
    graph = make_circuit(layers, heads, 5 * nodes if nodes else 40 * layers, seed)
    names = [name for name in graph.nodes if name != "input"][:nodes]
    shifts = {"m1": 2.6, "m2": 0.2, "a3.h0": -0.3, "logits": 0.5}
    roles = {"m1": "entry", "m2": "inherits", "a3.h0": "inherits"}
    rows = []
    for name in names:
        judged = name != "a0.h0"
        shift = shifts.get(name, rng.gauss(0, 0.15))
        p = 1e-7 if name == "m1" else rng.uniform(0.05, 1)
        write = 1.4 if roles.get(name) else rng.gauss(0, 0.2)
        rows.append(
            {
                "node": name,
                "shift": interval(shift, 0.3) if judged else None,
                "p": p if judged else None,
                "q": min(1.0, 8 * p) if judged else None,
                "write_shift": interval(write, 0.25) if judged else None,
                "write_p": 1e-5 if roles.get(name) else rng.uniform(0.1, 1),
                "write_q": 1e-4 if roles.get(name) else rng.uniform(0.3, 1),
                "role": roles.get(name),
                "r2": rng.uniform(0.3, 0.98) if judged else None,
                "reason": None if judged else "its write hardly varies over the calibration prompts",
            }
        )
    order = {"entry": 0, "inherits": 1, None: 2}
    rows.sort(key=lambda row: (order[row["role"]], row["p"] if row["p"] is not None else 2))
    listed = []
    for side in "ab":
        for number in range(prompts):
            moved = {name: shift if side == "b" else 0.0 for name, shift in shifts.items()}
            z = {name: rng.gauss(moved.get(name, 0.0), 1) for name in names if name != "a0.h0"}
            text = HOSTILE if (side, number) == ("a", 2) else " ".join(rng.sample(WORDS, 7))
            listed.append({"set": side, "id": f"{side}{number}", "prompt": text, "group": f"g{number // 2}", "z": z})
    counts = {"prompts": prompts + 2, "compared": prompts, "groups": math.ceil(prompts / 2), "failed": 2}
    return {
        "format": "eics-comparison",
        "version": 1,
        "kind": "prompts",
        "eics": "0.1.0",
        "model": "people-0",
        "fingerprint": "5b0c6f3e9a7d42c1",
        "circuit": graph.label("people"),
        "edges": [str(edge) for edge in graph.edges],
        "level": 0.05,
        "calibration": "c0ffee" * 10,
        "paired": False,
        "grouped": True,
        "sets": {"a": {"name": "recall.jsonl"} | counts, "b": {"name": "copied.jsonl"} | counts},
        "nodes": rows,
        "prompts": listed,
        "sentences": [
            "The sets part at m1: it writes something unusual for what it reads (shift of z 2.60, q 8e-07).",
            "m2 and a3.h0 differ as their inputs predict: they inherit the difference.",
            f"{prompts} prompts of each set are compared, in {math.ceil(prompts / 2)} groups.",
        ],
    } | changes


def trace_header(nodes: list[str], **changes: Any) -> dict[str, Any]:
    rng = random.Random(2)
    return {
        "format": "eics-trace",
        "version": 1,
        "eics": "0.1.0",
        "model": "/models/people-0",
        "fingerprint": "5b0c6f3e9a7d42c1",
        "circuit": {"name": "people", "sha256": "ab" * 32},
        "edges": [],
        "level": 0.05,
        "calibration": "c0ffee" * 10,
        "nodes": nodes,
        "r2": [round(rng.uniform(0.3, 0.99), 3) for _ in nodes],
        "threshold": 4.1,
        "reasons": {"a3.h1": "its write hardly varies"},
    } | changes


def traced_text(id: str, nodes: list[str], length: int = 24, *, patched: bool = True, seed: int = 3, **changes: Any):
    """A text in which, if it is patched, the middle node stands out at the middle token."""
    rng = random.Random(f"{seed}{id}")
    tokens = [WORDS[0], *(f" {WORDS[number % len(WORDS)]}" for number in range(1, length))]
    z = [[None, *(rng.gauss(-0.3, 1.0) for _ in range(1, length))] for _ in nodes]
    if nodes[-1] == "logits":
        z[-1] = [None] * (length - 1) + [z[-1][-1]]
    middle, at = len(nodes) // 2, length // 2
    if patched:
        z[middle][at], z[middle][at + 1], z[(middle + 1) % len(nodes)][at + 1] = 9.137, 5.2, 4.6
    columns = [[row[position] for row in z] for position in range(length)]
    largest = [max((value for value in column if value is not None), default=None) for column in columns]
    best = [None if most is None else nodes[column.index(most)] for most, column in zip(largest, columns, strict=True)]
    suspects = [
        {"node": node, "position": position, "token": tokens[position], "z": row[position]}
        for node, row in zip(nodes, z, strict=True)
        for position in range(length)
        if row[position] is not None and row[position] >= 4.1
    ]
    suspects.sort(key=lambda suspect: -suspect["z"])
    sentence = "Every node wrote what is usual for a text like this; p = 0.62."
    if suspects:
        first = suspects[0]
        sentence = (
            f"{first['node']} wrote something unusual at token {first['position']} ({first['token']!r}): "
            f"z {first['z']:.1f}; p = 0.004."
        )
    return {
        "id": id,
        "text": "".join(tokens),
        "tokens": tokens,
        "token_ids": list(range(length)),
        "generated": None,
        "status": "ok",
        "reason": None,
        "z": z,
        "largest": largest,
        "at": best,
        "p_value": 0.004 if suspects else 0.62,
        "suspects": suspects,
        "sentence": sentence,
    } | changes


def failed_text(id: str, reason: str = "a text must have at least two tokens") -> dict[str, Any]:
    empty = {"tokens": None, "token_ids": None, "generated": None, "z": None, "largest": None, "at": None}
    return {"id": id, "text": HOSTILE, "status": "failed", "reason": reason, "p_value": None} | empty


def trace_lines(nodes: list[str]) -> list[dict[str, Any]]:
    """Five texts: patched, generated, usual, hostile, failed."""
    hostile = traced_text("hostile", nodes, 12)
    hostile["tokens"] = ["<script>", "alert(1)", "</script>", *hostile["tokens"][3:]]
    hostile["text"] = "".join(hostile["tokens"])
    return [
        traced_text("patched", nodes, 40),
        traced_text("written", nodes, 30, generated=12),
        traced_text("usual", nodes, 18, patched=False),
        hostile,
        failed_text("too short"),
    ]
