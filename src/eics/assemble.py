"""From the tensors of a scored batch to one result for each prompt: numbers, diagnostics, status, reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eics.alpha import AlphaCalibration, Curve
from eics.circuit import Edge
from eics.emergence import Emergence, EmergenceSpectra
from eics.laplacian import laplacian_spectrum, project
from eics.linearize import LinearizedCircuit
from eics.options import Options
from eics.result import EdgeTerm, NodeTerm, Score, Scores, failed
from eics.sheaf import SheafTerm
from eics.spectrum import Estimate
from eics.tensors import on_cpu

_USED = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "seed")


@dataclass(frozen=True)
class Parts:
    """Everything that Algorithm 1 computed for a batch."""

    linearized: LinearizedCircuit
    sheaf: SheafTerm
    by_edge: SheafTerm
    spectra: EmergenceSpectra
    emergence: Emergence
    alpha: float
    calibration: AlphaCalibration | None
    curve: Curve | None
    eics: Tensor

    def here(self) -> "Parts":
        """Every number on the CPU: fetched together once, not each by itself for each prompt."""
        moved: Parts = on_cpu(replace(self, linearized=None))  # type: ignore[arg-type]
        return replace(moved, linearized=self.linearized)


@dataclass(frozen=True)
class Stalks:
    """What a result says of each node's activation, for each prompt: lists by prompt, then by node."""

    nodes: tuple[str, ...]
    norms: list[list[float]]
    writes: list[list[bool]]
    lengths: list[int | None]

    @classmethod
    def of(cls, linearized: LinearizedCircuit, batch: int) -> "Stalks":
        """||a_v|| over the positions that count, whether it writes at all, and positions of the longest stalk."""
        flat = [stalk.flat.expand(batch, -1) for stalk in linearized.stalks.values()]
        norms = torch.stack([torch.linalg.vector_norm(one, dim=1) for one in flat], dim=1)
        writes = torch.stack([one.any(dim=1) for one in flat], dim=1)
        placed = [stalk for stalk in linearized.stalks.values() if stalk.positions is not None]
        lengths: list[int | None] = [None] * batch
        if placed:
            counts = [
                norms.new_full((batch,), stalk.activation.shape[1]) if stalk.mask is None else stalk.mask.sum(dim=1)
                for stalk in placed
            ]
            most = torch.stack([count.expand(batch) for count in counts]).amax(dim=0)
            lengths = [int(length) for length in most.tolist()]
        return cls(tuple(linearized.stalks), norms.tolist(), writes.tolist(), lengths)


def assemble(parts: Parts, options: Options, ids: Sequence[str | int]) -> Scores:
    """One `Score` for each prompt."""
    laplacians = _laplacians(parts.linearized) if options.laplacian else [{}] * len(ids)
    stalks, here = Stalks.of(parts.linearized, len(ids)), parts.here()
    return Scores(_one(here, options, stalks, index, id, laplacians[index]) for index, id in enumerate(ids))


def _one(parts: Parts, options: Options, stalks: Stalks, index: int, id: str | int, laplacian: dict[str, Any]) -> Score:
    used: dict[str, Any] = {name: options[name] for name in _USED}
    used |= {"alpha": parts.alpha, "dtype": str(parts.linearized.dtype).removeprefix("torch.")}
    numbers: dict[str, Any] = _numbers(parts, index)
    wrong = [name for name, value in numbers.items() if value is not None and not math.isfinite(value)]
    if not bool(parts.by_edge.residual[index].isfinite().all() & parts.sheaf.residual[index].isfinite().all()):
        numbers, wrong = {"a residual": "not finite"}, ["a residual"]
    if wrong:
        cause = f"{wrong[0]} is {numbers[wrong[0]]}: a map, an activation or alpha is too large for {used['dtype']}"
        return failed(id, cause, **used)
    status, reason = _status(numbers, options, _silent(stalks, index))
    return Score(
        id=id,
        status=status,
        reason=reason,
        **numbers,
        ei_parts={name: float(part.value[index]) for name, part in parts.emergence.ei_parts.items()},
        edges=_edges(parts, index),
        nodes=_nodes(parts.sheaf, index) if options.residual != "edge" else (),
        norms=_norms(stalks, index),
        node_positions={node: list(kept) for node, kept in parts.linearized.circuit.positions.items()},
        stderr=_errors(parts, index) if parts.spectra.sampled else {},
        diagnostics=_diagnostics(parts, stalks, index) | laplacian,
        curve=None if parts.curve is None else _curve(parts.curve, index),
        **used,
    )


def _numbers(parts: Parts, index: int) -> dict[str, float | None]:
    c_sh = float(parts.sheaf.c_sh[index])
    ratio = parts.emergence.ratio
    return {
        "eics": float(parts.eics[index]),
        "c_sh": c_sh,
        "consistency": 1.0 / (1.0 + c_sh),
        "dei": float(parts.emergence.dei.value[index]),
        "dei_norm": float(parts.emergence.term.value[index]),
        "ei_macro": float(parts.emergence.ei_macro.value[index]),
        "emergence_ratio": None if ratio is None else float(ratio.value[index]),
    }


def _silent(stalks: Stalks, index: int) -> list[str]:
    """Nodes that write nothing: in the relative metric they have no unit."""
    return [node for node, writes in zip(stalks.nodes, stalks.writes[index], strict=True) if not writes]


