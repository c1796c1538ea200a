"""The numbers of a scored batch, packed on the device until they are copied to the host together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg import precision
from eics.linalg.host_device import Packed
from eics.linalg.spectrum import Estimate
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.alpha import AlphaCalibration, Curve
from eics.scoring.emergence import Emergence, EmergenceSpectra
from eics.scoring.laplacian import laplacian_spectrum, project
from eics.scoring.options import RECORDED, Options
from eics.scoring.sheaf import SheafTerm


class Computed:
    """What Algorithm 1 computed for a batch, less the maps: numbers still on the device, and what all results share.

    Making one does not synchronise with the device, unless Laplacian spectra are wanted.
    """

    def __init__(
        self,
        linearized: LinearizedCircuit,
        options: Options,
        *,
        sheaf: SheafTerm,
        by_edge: SheafTerm,
        spectra: EmergenceSpectra,
        emergence: Emergence,
        eics: Tensor,
        alpha: float,
        calibration: AlphaCalibration | None,
        curve: Curve | None,
        likeliest: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        batch = linearized.batch
        self.options, self.calibration, self.curve, self.eics = options, calibration, curve, eics
        self.laplacians = _laplacians(linearized) if options.laplacian else [{}] * batch
        # An explicit circuit has no read-out; `assemble` adds that of a model.
        self.used: dict[str, Any] = {name: options[name] for name in RECORDED if name != "readout"}
        self.used |= {"alpha": alpha, "dtype": str(linearized.dtype).removeprefix("torch.")}
        self.nodes, self.parts = tuple(linearized.stalks), tuple(spectra.parts)
        self.sampled_parts = [name for name, spectrum in spectra.parts.items() if spectrum.sampled]
        self.methods = {name: spectrum.method for name, spectrum in spectra.parts.items()}
        self.macro_sampled, self.macro_method = spectra.macro.sampled, spectra.macro.method
        self.sampled = spectra.sampled
        self.edges_left_out = linearized.edges_left_out
        self.products = precision.rounding()
        self.node_positions = {node: list(kept) for node, kept in linearized.circuit.positions.items()}
        self.sheaf_names = sheaf.names
        self.edges = [edge for edge in by_edge.names if isinstance(edge, Edge)]
        self.attributions = [linearized.circuit.scores.get(edge) for edge in self.edges]
        tensors = {"eics": eics} | _sheaf_tensors(sheaf, by_edge) | _emergence_tensors(emergence)
        tensors |= _stalk_tensors(linearized, batch)
        if likeliest is not None:
            tensors |= {"predicted": likeliest[0], "probability": likeliest[1].to(eics.dtype)}
        self.packed = Packed({name: tensor for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True)
class ConfigurationResult:
    """The numbers of a batch in one configuration, or the reason why there are none; extra diagnostics and details."""

    computed: Computed | str
    extra: Sequence[dict[str, Any]] | None = None
    details: Sequence[dict[str, Any]] | None = None


def _sheaf_tensors(sheaf: SheafTerm, by_edge: SheafTerm) -> dict[str, Tensor | None]:
    """Prompts come first, as in all tensors below."""
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
    return columns | {"finite": finite, "node residual": sheaf.residual, "node share": sheaf.share}


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
