"""The numbers of a scored batch, packed on the device until they are copied to the host together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Edge
from eics.linalg import precision
from eics.linalg.host_device import Packed
from eics.linalg.spectrum import Estimate
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.alpha import AlphaCalibration, Curve
from eics.scoring.calibration.sheaf.judge import Judged
from eics.scoring.emergence import Emergence, EmergenceSpectra
from eics.scoring.formula import discounted
from eics.scoring.laplacian import laplacian_spectrum, project
from eics.scoring.options import RECORDED, Options
from eics.scoring.sheaf import SheafTerm


@dataclass(frozen=True)
class Frame:
    """What the results of a batch share, whatever was computed: circuit, precision, and numbers of its stalks."""

    circuit: Circuit
    dtype: torch.dtype
    tensors: dict[str, Tensor | None]
    nodes: tuple[str, ...] = ()
    edges_left_out: int = 0
    laplacians: Sequence[dict[str, Any]] | None = None

    @classmethod
    def of(cls, linearized: LinearizedCircuit, options: Options) -> "Frame":
        """Of a linearized circuit."""
        return cls(
            linearized.circuit,
            linearized.dtype,
            _stalk_tensors(linearized, linearized.batch),
            tuple(linearized.stalks),
            linearized.edges_left_out,
            _laplacians(linearized) if options.laplacian else None,
        )

    @property
    def node_positions(self) -> dict[str, list[int]]:
        """The token positions to which the circuit restricts nodes."""
        return {node: list(kept) for node, kept in self.circuit.positions.items()}


@dataclass(frozen=True)
class EmergenceTerm:
    """The emergence term: its spectra, its values at the alpha that was used, and how that was chosen."""

    spectra: EmergenceSpectra
    emergence: Emergence
    alpha: float
    calibration: AlphaCalibration | None
    curve: Curve | None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(self.spectra.parts)

    @property
    def sampled_parts(self) -> list[str]:
        """The parts whose EI has a standard error."""
        return [name for name, spectrum in self.spectra.parts.items() if spectrum.sampled]

    @property
    def methods(self) -> dict[str, Any]:
        """How EI was computed for the macro map and for each part."""
        parts = {name: spectrum.method for name, spectrum in self.spectra.parts.items()}
        return {"macro": self.spectra.macro.method, "parts": parts}


class Computed:
    """What Algorithm 1 computed for a batch, less the maps: numbers still on the device, and what all results share.

    Making one does not synchronise with the device, unless Laplacian spectra are wanted.
    """

    def __init__(
        self,
        frame: Frame,
        options: Options,
        *,
        sheaf: SheafTerm,
        by_edge: SheafTerm | None,
        term: EmergenceTerm | None,
        judged: Judged | None = None,
        likeliest: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.options, self.term, self.judged, self.frame = options, term, judged, frame
        # An explicit circuit has no read-out; `assemble` adds that of a model.
        self.used: dict[str, Any] = {name: options[name] for name in RECORDED if name != "readout"}
        self.used |= {"dtype": str(frame.dtype).removeprefix("torch.")}
        if term is not None:
            self.used["alpha"] = term.alpha
        self.products = precision.rounding()
        self.sheaf_names = sheaf.names
        self.edges = [] if by_edge is None else [edge for edge in by_edge.names if isinstance(edge, Edge)]
        self.attributions = [frame.circuit.scores.get(edge) for edge in self.edges]
        self.eics = None if term is None else discounted(term.emergence.term.value, sheaf.c_sh)
        tensors = {"eics": self.eics} | _sheaf_tensors(sheaf, by_edge) | frame.tensors
        if term is not None:
            tensors |= _emergence_tensors(term.emergence)
        if judged is not None:
            tensors |= judged.tensors
        if likeliest is not None:
            tensors |= {"predicted": likeliest[0], "probability": likeliest[1].to(sheaf.c_sh.dtype)}
        self.packed = Packed({name: tensor for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True)
class ConfigurationResult:
    """The numbers of a batch in one configuration, or the reason why there are none; extra diagnostics and details."""

    computed: Computed | str
    extra: Sequence[dict[str, Any]] | None = None
    details: Sequence[dict[str, Any]] | None = None


def _sheaf_tensors(sheaf: SheafTerm, by_edge: SheafTerm | None) -> dict[str, Tensor | None]:
    """Prompts come first, as in all tensors below."""
    nodes: dict[str, Tensor | None] = {"node residual": sheaf.residual, "node share": sheaf.share}
    if by_edge is None:
        finite = sheaf.residual.isfinite().all(dim=1)
        return {"c_sh": sheaf.c_sh, "first": sheaf.first_position, "finite": finite} | nodes
    finite = by_edge.residual.isfinite().all(dim=1)
    columns = {
        "c_sh": sheaf.c_sh,
        "first": sheaf.first_position,
        "finite": finite,
        "residual": by_edge.residual,
        "share": by_edge.share,
        "cosine": by_edge.cosine,
    }
    if sheaf is by_edge:
        return columns
    finite = finite & sheaf.residual.isfinite().all(dim=1)
    return columns | {"finite": finite} | nodes


def _emergence_tensors(emergence: Emergence) -> dict[str, Tensor | None]:
    ratio, macro, parts = emergence.ratio, emergence.ei_macro, emergence.ei_parts
    bounded = macro.lower is not None or parts.lower is not None
    macro_bounds, parts_bounds = (_bounds(estimate) if bounded else (None, None) for estimate in (macro, parts))
    return {
        "dei": emergence.dei.value,
        "dei_norm": emergence.term.value,
        "ei_macro": macro.value,
        "emergence_ratio": None if ratio is None else ratio.value,
        "dei error": emergence.dei.stderr,
        "dei_norm error": emergence.term.stderr,
        "ei_macro error": macro.stderr,
        "emergence_ratio error": None if ratio is None else ratio.stderr,
        "parts": parts.value,
        "parts error": parts.stderr,
        "macro lower": macro_bounds[0],
        "macro upper": macro_bounds[1],
        "parts lower": parts_bounds[0],
        "parts upper": parts_bounds[1],
    }


def _bounds(estimate: Estimate) -> tuple[Tensor, Tensor]:
    """The bounds of a map's EI; an exact one is its own."""
    lower, upper = estimate.lower, estimate.upper
    return estimate.value if lower is None else lower, estimate.value if upper is None else upper


