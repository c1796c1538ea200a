"""What the page of two sets of prompts shows: `compare.json` of kind "prompts", checked and made small."""

from typing import Any

import numpy as np

from eics.reporting.page.fields import Fields, Interval, is_number
from eics.reporting.page.packing import hundredths, short, shorts
from eics.reporting.page.parts import circuit_fact, in_order, kind_of, named_nodes, picture, short_hash, told_apart
from eics.reporting.page.runs import last_name

ROLES = ("entry", "inherits", None)


def sets_data(document: Fields) -> dict[str, Any]:
    """The data of the page of two sets of prompts."""
    model, sets = last_name(document.text("model")), document.nested("sets")
    nodes = named_nodes(document)
    graph, notes = picture(document, in_order(list(nodes)))
    described = {side: _set(sets.nested(side)) for side in ("a", "b")}
    return {
        "title": f"EICS · {described['b']['name']} against {described['a']['name']}",
        "notes": notes,
        "sentences": document.texts("sentences"),
        "sets": described,
        "level": document.number("level"),
        "paired": document.flag("paired"),
        "facts": _facts(document, model),
        "graph": graph,
        "nodes": [_node(name, entry) for name, entry in nodes.items()],
        "prompts": told_apart(_prompt(entry, list(nodes)) for entry in document.objects("prompts")),
    }


def _set(entry: Fields) -> dict[str, Any]:
    counts = {name: entry.whole(name) for name in ("prompts", "compared", "groups", "failed")}
    return {"name": last_name(entry.text("name"))} | counts


def _facts(document: Fields, model: str) -> list[list[str]]:
    calibration, grouped = document.text_or_none("calibration"), document.flag("grouped")
    level, fingerprint = document.number("level"), short_hash(document.text_or_none("fingerprint"))
    test = "Wilcoxon signed-rank over pairs" if document.flag("paired") else "Mann-Whitney"
    return [
        ["model", f"{model} ({fingerprint})" if fingerprint else model],
        ["circuit", circuit_fact(document.nested_or_none("circuit"), document.texts("edges"))],
        ["calibration", short_hash(calibration) or "fitted on A"],
        ["test", f"{test}{', over means of groups' * grouped}"],
        ["level", "not known" if level is None else f"{level:.3g}, of false discoveries over the judged nodes"],
    ]


def _node(name: str, entry: Fields) -> dict[str, Any]:
    return {
        "node": name,
        "kind": kind_of(name),
        "shift": _shortened(entry.interval("shift")),
        "write": _shortened(entry.interval("write_shift")),
        "role": entry.one_of("role", ROLES),
        "reason": entry.text_or_none("reason"),
        **{field: _short(entry.number(field)) for field in ("p", "q", "write_p", "write_q", "r2")},
    }


def _short(number: float | None) -> float | None:
    return None if number is None else short(number)


def _shortened(interval: Interval | None) -> Interval | None:
    return interval and shorts(interval)


def _prompt(entry: Fields, nodes: list[str]) -> dict[str, Any]:
    z = entry.mapping("z", "a finite number or null", is_number)
    letters, far = hundredths(np.array([z.get(node) for node in nodes], dtype=float))
    return {
        "set": entry.one_of("set", ("a", "b")),
        "id": entry.identity("id"),
        "prompt": entry.text_or_none("prompt"),
        "group": None if entry.absent("group") else entry.identity("group"),
        "z": letters,
        **({"far": far} if far else {}),
    }