def _status(numbers: dict[str, Any], options: Options, silent: list[str]) -> tuple[str, str | None]:
    dei, macro = numbers["dei"], numbers["ei_macro"]
    clipped = dei < 0 and options.emergence == "difference"
    status = "clipped" if clipped else "ok"
    unitless = ", ".join(silent) if options.metric == "relative" else ""
    if macro == 0 and unitless:
        return status, f"the macro map is zero in relative units: {unitless} writes nothing and so has no unit"
    if macro == 0:
        return status, "the macro map is zero: nothing that enters the sources reaches the sinks"
    if numbers["emergence_ratio"] == 0:
        return status, f"no part carries anything, so there is no ratio: {unitless or 'every map'} is zero"
    if clipped:
        return status, (
            f"dEI = {dei:.6g} nats was clipped to 0: the parts carry {macro - dei:.6g} nats, the macro map {macro:.6g}"
        )
    return status, None


def _errors(parts: Parts, index: int) -> dict[str, float]:
    """Standard errors of what was estimated; a part in closed form has none."""
    emergence = parts.emergence
    errors = {"dei": emergence.dei, "dei_norm": emergence.term, "ei_macro": emergence.ei_macro}
    if emergence.ratio is not None:
        errors["emergence_ratio"] = emergence.ratio
    found = {name: float(estimate.stderr[index]) for name, estimate in errors.items()}
    found["eics"] = found["dei_norm"] / (1.0 + float(parts.sheaf.c_sh[index]))
    if not parts.spectra.macro.sampled:
        del found["ei_macro"]
    for name, spectrum in parts.spectra.parts.items():
        if spectrum.sampled:
            found[f"ei_parts.{name}"] = float(emergence.ei_parts[name].stderr[index])
    return found


def _edges(parts: Parts, index: int) -> tuple[EdgeTerm, ...]:
    by_edge, attributions = parts.by_edge, parts.linearized.circuit.scores
    assert by_edge.cosine is not None
    cosines = dict(zip(by_edge.names, by_edge.cosine[index].tolist(), strict=True))
    terms = []
    for edge, residual, share in _rows(by_edge, index):
        assert isinstance(edge, Edge)
        cosine = cosines[edge] if math.isfinite(cosines[edge]) else None
        terms.append(EdgeTerm(edge.source, edge.target, edge.port, residual, share, cosine, attributions.get(edge)))
    return tuple(terms)


def _norms(stalks: Stalks, index: int) -> dict[str, float]:
    """||a_v||; a norm too large for a number is left out."""
    found = zip(stalks.nodes, stalks.norms[index], strict=True)
    return {node: norm for node, norm in found if math.isfinite(norm)}


def _nodes(sheaf: SheafTerm, index: int) -> tuple[NodeTerm, ...]:
    return tuple(NodeTerm(str(node), residual, share) for node, residual, share in _rows(sheaf, index))


def _rows(sheaf: SheafTerm, index: int) -> list[tuple[Edge | str, float, float]]:
    """Name, residual, share; largest share first."""
    rows = zip(sheaf.names, sheaf.residual[index].tolist(), sheaf.share[index].tolist(), strict=True)
    return sorted(rows, key=lambda row: -row[2])


def _diagnostics(parts: Parts, stalks: Stalks, index: int) -> dict[str, Any]:
    emergence, linearized = parts.emergence, parts.linearized
    by_part = [float(part.value[index]) for part in emergence.ei_parts.values()]
    first = parts.sheaf.first_position
    found: dict[str, Any] = {
        "dei": float(emergence.dei.value[index]),
        "length": stalks.lengths[index],
        "share_position_0": None if first is None else float(first[index]),
        "share_top_edge": float(parts.by_edge.share[index].max()),
        "share_largest_part": max(by_part) / sum(by_part) if sum(by_part) > 0 else None,
        "edges_left_out": linearized.edges_left_out,
        "ei_methods": _methods(parts.spectra),
    }
    if emergence.ei_macro.lower is not None:
        found["ei_bounds"] = _bounds(emergence, index)
    if parts.calibration is not None:
        low, high = parts.calibration.quartiles
        found["alpha_calibration"] = {
            "target": parts.calibration.target,
            "median": parts.calibration.median,
            "quartiles": [low, high],
            "prompts": parts.calibration.prompts,
        }
    return found


def _methods(spectra: EmergenceSpectra) -> dict[str, Any]:
    return {"macro": spectra.macro.method, "parts": {name: part.method for name, part in spectra.parts.items()}}


def _bounds(emergence: Emergence, index: int) -> dict[str, Any]:
    """Where the true EI of the macro map and of each part lies, given the norms that `fast` has; and dEI."""
    low, high = _interval(emergence.ei_macro, index)
    parts = {name: _interval(estimate, index) for name, estimate in emergence.ei_parts.items()}
    least, most = (sum(part[side] for part in parts.values()) for side in (0, 1))
    return {"macro": [low, high], "parts": parts, "dei": [low - most, high - least]}


def _interval(estimate: Estimate, index: int) -> list[float]:
    assert estimate.lower is not None
    assert estimate.upper is not None
    return [float(estimate.lower[index]), float(estimate.upper[index])]


def _curve(curve: Curve, index: int) -> dict[str, list[float]]:
    tensors = {"alpha": curve.alphas, "dei": curve.dei[index], "ei_macro": curve.ei_macro[index]}
    return {name: tensor.tolist() for name, tensor in tensors.items()} | {"zeros": curve.zeros[index]}


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
