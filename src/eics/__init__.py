"""EICS, the Effective-Information Consistency Score: is this circuit working on this prompt?

>>> import eics
>>> circuit = eics.Circuit.from_edges(["input->a0.h1", "a0.h1->logits"])
>>> circuit.sinks
('logits',)

Everything is imported on first use, so `import eics` alone is quick. The rooms below, in the order in which one may
import another: `data`, then `linalg` and `circuits`, then `linearized` and `models`, then `transformer`, `scoring`,
`reporting`, `studies` and `cli`. A score runs in `scoring/batch.py`; `docs/architecture.md` has the map.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eics.circuits.graph import Circuit, Edge, Node
    from eics.circuits.load import load_circuit
    from eics.errors import CircuitError, EICSError, ModelError, OptionError, RecordError
    from eics.linalg.check import check_operator
    from eics.linearized.explicit import LinearCircuit
    from eics.models.prompt_files import read_prompts
    from eics.models.prompts import Prompt
    from eics.scoring.api import score
    from eics.scoring.calibration.calibration import Calibration
    from eics.scoring.calibration.file import load_calibration, save_calibration
    from eics.scoring.calibration.fit import calibrate
    from eics.scoring.options import CALIBRATED, PAPER, WELL_POSED, Options
    from eics.scoring.records import read_records, write_records
    from eics.scoring.result import Score, Scores
    from eics.studies.comparison.front import compare
    from eics.studies.damage import damage
    from eics.studies.tracing.result import Trace, Traces
    from eics.studies.tracing.run import trace
    from eics.studies.validation.run import validate
    from eics.transformer.adapt import adapt, load_model
    from eics.transformer.interventions import Ablate, Noise, Patch, PatchRead, Steer

__version__ = "0.1.0"

_NAMES = {
    "Circuit": "circuits.graph",
    "Edge": "circuits.graph",
    "Node": "circuits.graph",
    "load_circuit": "circuits.load",
    "CircuitError": "errors",
    "EICSError": "errors",
    "ModelError": "errors",
    "OptionError": "errors",
    "RecordError": "errors",
    "check_operator": "linalg.check",
    "LinearCircuit": "linearized.explicit",
    "read_prompts": "models.prompt_files",
    "Prompt": "models.prompts",
    "adapt": "transformer.adapt",
    "load_model": "transformer.adapt",
    "Ablate": "transformer.interventions",
    "Noise": "transformer.interventions",
    "Patch": "transformer.interventions",
    "PatchRead": "transformer.interventions",
    "Steer": "transformer.interventions",
    "score": "scoring.api",
    "Calibration": "scoring.calibration.calibration",
    "load_calibration": "scoring.calibration.file",
    "save_calibration": "scoring.calibration.file",
    "calibrate": "scoring.calibration.fit",
    "CALIBRATED": "scoring.options",
    "PAPER": "scoring.options",
    "WELL_POSED": "scoring.options",
    "Options": "scoring.options",
    "read_records": "scoring.records",
    "write_records": "scoring.records",
    "Score": "scoring.result",
    "Scores": "scoring.result",
    "compare": "studies.comparison.front",
    "damage": "studies.damage",
    "Trace": "studies.tracing.result",
    "Traces": "studies.tracing.result",
    "trace": "studies.tracing.run",
    "validate": "studies.validation.run",
}
"""Where each public name lives."""

_MODULES = {
    "formats": "circuits.formats",
    "linear_file": "linearized.explicit_file",
    "testing": "transformer.check",
    "interventions": "transformer.interventions",
    "alpha": "scoring.alpha",
    "baselines": "scoring.baselines",
    "laplacian": "scoring.laplacian",
    "drawing": "reporting.drawing",
    "plots": "reporting.plots",
    "report": "reporting.page",
    "discovery": "studies.discovery",
    "tracking": "studies.tracking",
}
"""Modules that users call by a shorter name: `eics.laplacian.project`."""

__all__ = [
    "CALIBRATED",
    "PAPER",
    "WELL_POSED",
    "Ablate",
    "Calibration",
    "Circuit",
    "CircuitError",
    "EICSError",
    "Edge",
    "LinearCircuit",
    "ModelError",
    "Node",
    "Noise",
    "OptionError",
    "Options",
    "Patch",
    "PatchRead",
    "Prompt",
    "RecordError",
    "Score",
    "Scores",
    "Steer",
    "Trace",
    "Traces",
    "__version__",
    "adapt",
    "calibrate",
    "check_operator",
    "compare",
    "damage",
    "load_calibration",
    "load_circuit",
    "load_model",
    "read_prompts",
    "read_records",
    "save_calibration",
    "score",
    "trace",
    "validate",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(f"eics.{_NAMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"eics.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'eics' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
