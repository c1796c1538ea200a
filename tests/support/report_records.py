"""Synthetic results for the report, without torch: circuits of any size, labels, attributions, hostile text."""

import math
import random
from dataclasses import dataclass, replace

from eics.circuits.graph import Circuit, Edge
from eics.scoring.options import CALIBRATED, CONFIGURATION, PAPER, WELL_POSED
from eics.scoring.result import EdgeTerm, NodeTerm, Score, Scores, failed

HOSTILE = "<script>document.title='pwned'</script> & <img src=x onerror=alert(1)> </script><!-- \u2028"
ALPHAS = [10.0 ** (power / 8) for power in range(-32, 33)]


def make_circuit(layers: int = 3, heads: int = 2, most: int | None = None, seed: int = 0) -> Circuit:
    """A small transformer in which every node reads all upstream nodes, thinned to `most` edges."""
    nodes, edges = ["input"], []
    for layer in range(layers):
        layer_heads = [f"a{layer}.h{head}" for head in range(heads)]
        edges += [f"{u}->{head}" for head in layer_heads for u in nodes]
        edges += [f"{u}->m{layer}" for u in [*nodes, *layer_heads]]
        nodes += [*layer_heads, f"m{layer}"]
    edges += [f"{u}->logits" for u in nodes]
    rng = random.Random(seed)
    if most is not None and most < len(edges):
        chain = {f"m{layer}->m{layer + 1}" for layer in range(layers - 1)} | {"input->m0", f"m{layers - 1}->logits"}
        rest = [edge for edge in edges if edge not in chain]
        kept = chain | set(rng.sample(rest, most - len(chain)))
        edges = [edge for edge in edges if edge in kept]
    scores = {Edge.parse(edge): rng.gauss(0, 1) ** 3 for edge in edges}
    positions = {f"a1.h{head}": [1, 2] for head in range(heads) if f"a1.h{head}" in nodes}
    return Circuit(edges, positions, name="made-up.json", scores=scores)


def make_score(circuit: Circuit, id: str | int, seed: int, preset: str = "paper", **fields) -> Score:
    """One result with coherent numbers: shares add up to 1, and the score is the product of its factors."""
    rng = random.Random(seed)
    options = PAPER if preset == "paper" else WELL_POSED
    edges = [edge for edge in circuit.edges if options.linearization == "jacobian" or edge.port not in ("q", "k")]
    squares = [rng.expovariate(1) ** 3 for _ in edges]
    terms = [
        EdgeTerm(*edge, s, s / sum(squares), rng.uniform(-1, 1), circuit.scores.get(edge))
        for edge, s in zip(edges, squares, strict=True)
    ]
    inner = {node: rng.expovariate(1) for node in circuit.inner}
    whole = sum(inner.values())
    nodes = [NodeTerm(node, s, s / whole) for node, s in inner.items()] if options.residual != "edge" else []
    norms = {node: 10 ** rng.uniform(0, 3) for node in circuit.nodes}
    dei, macro, c_sh = rng.uniform(-3, 5), 10.0, rng.uniform(0.2, 1.2)
    term = max(0.0, dei) / macro
    zero = 10 ** rng.uniform(-2, 2)
    tokens = ["The", " capital", " of", f" {id}", " is"]
    return Score(
        **{
            "id": id, "status": "clipped" if dei < 0 else "ok", "model": "made-up", "circuit": circuit.label(),
            "eics": term / (1 + c_sh), "c_sh": c_sh, "consistency": 1 / (1 + c_sh), "dei": dei, "dei_norm": term,
            "ei_macro": macro, "ei_parts": {node: rng.expovariate(0.1) for node in circuit.inner},
            "edges": tuple(sorted(terms, key=lambda edge: -edge.share)),
            "nodes": tuple(sorted(nodes, key=lambda node: -node.share)), "norms": norms,
            "node_positions": {node: list(kept) for node, kept in circuit.positions.items()},
            "alpha": 1.0, "mode": "lanczos", "dtype": "float32", "readout": "final_norm", "seed": 0,
            **{name: options[name] for name in CONFIGURATION},
            "stderr": {"dei": 0.1, "eics": 0.01, "dei_norm": 0.01, "ei_macro": 0.05},
            "diagnostics": {"length": 5, "share_position_0": 0.3, "share_top_edge": terms[0].share},
            "curve": {"alpha": ALPHAS, "dei": [math.log10(zero / a) * a**0.5 for a in ALPHAS], "zeros": [zero],
                      "ei_macro": ALPHAS},
            "prompt": "".join(tokens), "tokens": tokens,
        } | fields
    )  # fmt: skip


def make_scores(circuit: Circuit, prompts: int, presets: tuple[str, ...] = ("paper",), **fields) -> Scores:
    """Results of many prompts: two labels, and an answer for every second prompt."""
    return Scores(
        make_score(
            circuit, f"p{i}", 1000 * i + j, preset, label=("known", "invented")[i % 2],
            answer=None if i % 2 else f" answer {i}", **fields,
        )
        for i in range(prompts)
        for j, preset in enumerate(presets)
    )  # fmt: skip


def usual_scores() -> Scores:
    """The records behind most tests of the page: both presets, a hostile prompt, a failed one."""
    circuit = make_circuit()
    hostile = make_score(circuit, "<b>bold</b>", 77, prompt=HOSTILE, tokens=["<script>", "alert(1)", "</script>"])
    lost = failed("too long", "a prompt must have at most 32 tokens", circuit=circuit.label(), model="made-up")
    return Scores([*make_scores(circuit, 6, ("paper", "well-posed")), hostile, lost])


