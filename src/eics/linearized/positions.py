"""Which positions count: padding, the circuit's own restrictions and the `positions` option, all as one mask."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.errors import OptionError
from eics.linalg.host_device import to_device, to_host
from eics.linalg.scaled import Scaled
from eics.linearized.circuit import Entry, LinearizedCircuit, Stalk


def restricted(linearized: LinearizedCircuit, option: str) -> LinearizedCircuit:
    """The circuit on the positions that `option` (`all`, `no_sink`, `last`) and the circuit itself keep."""
    circuit = linearized.circuit
    by_kind: dict[object, Tensor | None] = {}  # most nodes keep the same positions: ask the device once
    masks: dict[str, Tensor | None] = {}
    for node in circuit.order:
        stalk = linearized.stalks[node]
        is_readout = Node.parse(node).kind is Kind.LOGITS
        key = (id(stalk.positions), id(stalk.mask), circuit.positions.get(node), is_readout)
        if key not in by_kind:
            by_kind[key] = stalk.mask if is_readout else _mask(linearized, node, option)
        masks[node] = by_kind[key]
    if all(mask is None for mask in masks.values()):
        return linearized
    stalks = dict(linearized.stalks)
    for node, mask in masks.items():
        if mask is not None:
            stalks[node] = stalks[node].masked(mask)
    unions: dict[object, Tensor | None] = {}
    entries = {
        node: tuple(_masked_entry(entry, stalks, unions) for entry in entries)
        for node, entries in linearized.entries.items()
    }
    return replace(linearized, stalks=stalks, entries=entries)


def _mask(linearized: LinearizedCircuit, node: str, option: str) -> Tensor | None:
    """The node's mask under this option; None if every position counts."""
    stalk, own = linearized.stalks[node], linearized.circuit.positions.get(node)
    positions, valid = stalk.positions, stalk.mask
    if positions is None or (option == "all" and own is None):
        return valid
    keep = torch.ones_like(positions, dtype=torch.bool).unsqueeze(0)
    if option == "no_sink":
        keep = keep & (positions >= 1)
    elif option == "last":
        counted = positions if valid is None else positions.masked_fill(valid == 0, -1)
        keep = keep & (positions == counted.amax(dim=-1, keepdim=True))
    if own is not None:
        keep = keep & torch.isin(positions, to_device(own, positions.device))
    if valid is not None:
        keep = keep & (valid > 0)
    every_prompt_keeps_one, all_kept = to_host(torch.stack([keep.any(dim=1).all(), keep.all()]))
    if not every_prompt_keeps_one:
        raise OptionError(
            f"Restricting positions to {option!r} must leave every node a position. "
            f"Node {node!r} has none left: use positions='all', longer prompts or other positions for the node."
        )
    return None if all_kept else keep.to(linearized.dtype)


def _masked_entry(entry: Entry, stalks: Mapping[str, Stalk], unions: dict[object, Tensor | None]) -> Entry:
    """Rows as the node keeps them, columns that any parent of the entry keeps; `unions` remembers the latter."""
    target = stalks[entry.target]
    masks = {id(mask): mask for mask in (stalks[edge.source].mask for edge in entry.edges)}
    key = frozenset(masks)
    if key not in unions:
        unions[key] = _union(list(masks.values()))
    read = unions[key]
    left, right = (
        like.new_ones(1, like.shape[1]) if mask is None else mask
        for mask, like in ((target.mask, target.activation), (read, entry.read))
    )
    return replace(entry, operator=Scaled(entry.operator, left, right), mask=read)


def _union(masks: Sequence[Tensor | None]) -> Tensor | None:
    known = [mask for mask in masks if mask is not None]
    if len(known) < len(masks):
        return None
    return known[0] if len(known) == 1 else torch.stack(torch.broadcast_tensors(*known)).amax(dim=0)
