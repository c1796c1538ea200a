"""Explicit linear circuits on disk, as safetensors: plain numbers behind a JSON header, nothing that could run.

Tensors are `map:u->v<q>`, `activation:v` and `constant:v`, shaped as `LinearCircuit` takes them. The header's
metadata has `format: eics-linear`, `version`, `edges` (a JSON list, in order), `batched`, and `positions` (a JSON
object) where nodes are restricted.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eics.data.files import nameable, write_bytes
from eics.data.json_text import parse_json
from eics.errors import CircuitError
from eics.linearized.explicit import LinearCircuit

FORMAT = "eics-linear"
VERSION = "1"


def save_linear(circuit: LinearCircuit, path: str | Path) -> None:
    """Writes an explicit circuit, in its working precision; the file appears whole, in place of an earlier one."""
    from safetensors.torch import save

    tensors = {f"map:{edge}": matrix for edge, matrix in circuit.maps.items()}
    tensors |= {f"activation:{node}": circuit.as_given(node, a) for node, a in circuit.activations.items()}
    tensors |= {f"constant:{node}": circuit.as_given(node, b) for node, b in circuit.constants.items()}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "edges": json.dumps([str(edge) for edge in circuit.circuit.edges]),
        "batched": json.dumps(circuit.batched),
        "positions": json.dumps(circuit.circuit.positions),
    }
    write_bytes(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=metadata))


def load_linear(path: str | Path) -> LinearCircuit:
    """Reads an explicit circuit; anything else is refused with what is wrong."""
    metadata, tensors = _read(nameable(path))
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        came = f"format {metadata.get('format')!r}, version {metadata.get('version')!r}"
        raise CircuitError(f"{str(path)!r} must have format {FORMAT!r}, version {VERSION!r}. Got {came}.")
    try:
        edges, batched, positions = (parse_json(metadata[name]) for name in ("edges", "batched", "positions"))
        maps = {edge: tensors.pop(f"map:{edge}") for edge in edges}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise CircuitError(f"{str(path)!r} must name its edges and hold a map for each. Trouble at {error}.") from None
    grouped: dict[str, dict[str, Tensor]] = {"activation": {}, "constant": {}}
    for name, tensor in tensors.items():
        kind, _, node = name.partition(":")
        if kind not in grouped:
            raise CircuitError(f"Tensor {name!r} of {str(path)!r} must be a map of a listed edge or of a node.")
        grouped[kind][node] = tensor
    if not isinstance(positions, dict):
        raise CircuitError(f"The 'positions' of {str(path)!r} must be an object of lists. Got {positions!r}.")
    single = all(tensor.dtype == torch.float32 for tensor in maps.values())
    return LinearCircuit(
        maps,
        grouped["activation"],
        constants=grouped["constant"],
        positions=positions,
        batched=bool(batched),
        dtype=torch.float32 if single else torch.float64,
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CircuitError(
            f"The circuit must be a safetensors file that can be read. Got {str(path)!r}: {reason}."
        ) from None