@dataclass(frozen=True)
class UsualTerm(NodeTerm):
    """A node's term with its distance from the usual one, as a calibration by node would give it."""

    z: float | None = None


def make_details(score: Score, seed: int = 0) -> dict:
    """Details of the agreed format: positions add up to the node's share, causal patterns add up to 1."""
    rng = random.Random(seed)
    length = len(score.tokens)
    positions = {}
    for term in score.nodes:
        parts = [rng.expovariate(1) for _ in range(length)]
        positions[term.node] = [term.share * part / sum(parts) for part in parts]
    patterns = {}
    for node in (node for node in score.norms if ".h" in node):
        rows = []
        for query in range(length):
            weights = [rng.expovariate(1) ** 2 for _ in range(query + 1)]
            rows.append([round(weight / sum(weights), 4) for weight in weights] + [0.0] * (length - 1 - query))
        patterns[node] = {"queries": list(range(length)), "rows": rows}
    tops = {
        node: [{"token": f" {node} top {i}", "id": i, "logit": 5.0 - i - rng.random()} for i in range(5)]
        for node in score.norms
        if node not in ("input", "logits")
    }
    return {"positions": positions, "patterns": patterns, "top_tokens": tops}


def make_expected(score: Score, seed: int = 0) -> dict:
    """What judged nodes wrote against what was expected of them; shares add up to 1, parents largest first."""
    rng = random.Random(seed)
    entries = {}
    for term in (term for term in score.nodes if term.z is not None):
        writes = ("wrote", "expected", "difference")
        tops = {
            name: [{"token": f" {name} {i}", "id": i, "logit": 4.0 - i - rng.random()} for i in range(5)]
            for name in writes
        }
        parents = [edge.source for edge in score.edges if edge.target == term.node]
        shares = sorted((rng.gauss(0, 0.3) for _ in dict.fromkeys(parents)), key=lambda share: -abs(share))
        entries[term.node] = {
            **tops, "parents": dict(zip(dict.fromkeys(parents), shares, strict=True)), "rest": 1 - sum(shares),
            "off_circuit": rng.gauss(0.5, 0.3),
        }  # fmt: skip
    return entries


def judged_scores(*, edges: bool = True, suspects: tuple[str, ...] = ("m1", "a2.h0"), prompts: int = 3) -> Scores:
    """Calibrated results: the suspects stand out on the first prompt, nothing does on the others, a0.h0 is not judged.

    Without edges they are as `terms="sheaf"` gives them: nothing of EI, and neither edges nor norms.
    """
    circuit = make_circuit()
    scores = []
    for i in range(prompts):
        score = make_score(circuit, f"p{i}", i, "well-posed")
        rng = random.Random(i)
        odd = {node: 9.0 - 3 * rank for rank, node in enumerate(suspects)} if i == 0 else {}
        terms = []
        for term in score.nodes:
            z = odd.get(term.node, rng.uniform(-2, 0.9))
            judged = {"z": z, "p": 0.004 if term.node in odd else rng.uniform(0.1, 1), "r2": rng.uniform(0.5, 0.99)}
            terms.append(replace(term, **judged if term.node != "a0.h0" else {"reason": "its write hardly varies"}))
        named = [node for node in suspects if node in odd]
        sheaf = dict.fromkeys(("eics", "dei", "dei_norm", "ei_macro", "emergence_ratio", "alpha", "curve"))
        less = {"edges": (), "ei_parts": {}, "norms": {}, "stderr": {}, **sheaf} if not edges else {}
        detailed = make_details(score, i) | {"expected": make_expected(replace(score, nodes=tuple(terms)), i)}
        scores.append(
            replace(
                score, status="ok", nodes=tuple(sorted(terms, key=lambda term: 9 if term.z is None else -term.z)),
                c_ref=score.c_sh, p_value=0.004 if odd else 0.5, p_value_mean=0.25, suspects=named,
                residual=CALIBRATED.residual, mode="fast", options={"level": 0.05},
                diagnostics={"length": 5, "reference_prompts": 249}, details=detailed if edges else None,
                **less,
            )
        )  # fmt: skip
    return Scores(scores)


def detailed_scores(prompts: int = 4, presets: tuple[str, ...] = ("well-posed",), **fields) -> Scores:
    """Results with everything a record may have: details, predictions, warnings, percentiles and deviations."""
    scores = []
    for number, score in enumerate(make_scores(make_circuit(), prompts, presets, **fields)):
        rng = random.Random(number)
        nodes = tuple(UsualTerm(term.node, term.residual, term.share, rng.gauss(0, 2)) for term in score.nodes)
        percentiles = {name: rng.uniform(0, 100) for name in ("eics", "c_sh", "dei")}
        calibration = {"prompts": 50, "percentiles": percentiles}
        scores.append(
            replace(
                score, nodes=nodes, details=make_details(score, number), percentile=percentiles["eics"],
                diagnostics=score.diagnostics | {"calibration": calibration},
                predictions=[
                    {"token": token, "id": i, "probability": p}
                    for i, (token, p) in enumerate([(" Paris", 0.61), (" <b>", 0.2), ("\n", 0.004)])
                ],
                warnings=[{"code": "ratio", "text": "The ratio <i>r</i> is 1e-9: hardly any path reaches the sinks."}],
            )
        )  # fmt: skip
    return Scores(scores)
