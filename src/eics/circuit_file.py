"""Circuits on disk: our own JSON.

{"format": "eics-circuit", "version": 1, "edges": ["input->a0.h1", "a0.h1->logits"], "positions": {"a0.h1": [3]}}
"""

import json
from importlib.resources import files
from pathlib import Path

from eics.circuit import Circuit
from eics.errors import CircuitError

FORMAT = "eics-circuit"
VERSION = 1


def load_circuit(path: str | Path) -> Circuit:
    """Reads a circuit file, or a bundled circuit by its name.

    >>> load_circuit("facts-by-hand").sinks
    ('logits',)
    """
    bundled = files("eics") / "circuits" / f"{path}.json"
    try:
        text = Path(path).read_text(encoding="utf-8") if not bundled.is_file() else bundled.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(bundled_circuits())
        reason = getattr(error, "strerror", None) or "not text"
        raise CircuitError(
            f"The circuit must be a readable file, or one of {names}. Got {str(path)!r}: {reason}."
        ) from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise CircuitError(f"The circuit file {str(path)!r} must be JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CircuitError(f"The circuit file {str(path)!r} must have format {FORMAT!r}, version {VERSION}.")
    edges, positions = content.get("edges"), content.get("positions") or {}
    if not isinstance(edges, list) or not isinstance(positions, dict):
        raise CircuitError(
            f"The circuit file {str(path)!r} must have a list of 'edges' (and an object of 'positions')."
        )
    return Circuit(edges, positions, name=str(path))


def save_circuit(circuit: Circuit, path: str | Path) -> None:
    """Writes a circuit file."""
    content = {"format": FORMAT, "version": VERSION, "edges": [str(edge) for edge in circuit.edges]}
    if circuit.positions:
        content["positions"] = {node: list(kept) for node, kept in circuit.positions.items()}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def bundled_circuits() -> list[str]:
    """Names of the circuits that come with the package."""
    folder = files("eics") / "circuits"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
