"""What the page of two models shows: `compare.json` of kind "models", checked and made small."""

from typing import Any

from eics.reporting.page.fields import Fields, Interval
from eics.reporting.page.packing import short, shorts
from eics.reporting.page.parts import (
    check_name,
    circuit_fact,
    in_order,
    kind_of,
    named_nodes,
    picture,
    short_hash,
    told_apart,
)
from eics.reporting.page.runs import last_name

METRICS = {
    "kl": ("KL", "KL(A ‖ B) of the next token, in nats"),
    "log_prob": ("log prob", "log-probability of the answer, B minus A, in nats"),
    "logit_diff": ("logit diff", "logit difference, B minus A"),
}
"""The metrics of a comparison: a short name, and what it is."""


def models_data(document: Fields) -> dict[str, Any]:
    """The data of the page of two models."""
    a, b = last_name(document.text("model")), last_name(document.text("against"))
    metric = document.one_of("metric", list(METRICS))
    nodes = named_nodes(document)
    graph, notes = picture(document, in_order(list(nodes)))
    total = _shortened(document.interval("total"))
    return {
        "title": f"EICS · {a} against {b}",
        "notes": notes,
        "sentences": document.texts("sentences"),
        "models": [_model(document, a, "model"), _model(document, b, "against")],
        "metric": METRICS[metric],
        "total": total,
        "facts": _facts(document, metric),
        "graph": graph,
        "nodes": [_node(name, entry, total) for name, entry in nodes.items()],
        "prompts": told_apart(_prompt(entry) for entry in document.objects("prompts")),
    }


def _model(document: Fields, name: str, side: str) -> dict[str, Any]:
    return {"name": name, "fingerprint": short_hash(document.nested("fingerprints").text_or_none(side))}


def _facts(document: Fields, metric: str) -> list[list[str]]:
    residue = document.number("residue")
    return [
        ["circuit", circuit_fact(document.nested_or_none("circuit"), document.texts("edges"))],
        ["metric", METRICS[metric][1]],
        ["left unattributed", "not known" if residue is None else f"{residue:.2g} of the change"],
        ["precision", document.text("dtype")],
        ["seed", str(document.whole("seed"))],
    ]


def _node(name: str, entry: Fields, total: Interval | None) -> dict[str, Any]:
    effect = _shortened(entry.interval("effect"))
    whole, part = (interval[0] if interval else None for interval in (total, effect))
    numbers = {field: entry.number(field) for field in ("made_here", "inherited")}
    if (made := numbers["made_here"]) is not None and made < 0:
        raise entry.refuse("made_here", "a number of at least 0", made)
    return {
        "node": name,
        "kind": kind_of(name),
        "made": None if numbers["made_here"] is None else short(numbers["made_here"]),
        "inherited": None if numbers["inherited"] is None else short(numbers["inherited"]),
        "effect": effect,
        "restored": _shortened(entry.interval("restored")),
        "share": short(part / whole) if part is not None and whole else None,
    }


def _shortened(interval: Interval | None) -> Interval | None:
    return interval and shorts(interval)


def _prompt(entry: Fields) -> dict[str, Any]:
    effects = [_effect(entry, index, pair) for index, pair in enumerate(entry.items("effects"))]
    total = entry.number("total")
    return {
        "id": entry.identity("id"),
        "prompt": entry.text_or_none("prompt"),
        "total": None if total is None else short(total),
        "touched": entry.flag("touched"),
        "before": entry.text_or_none("before"),
        "after": entry.text_or_none("after"),
        "effects": effects,
    }


def _effect(entry: Fields, index: int, pair: Any) -> list[Any]:
    """A node's effect on a prompt: its name and a number."""
    field = f"effects[{index}]"
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise entry.refuse(field, "a pair of a node and a number", pair)
    read = Fields({"node": pair[0], "number": pair[1]}, "comparison", entry.at(field))
    name, number = read.text("node"), read.number("number")
    check_name(read, "node", name)
    return [name, None if number is None else short(number)]