def _stalk_tensors(linearized: LinearizedCircuit, batch: int) -> dict[str, Tensor | None]:
    """||a_v|| over the positions that count, whether a node writes anything, and the positions of the longest stalk."""
    stalks = linearized.stalks.values()
    norms = torch.stack([stalk.norm.expand(batch) for stalk in stalks], dim=1)
    with_positions = [stalk for stalk in stalks if stalk.positions is not None]
    masks = {id(stalk.mask): stalk.mask for stalk in with_positions if stalk.mask is not None}
    unmasked = [stalk.activation.shape[1] for stalk in with_positions if stalk.mask is None]
    longest = torch.full((batch,), max([0, *unmasked]), device=norms.device)
    for mask in masks.values():
        longest = torch.maximum(longest, mask.count_nonzero(dim=1))
    return {"norms": norms, "writes": norms != 0, "length": longest if with_positions else None}


def _laplacians(linearized: LinearizedCircuit) -> list[dict[str, Any]]:
    spectra, sections = laplacian_spectrum(linearized), project(linearized)
    return [
        {
            "kernel_dim": spectrum.kernel_dim,
            "lambda2": spectrum.lambda2,
            "spectral_gap": spectrum.spectral_gap,
            "projection_distance": section.distance,
        }
        for spectrum, section in zip(spectra, sections, strict=True)
    ]
