"""From the tensors of a scored batch to one result for each prompt: numbers, diagnostics, status, reason."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg import precision
from eics.linalg.host_device import Packed
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.alpha import AlphaCalibration, Curve
from eics.scoring.emergence import Emergence, EmergenceSpectra
from eics.scoring.laplacian import laplacian_spectrum, project
from eics.scoring.options import Options
from eics.scoring.result import EdgeTerms, NodeTerm, Score, Scores, failed
from eics.scoring.sheaf import SheafTerm

_USED = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "seed")
_NUMBERS = ("eics", "c_sh", "dei", "dei_norm", "ei_macro", "emergence_ratio")
_ESTIMATED = ("dei", "dei_norm", "ei_macro", "emergence_ratio")


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


class Computed:
    """What all results of a batch share, and their numbers, still on the device: nothing here waits for it, unless for
    spectra of Laplacians, which are computed in single prompts."""

    def __init__(self, parts: Parts, options: Options) -> None:
        linearized, spectra = parts.linearized, parts.spectra
        self.options, self.batch = options, linearized.batch
        self.laplacians = _laplacians(linearized) if options.laplacian else [{}] * self.batch
        self.used: dict[str, Any] = {name: options[name] for name in _USED}
        self.used |= {"alpha": parts.alpha, "dtype": str(linearized.dtype).removeprefix("torch.")}
        self.nodes, self.part_names = tuple(linearized.stalks), tuple(spectra.parts)
        self.sampled_parts = [name for name, spectrum in spectra.parts.items() if spectrum.sampled]
        self.methods = {name: spectrum.method for name, spectrum in spectra.parts.items()}
        self.macro_sampled, self.macro_method = spectra.macro.sampled, spectra.macro.method
        self.sampled = spectra.sampled
        self.edges_left_out = linearized.edges_left_out
        self.products = precision.said()
        self.node_positions = {node: list(kept) for node, kept in linearized.circuit.positions.items()}
        self.sheaf_names = parts.sheaf.names
        self.curve, self.calibration = parts.curve, parts.calibration
        self.edges = [edge for edge in parts.by_edge.names if isinstance(edge, Edge)]
        self.attributions = [linearized.circuit.scores.get(edge) for edge in self.edges]
        tensors = _tensors(parts) | _of_stalks(linearized, self.batch)
        self.packed = Packed({name: tensor for name, tensor in tensors.items() if tensor is not None})


class _Batch:
    """The numbers as lists by prompt, fetched from the device together."""

    def __init__(self, computed: Computed) -> None:
        self.computed = computed
        self.numbers: dict[str, Any] = computed.packed.fetch()

    def __getitem__(self, name: str) -> Any:
        """A column: a list with something for each prompt."""
        return self.numbers[name]

    def get(self, name: str, index: int) -> Any:
        """One prompt's, None where there is none."""
        return self.numbers[name][index] if name in self.numbers else None


def _tensors(parts: Parts) -> dict[str, Tensor | None]:
    """What results say, with the prompts' axis first."""
    sheaf, by_edge, emergence, ratio = parts.sheaf, parts.by_edge, parts.emergence, parts.emergence.ratio
    finite = by_edge.residual.isfinite().all(dim=1)
    return {
        "eics": parts.eics,
        "c_sh": sheaf.c_sh,
        "first": sheaf.first_position,
        "dei": emergence.dei.value,
        "dei_norm": emergence.term.value,
        "ei_macro": emergence.ei_macro.value,
        "emergence_ratio": None if ratio is None else ratio.value,
        "dei error": emergence.dei.stderr,
        "dei_norm error": emergence.term.stderr,
        "ei_macro error": emergence.ei_macro.stderr,
        "emergence_ratio error": None if ratio is None else ratio.stderr,
        "parts": emergence.ei_parts.value,
        "parts error": emergence.ei_parts.stderr,
        "macro lower": emergence.ei_macro.lower,
        "macro upper": emergence.ei_macro.upper,
        "parts lower": emergence.ei_parts.lower,
        "parts upper": emergence.ei_parts.upper,
        "finite": finite if sheaf is by_edge else finite & sheaf.residual.isfinite().all(dim=1),
        "residual": by_edge.residual,
        "share": by_edge.share,
        "cosine": by_edge.cosine,
        "node residual": None if sheaf is by_edge else sheaf.residual,
        "node share": None if sheaf is by_edge else sheaf.share,
    }


def _of_stalks(linearized: LinearizedCircuit, batch: int) -> dict[str, Tensor | None]:
    """||a_v|| over the positions that count, whether it writes at all, and positions of the longest stalk."""
    stalks = linearized.stalks.values()
    norms = torch.stack([stalk.norm.expand(batch) for stalk in stalks], dim=1)
    placed = [stalk for stalk in stalks if stalk.positions is not None]
    masks = {id(stalk.mask): stalk.mask for stalk in placed if stalk.mask is not None}
    whole = [stalk.activation.shape[1] for stalk in placed if stalk.mask is None]
    most = torch.full((batch,), max([0, *whole]), device=norms.device)
    for mask in masks.values():
        most = torch.maximum(most, mask.count_nonzero(dim=1))
    return {"norms": norms, "writes": norms != 0, "length": most if placed else None}


