"""The emergence term: does the circuit as a whole carry more than its parts?

    dEI = EI(J_M) - sum_parts EI(J_part)                  dEI_norm = max(0, dEI) / (eps + EI(J_M))
    r   = eff(J_M) / mean_parts eff(J_part),  eff = EI / min(rows, columns)      (intensive: r / (1 + r))

Spectra are computed once; alpha enters afterwards, so a whole curve over alpha costs no more than a point.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, cat_batches
from eics.linalg.host_device import map_tensors, to_device, to_host
from eics.linalg.hutchpp import SmallAlpha, at_least_one, closed_form, counts, joined, side_by_side, small_alpha
from eics.linalg.lanczos import quadrature, top_k
from eics.linalg.memory import chunk_width, memory_bound
from eics.linalg.operators import LinearOperator, hstack
from eics.linalg.probes import generator
from eics.linalg.scaled import Scaled
from eics.linalg.spectrum import Alpha, Estimate, Gram, Spectrum, exact, exact_at, trailing
from eics.linearized.circuit import LinearizedCircuit
from eics.linearized.paths import branch_maps, macro_map
from eics.scoring.options import Options
from eics.scoring.sheaf import EPS

_ROUNDING = 64
_KEPT = 4


@dataclass(frozen=True)
class Part:
    """A map whose effective information counts.

    `left` and `right` are non-zero on the rows and columns that count, scales like those of `Scaled`: 1, or the units
    of the relative metric. None: all count, and are 1. Parts whose maps are kin can be stacked into one with all their
    names.
    """

    names: tuple[str, ...]
    operator: LinearOperator
    left: Tensor | None
    right: Tensor | None

    @classmethod
    def stacked(cls, parts: "Sequence[Part]") -> "Part":
        """Several parts as one, part by part along the batch."""
        first, *rest = parts
        if not rest:
            return first
        names, operator = tuple(name for part in parts for name in part.names), first.operator
        left = _stacked([p.left for p in parts], operator.rows, operator)
        right = _stacked([p.right for p in parts], operator.cols, operator)
        return cls(names, operator.stack([part.operator for part in rest]), left, right)

    @cached_property
    def rows(self) -> Tensor | int:
        """Rows that count, (B or 1,), or one number for all."""
        return _counted(self.left, self.operator.rows)

    @cached_property
    def cols(self) -> Tensor | int:
        """Columns that count, (B or 1,), or one number for all."""
        return _counted(self.right, self.operator.cols)

    @cached_property
    def channels(self) -> Tensor | int:
        """min(rows, columns) over those that count, (B or 1,), or one number for all."""
        rows, cols = self.rows, self.cols
        if isinstance(rows, Tensor) and isinstance(cols, Tensor):
            return torch.minimum(rows, cols)
        if isinstance(rows, Tensor):
            return rows.clamp(max=cols)
        return cols.clamp(max=rows) if isinstance(cols, Tensor) else min(rows, cols)

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        """Not zero on the rows and on the columns that count, by coordinate; None where all do."""
        if self.left is None and self.right is None:
            return None
        like, sides = self.operator, ((self.left, self.operator.rows), (self.right, self.operator.cols))
        left, right = (by_coordinate(_ones(like) if one is None else one, size) for one, size in sides)
        return left, right


@dataclass(frozen=True)
class Emergence:
    """The term at one alpha, for each prompt; (B,) each unless said otherwise.

    Attributes:
        ei_macro: EI(J_M).
        ei_parts: (B, parts), in the order of the spectra's parts.
        dei: signed.
        term: what the score multiplies: dEI_norm, or r / (1 + r).
        ratio: r where intensive, else None.
    """

    ei_macro: Estimate
    ei_parts: Estimate
    dei: Estimate
    term: Estimate
    ratio: Estimate | None


@dataclass(frozen=True)
class EmergenceSpectra:
    """The spectra of the macro map and of every part, with their channel counts."""

    macro: Spectrum
    parts: dict[str, Spectrum]
    macro_rows: Tensor | int
    macro_channels: Tensor | int
    part_channels: tuple[Tensor | int, ...]
    batch: int

    def at(self, alpha: Alpha, emergence: str) -> Emergence:
        """The emergence term at this alpha."""
        macro = _full(self.macro.ei(alpha), self.batch)
        parts = self._ei_parts(alpha)
        total = Estimate(parts.value.sum(dim=1), parts.stderr.square().sum(dim=1).sqrt())
        difference = macro.value - total.value
        rounding = _ROUNDING * torch.finfo(difference.dtype).eps * (macro.value + total.value)
        difference = torch.where(difference.abs() <= rounding, 0.0, difference)  # no sign in the last digits
        dei = Estimate(difference, torch.hypot(macro.stderr, total.stderr))
        if emergence == "difference":
            return Emergence(macro, parts, dei, _normalized(macro, total, dei), None)
        ratio = self._ratio(macro, parts)
        below = 1.0 + ratio.value
        return Emergence(macro, parts, dei, Estimate(ratio.value / below, ratio.stderr / below.square()), ratio)

    def dei(self, alpha: Alpha) -> Tensor:
        """Signed dEI, (B,)."""
        return self.at(alpha, "difference").dei.value

    def macro_per_dimension(self, alpha: Alpha) -> Tensor:
        """Macro EI for each read-out dimension, (B,)."""
        return _full(self.macro.ei(alpha), self.batch).value / at_least_one(self.macro_rows)

    @property
    def sampled(self) -> bool:
        """Whether any number has a standard error."""
        return self.macro.sampled or any(spectrum.sampled for spectrum in self.parts.values())

    @cached_property
    def _joined(self) -> SmallAlpha | None:
        """All parts in one, where all have the small-alpha form."""
        small = [part for part in self.parts.values() if isinstance(part, SmallAlpha)]
        return joined(small, self.batch) if small and len(small) == len(self.parts) else None

    def _ei_parts(self, alpha: Alpha) -> Estimate:
        """Of all parts, (B, parts)."""
        if self._joined is not None:
            return self._joined.ei(trailing(alpha, 1))
        found = [spectrum.ei(alpha) for spectrum in self.parts.values()]
        if not found:
            none = torch.zeros_like(_full(self.macro.ei(alpha), self.batch).value)[:, None][:, :0]
            return Estimate(none, none)
        return Estimate(*(side_by_side([getattr(e, n) for e in found], self.batch) for n in ("value", "stderr")))

    def _ratio(self, macro: Estimate, parts: Estimate) -> Estimate:
        """r, 0 where no part carries anything. A part without channels (nothing enters) has no efficiency."""
        channels = counts(self.part_channels, self.batch, parts.value.device)
        has = channels > 0
        efficiency = torch.where(has, 1.0 / channels.to(parts.value.dtype), 0.0)
        scale = efficiency / has.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (parts.value * scale).sum(dim=1)
        mean_error = (parts.stderr * scale).square().sum(dim=1).sqrt()
        of_macro = at_least_one(self.macro_channels)
        whole, whole_error = macro.value / of_macro, macro.stderr / of_macro
        safe = torch.where(mean > 0, mean, 1.0)
        ratio = torch.where(mean > 0, whole / safe, 0.0)
        error = torch.hypot(whole_error / safe, ratio * mean_error / safe)
        return Estimate(ratio, torch.where(mean > 0, error, 0.0))


def emergence_spectra(linearized: LinearizedCircuit, options: Options) -> EmergenceSpectra:
    """Spectra of J_M and of the parts, in the chosen metric and mode."""
    relative = options.metric == "relative"
    macro = macro_part(linearized, relative=relative)
    parts = node_parts(linearized, relative) if options.parts == "nodes" else branch_parts(linearized, relative)
    apart = _remembering(linearized) if options.mode == "exact" and options.parts == "nodes" else None
    if apart is None:
        of_macro, of_parts = spectrum_of(macro, options, options.probes_of_macro), _spectra(parts, options)
    else:
        of_macro, by_blocks = _one_by_one(apart, options)
        found = _spectra([part for part in parts if part.names[0] not in by_blocks], options) | by_blocks
        of_parts = {part.names[0]: found[part.names[0]] for part in parts}
    return EmergenceSpectra(
        macro=of_macro,
        parts=of_parts,
        macro_rows=macro.rows,
        macro_channels=macro.channels,
        part_channels=tuple(part.channels for part in parts),
        batch=linearized.batch,
    )


def _remembering(linearized: LinearizedCircuit) -> Iterable[LinearizedCircuit] | None:
    """The circuit, or that of each prompt, with maps that remember the matrices of which J_M and the parts both are
    made: those with diagonal blocks have some. As many as four of the blocks that the memory bound allows may be kept;
    None where there are none, or one prompt's are more."""
    maps = [entry.operator for entries in linearized.entries.values() for entry in entries if entry.operator.blocks > 1]
    bytes_of_one = sum(one.rows * one.cols // one.blocks * one.dtype.itemsize for one in maps)
    if not maps or bytes_of_one > _KEPT * memory_bound():
        return None
    if linearized.batch * bytes_of_one <= _KEPT * memory_bound():
        return [linearized.remembering()]
    return (linearized.prompt(index).remembering() for index in range(linearized.batch))


def _one_by_one(circuits: Iterable[LinearizedCircuit], options: Options) -> tuple[Spectrum, dict[str, Spectrum]]:
    """The spectra of J_M and of the parts with diagonal blocks, of one circuit after another."""
    relative, found = options.metric == "relative", []
    for circuit in circuits:
        some = [part for part in node_parts(circuit, relative) if part.operator.blocks > 1]
        macro = spectrum_of(macro_part(circuit, relative=relative), options, options.probes_of_macro)
        found.append((macro, _spectra(some, options)))
    merged: tuple[Spectrum, dict[str, Spectrum]] = map_tensors(lambda *tensors: torch.cat(tensors), *found)
    return merged if len(found) > 1 else found[0]


def _spectra(parts: Sequence[Part], options: Options) -> dict[str, Spectrum]:
    """Every part's spectrum, by name; kin (heads of a layer) together, as many as the memory bound allows."""
    kin: dict[object, list[Part]] = {}
    for part in parts:
        kin.setdefault(part.names if part.operator.kin is None else part.operator.kin, []).append(part)
    found: dict[str, Spectrum] = {}
    for group in kin.values():
        held = options.steps if options.mode == "lanczos" else 3  # blocks of probes that an estimate keeps at once
        operator = group[0].operator
        size = operator.batch * max(operator.rows, operator.cols) * options.node_probes * held
        width = chunk_width(size, operator.dtype)
        for start in range(0, len(group), width):
            some = group[start : start + width]
            spectrum = spectrum_of(Part.stacked(some), options, options.node_probes)
            for place, part in enumerate(some):
                rows = slice(place * operator.batch, (place + 1) * operator.batch)
                found[part.names[0]] = (
                    spectrum if len(some) == 1 else map_tensors(lambda t, rows=rows: t[rows], spectrum)
                )
    return {part.names[0]: found[part.names[0]] for part in parts}


def macro_spectrum(linearized: LinearizedCircuit, options: Options) -> tuple[Spectrum, Tensor | int]:
    """The spectrum of J_M alone, and how many rows count: all that calibration needs."""
    part = macro_part(linearized, relative=options.metric == "relative")
    return spectrum_of(part, options, options.probes_of_macro), part.rows


def spectrum_of(part: Part, options: Options, probes: int) -> Spectrum:
    """The spectrum of one part, as the mode says; its probes come from a stream of its own."""
    if options.mode == "exact":
        if options.alpha == "auto" or options.curve:
            return exact(part.operator, "svd")  # one factorization for all alphas
        return exact_at(part.operator, float(options.alpha), options.factorization)
    closed = closed_form(part.operator, part.channels) if options.mode == "fast" else None
    if closed is not None:
        return closed
    # Which side is smaller is each prompt's own matter: a prompt scores the same alone and in a batch.
    smaller = part.rows <= part.cols
    by_rows = to_host(smaller) if isinstance(smaller, Tensor) else [smaller]
    found = {side: _estimated(part, options, probes, side) for side in set(by_rows)}
    if len(found) == 1:
        return next(iter(found.values()))
    choice = to_device(by_rows, part.operator.device)
    merged: Spectrum = map_tensors(
        lambda one, other: torch.where(choice.view(-1, *[1] * (one.ndim - 1)), one, other), found[True], found[False]
    )
    return merged


def _estimated(part: Part, options: Options, probes: int, by_rows: bool) -> Spectrum:
    gram = Gram(part.operator, part.support, by_rows)
    stream = [generator(options.seed, name) for name in part.names]
    if options.mode == "fast":
        return small_alpha(part.operator, gram, part.channels, probes=probes, stream=stream)
    if options.top_k is not None:
        return top_k(gram, k=options.top_k, steps=options.steps, stream=stream)
    return quadrature(gram, probes=probes, steps=options.steps, stream=stream)


def macro_part(linearized: LinearizedCircuit, *, relative: bool) -> Part:
    """J_M, or `S^-1 J_M R` with the rms of the sinks' and sources' writes."""
    operator = macro_map(linearized)
    left = _units(linearized, operator.targets, inverse=True, relative=relative)
    right = _units(linearized, operator.sources, inverse=False, relative=relative)
    return _part("the macro map", operator, left, right, relative)


def node_parts(linearized: LinearizedCircuit, relative: bool) -> list[Part]:
    """J_v of every node with a parent, or `S_v^-1 J_v R_v`; a node into which nothing is carried has none."""
    parts = []
    for node in linearized.circuit.inner:
        entries = linearized.entries[node]
        if not entries:
            continue
        left = _units(linearized, [node], inverse=True, relative=relative)
        rights = [entry.rms if relative else entry.mask for entry in entries]
        maps = [_in_units(e.operator, left, right, relative) for e, right in zip(entries, rights, strict=True)]
        parts.append(Part((node,), hstack(maps), left, _side_by_side(rights, [entry.read for entry in entries])))
    return parts


def branch_parts(linearized: LinearizedCircuit, relative: bool) -> list[Part]:
    """One part for each edge into a sink, from the sources that reach it."""
    parts = []
    for edge, operator in branch_maps(linearized).items():
        upstream = linearized.circuit.ancestors([edge.source])
        sources = [node for node in linearized.circuit.sources if node in upstream]
        left = _units(linearized, [edge.target], inverse=True, relative=relative)
        right = _units(linearized, sources, inverse=False, relative=relative)
        parts.append(_part(str(edge), operator, left, right, relative))
    return parts


def _part(name: str, operator: LinearOperator, left: Tensor | None, right: Tensor | None, relative: bool) -> Part:
    return Part((name,), _in_units(operator, left, right, relative), left, right)


def _in_units(operator: LinearOperator, left: Tensor | None, right: Tensor | None, relative: bool) -> LinearOperator:
    if not relative:
        return operator  # masks are in it already
    assert left is not None
    assert right is not None
    return Scaled(operator, left, right)


def _units(linearized: LinearizedCircuit, nodes: Sequence[str], *, inverse: bool, relative: bool) -> Tensor | None:
    """Rms of what nodes write at each position, or its inverse; else their masks. None: 1 everywhere.

    A position where nothing is written has no unit of its own: it does not count.
    """
    stalks = [linearized.stalks[node] for node in nodes]
    units = [(s.inverse_rms if inverse else s.rms) if relative else s.mask for s in stalks]
    return _side_by_side(units, [stalk.activation for stalk in stalks])


def _side_by_side(units: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor | None:
    """Units by position, (B or 1, T) each, of tensors (B, T, d); by coordinate where the d differ."""
    if all(unit is None for unit in units):
        return None
    if len(units) == 1:
        return units[0]
    known = [one.new_ones(1, one.shape[1]) if unit is None else unit for unit, one in zip(units, like, strict=True)]
    if len({one.shape[2] for one in like}) > 1:
        sizes = [one.shape[1] * one.shape[2] for one in like]
        known = [by_coordinate(unit, size) for unit, size in zip(known, sizes, strict=True)]
    batch = max(unit.shape[0] for unit in known)
    return torch.cat([unit.expand(batch, -1) for unit in known], dim=1)


def _stacked(scales: Sequence[Tensor | None], size: int, like: LinearOperator) -> Tensor | None:
    """Scales of one side of several parts, part by part along the batch."""
    if all(scale is None for scale in scales):
        return None
    known = [_ones(like) if scale is None else scale for scale in scales]
    if len({scale.shape[1] for scale in known}) > 1:
        known = [by_coordinate(scale, size) for scale in known]
    return cat_batches(known, like.batch)


def _ones(like: LinearOperator) -> Tensor:
    return torch.ones(1, 1, dtype=like.dtype, device=like.device)


def _counted(scale: Tensor | None, size: int) -> Tensor | int:
    """How many of so many coordinates count."""
    return size if scale is None else scale.count_nonzero(dim=1) * (size // scale.shape[1])


def _normalized(macro: Estimate, total: Estimate, dei: Estimate) -> Estimate:
    """max(0, dEI) / (eps + EI(J_M)); its error by the delta method, 0 where dEI is negative beyond doubt."""
    below = EPS + macro.value
    value = dei.value.clamp(min=0) / below
    error = torch.hypot(total.stderr / below, total.value * macro.stderr / below.square())
    return Estimate(value, torch.where(dei.value < -5 * dei.stderr, 0.0, error))


def _full(estimate: Estimate, batch: int) -> Estimate:
    """The estimate for every prompt: a map that all share was computed once."""
    tensors = (estimate.value, estimate.stderr, estimate.lower, estimate.upper)
    value, stderr, lower, upper = (None if t is None else t.expand(batch) for t in tensors)
    assert value is not None
    assert stderr is not None
    return Estimate(value, stderr, lower, upper)
