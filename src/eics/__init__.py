"""EICS, the Effective-Information Consistency Score: is this circuit working on this prompt?

>>> import eics
>>> circuit = eics.Circuit.from_edges(["input->a0.h1", "a0.h1->logits"])
>>> circuit.sinks
('logits',)

Everything is imported when it is first used: `import eics` alone is quick.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eics.calibrate import calibrate
    from eics.calibration import Calibration
    from eics.calibration_file import load_calibration, save_calibration
    from eics.circuit import Circuit, Edge, Node
    from eics.circuit_file import load_circuit
    from eics.damage import damage
    from eics.errors import CircuitError, EICSError, ModelError, OptionError, RecordError
    from eics.linear import LinearCircuit
    from eics.models import adapt, load_model
    from eics.options import PAPER, WELL_POSED, Options
    from eics.records import read_records, write_records
    from eics.result import Score, Scores
    from eics.score import score
    from eics.validation.run import validate

__version__ = "0.1.0"

_WHERE = {
    "Calibration": "calibration",
    "calibrate": "calibrate",
    "load_calibration": "calibration_file",
    "save_calibration": "calibration_file",
    "Circuit": "circuit",
    "load_circuit": "circuit_file",
    "adapt": "models",
    "load_model": "models",
    "damage": "damage",
    "Edge": "circuit",
    "Node": "circuit",
    "CircuitError": "errors",
    "EICSError": "errors",
    "ModelError": "errors",
    "OptionError": "errors",
    "RecordError": "errors",
    "LinearCircuit": "linear",
    "PAPER": "options",
    "WELL_POSED": "options",
    "Options": "options",
    "read_records": "records",
    "write_records": "records",
    "Score": "result",
    "Scores": "result",
    "score": "score",
    "validate": "validation.run",
}

__all__ = [
    "PAPER",
    "WELL_POSED",
    "Calibration",
    "Circuit",
    "CircuitError",
    "EICSError",
    "Edge",
    "LinearCircuit",
    "ModelError",
    "Node",
    "OptionError",
    "Options",
    "RecordError",
    "Score",
    "Scores",
    "__version__",
    "adapt",
    "calibrate",
    "damage",
    "load_calibration",
    "load_circuit",
    "load_model",
    "read_records",
    "save_calibration",
    "score",
    "validate",
    "write_records",
]


def __getattr__(name: str) -> Any:
    try:
        if name in _WHERE:
            value = getattr(import_module(f"eics.{_WHERE[name]}"), name)
            globals()[name] = value
            return value
        return import_module(f"eics.{name}")  # a module such as eics.laplacian
    except ModuleNotFoundError as error:
        if error.name != f"eics.{name}":
            raise  # something that eics needs is not installed
        raise AttributeError(f"module 'eics' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `eics.score` the function: importing the module of that name would put the module in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if _WHERE.get(name) == name and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