def assemble(
    computed: Computed,
    ids: Sequence[str | int],
    said: Sequence[Mapping[str, Any]] | None = None,
    ran: Mapping[str, Any] | None = None,
) -> Scores:
    """One `Score` for each prompt. `said` is what else each result says, `ran` what all say that did not fail."""
    batch = _Batch(computed)
    known = [{}] * len(ids) if said is None else said
    return Scores(_one(batch, index, id, known[index], ran or {}) for index, id in enumerate(ids))


def _one(batch: _Batch, index: int, id: str | int, said: Mapping[str, Any], ran: Mapping[str, Any]) -> Score:
    computed, options = batch.computed, batch.computed.options
    numbers: dict[str, Any] = {name: batch.get(name, index) for name in _NUMBERS}
    numbers["consistency"] = 1.0 / (1.0 + numbers["c_sh"])
    wrong = [name for name, value in numbers.items() if value is not None and not math.isfinite(value)]
    if not batch["finite"][index]:
        numbers, wrong = {"a residual": "not finite"}, ["a residual"]
    if wrong:
        dtype = computed.used["dtype"]
        cause = f"{wrong[0]} is {numbers[wrong[0]]}: a map, an activation or alpha is too large for {dtype}"
        return failed(id, cause, **computed.used, **said)
    status, reason = _status(numbers, options, _silent(batch, index))
    return Score(
        id=id,
        status=status,
        reason=reason,
        **numbers,
        ei_parts=dict(zip(computed.part_names, batch["parts"][index], strict=True)),
        edges=_edges(batch, index),
        nodes=_nodes(batch, index) if options.residual != "edge" else (),
        norms={n: norm for n, norm in zip(computed.nodes, batch["norms"][index], strict=True) if math.isfinite(norm)},
        node_positions={node: list(kept) for node, kept in computed.node_positions.items()},
        stderr=_errors(batch, index) if computed.sampled else {},
        diagnostics=_diagnostics(batch, index) | computed.laplacians[index],
        curve=None if computed.curve is None else _curve(computed.curve, index),
        **computed.used,
        **said,
        **ran,
    )


def _silent(batch: _Batch, index: int) -> list[str]:
    """Nodes that write nothing: in the relative metric they have no unit."""
    return [node for node, writes in zip(batch.computed.nodes, batch["writes"][index], strict=True) if not writes]


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


def _errors(batch: _Batch, index: int) -> dict[str, float]:
    """Standard errors of what was estimated; a part in closed form has none."""
    known = [name for name in _ESTIMATED if f"{name} error" in batch.numbers]
    found: dict[str, float] = {name: batch[f"{name} error"][index] for name in known}
    found["eics"] = found["dei_norm"] / (1.0 + batch["c_sh"][index])
    if not batch.computed.macro_sampled:
        del found["ei_macro"]
    by_part = dict(zip(batch.computed.part_names, batch["parts error"][index], strict=True))
    return found | {f"ei_parts.{name}": by_part[name] for name in batch.computed.sampled_parts}


def _edges(batch: _Batch, index: int) -> EdgeTerms:
    residual, share, cosine = (batch[name][index] for name in ("residual", "share", "cosine"))
    return EdgeTerms(batch.computed.edges, residual, share, cosine, batch.computed.attributions)


def _nodes(batch: _Batch, index: int) -> tuple[NodeTerm, ...]:
    """Largest share first."""
    columns = zip(batch.computed.sheaf_names, batch["node residual"][index], batch["node share"][index], strict=True)
    return tuple(
        sorted((NodeTerm(str(node), *numbers) for node, *numbers in columns), key=attrgetter("share"), reverse=True)
    )


def _diagnostics(batch: _Batch, index: int) -> dict[str, Any]:
    computed, by_part = batch.computed, batch["parts"][index]
    found: dict[str, Any] = {
        "dei": batch["dei"][index],
        "length": batch.get("length", index),
        "share_position_0": batch.get("first", index),
        "share_top_edge": max(batch["share"][index]),
        "share_largest_part": max(by_part) / sum(by_part) if sum(by_part) > 0 else None,
        "edges_left_out": computed.edges_left_out,
        "ei_methods": {"macro": computed.macro_method, "parts": dict(computed.methods)},
    }
    if computed.products is not None:
        found["products"] = computed.products
    if "macro lower" in batch.numbers:
        found["ei_bounds"] = _bounds(batch, index)
    if computed.calibration is not None:
        low, high = computed.calibration.quartiles
        found["alpha_calibration"] = {
            "target": computed.calibration.target,
            "median": computed.calibration.median,
            "quartiles": [low, high],
            "prompts": computed.calibration.prompts,
        }
    return found


def _bounds(batch: _Batch, index: int) -> dict[str, Any]:
    """Where the true EI of the macro map and of each part lies, given the norms that `fast` has; and dEI."""
    low, high = batch["macro lower"][index], batch["macro upper"][index]
    lower, upper = batch["parts lower"][index], batch["parts upper"][index]
    parts = {name: [least, most] for name, least, most in zip(batch.computed.part_names, lower, upper, strict=True)}
    return {"macro": [low, high], "parts": parts, "dei": [low - sum(upper), high - sum(lower)]}


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
