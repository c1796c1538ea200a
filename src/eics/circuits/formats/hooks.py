"""TransformerLens hook names, as ACDC, InterpBench and auto-circuit use them, and auto-circuit's own names.

A hook sits where a node writes (`blocks.1.attn.hook_result`), where it reads (`blocks.1.hook_q_input`), or inside it
(`blocks.1.attn.hook_q`). Edges between hooks of the same node are not edges of a circuit.
"""

import re
from typing import NamedTuple

from eics.circuits.graph import Edge
from eics.errors import CircuitError


class Hook(NamedTuple):
    """A hook point: its node, its port if it has one, and whether the node writes there."""

    node: str
    port: str | None
    writes: bool


_INPUT = re.compile(r"(blocks\.0\.)?hook_(pos_)?embed|blocks\.0\.hook_resid_pre|Resid Start")
_LOGITS = re.compile(r"blocks\.(?P<layer>\d+)\.hook_resid_post|Resid End|unembed|hook_logits")
_HEAD = re.compile(
    r"blocks\.(?P<layer>\d+)\.(attn\.hook_(?P<out>result|z)|(attn\.)?hook_(?P<port>[qkv])(_input)?|hook_attn_in)"
)
_MLP = re.compile(r"blocks\.(?P<layer>\d+)\.(?P<hook>hook_mlp_out|hook_mlp_in|hook_resid_mid|mlp\.hook_post|mlp)")
_SHORT = re.compile(r"A(?P<layer>\d+)\.(?P<head>\d+)(\.(?P<port>[QKV]))?|MLP (?P<mlp>\d+)")
_INDEXED = re.compile(r"(?P<name>[^\[\]]+?)(\[(?P<index>[^\[\]]*)\])?")


def parse_hook(name: str, head: int | None) -> Hook:
    """Parses a hook name; `head` is the head that its index selects.

    >>> parse_hook("blocks.1.hook_q_input", 3)
    Hook(node='a1.h3', port='q', writes=False)
    """
    if _INPUT.fullmatch(name):
        return Hook("input", None, True)
    if _LOGITS.fullmatch(name):
        return Hook("logits", None, False)
    if match := _MLP.fullmatch(name):
        return Hook(f"m{int(match['layer'])}", None, match["hook"] in ("hook_mlp_out", "mlp.hook_post", "mlp"))
    if match := _SHORT.fullmatch(name):
        if match["mlp"]:
            return Hook(f"m{int(match['mlp'])}", None, True)
        port = match["port"].lower() if match["port"] else None
        return Hook(f"a{int(match['layer'])}.h{int(match['head'])}", port, port is None)
    if match := _HEAD.fullmatch(name):
        if head is None:
            raise CircuitError(f"must say which head it means by {name}: add an index such as (None, None, 3) or [3].")
        return Hook(f"a{int(match['layer'])}.h{head}", match["port"], match["out"] is not None)
    raise CircuitError(f"must name hooks of a transformer. Got {name[:80]!r}: no node of a circuit has this hook.")


def parse_indexed(text: str) -> Hook:
    """Parses a hook with its index: `blocks.1.attn.hook_result[3]`, or `[:, :, 3]`."""
    match = _INDEXED.fullmatch(text)
    if match is None:
        raise CircuitError(f"must name hooks as name[index]. Got {text[:80]!r}.")
    numbers = re.findall(r"\d+", match["index"] or "")
    return parse_hook(match["name"], int(numbers[-1]) if numbers else None)


def edge_between(sender: Hook, receiver: Hook, written: str) -> Edge | None:
    """The edge between two hooks, or None if both belong to the same node; `written` is how an error shows it."""
    if sender.node == receiver.node:
        return None
    if not sender.writes:
        raise CircuitError(f"must have edges that leave a node where it writes. Got {written}.")
    return Edge(sender.node, receiver.node, receiver.port)


def last_layer(name: str) -> int | None:
    """The layer L of `blocks.L.hook_resid_post`, or None for any other name."""
    match = _LOGITS.fullmatch(name)
    return int(match["layer"]) if match and match["layer"] else None
