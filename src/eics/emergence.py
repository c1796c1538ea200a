"""The emergence term: does the circuit as a whole carry more than its parts?

    dEI = EI(J_M) - sum_parts EI(J_part)                  dEI_norm = max(0, dEI) / (eps + EI(J_M))
    r   = eff(J_M) / mean_parts eff(J_part),  eff = EI / min(rows, columns)      (intensive: r / (1 + r))

Spectra are computed once; alpha enters afterwards, so a whole curve over alpha costs no more than a point.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.hutchpp import small_alpha
from eics.lanczos import quadrature, top_k
from eics.linearize import LinearizedCircuit, spread
from eics.memory import chunk_width
from eics.operators import LinearOperator, Scaled, hstack
from eics.options import Options
from eics.paths import branch_maps, macro_map
from eics.probes import generator
from eics.sheaf import EPS, by_position
from eics.spectrum import Alpha, Estimate, Gram, Spectrum, exact, exact_at
from eics.tensors import each
from eics.vectors import cat_batches

_ROUNDING = 64


@dataclass(frozen=True)
class Part:
    """A map whose effective information counts.

    `left` and `right` are non-zero on the rows and columns that count, (B or 1, n) each: 1, or the units of the
    relative metric. Parts whose maps are kin can be stacked into one with all their names.
    """

    names: tuple[str, ...]
    operator: LinearOperator
    left: Tensor
    right: Tensor

    @classmethod
    def stacked(cls, parts: "Sequence[Part]") -> "Part":
        """Several parts as one, part by part along the batch."""
        first, *rest = parts
        if not rest:
            return first
        left, right = (
            cat_batches([getattr(p, side) for p in parts], first.operator.batch) for side in ("left", "right")
        )
        names = tuple(name for part in parts for name in part.names)
        return cls(names, first.operator.stack([part.operator for part in rest]), left, right)

    @property
    def rows(self) -> Tensor:
        """Rows that count, (B or 1,)."""
        return self.left.count_nonzero(dim=1)

    @property
    def cols(self) -> Tensor:
        """Columns that count, (B or 1,)."""
        return self.right.count_nonzero(dim=1)

    @property
    def channels(self) -> Tensor:
        """min(rows, columns) over those that count, (B or 1,)."""
        return torch.minimum(self.rows, self.cols)


@dataclass(frozen=True)
class Emergence:
    """The term at one alpha, for each prompt; (B,) each unless said otherwise.

    Attributes:
        ei_macro: EI(J_M).
        ei_parts: by part name.
        dei: signed.
        term: what the score multiplies: dEI_norm, or r / (1 + r).
        ratio: r where intensive, else None.
    """

    ei_macro: Estimate
    ei_parts: dict[str, Estimate]
    dei: Estimate
    term: Estimate
    ratio: Estimate | None


@dataclass(frozen=True)
class EmergenceSpectra:
    """The spectra of the macro map and of every part, with their channel counts."""

    macro: Spectrum
    parts: dict[str, Spectrum]
    macro_rows: Tensor
    macro_channels: Tensor
    part_channels: dict[str, Tensor]
    batch: int

    def at(self, alpha: Alpha, emergence: str) -> Emergence:
        """The emergence term at this alpha."""
        macro = _full(self.macro.ei(alpha), self.batch)
        parts = {name: _full(spectrum.ei(alpha), self.batch) for name, spectrum in self.parts.items()}
        total = _total(parts.values(), macro)
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
        return _full(self.macro.ei(alpha), self.batch).value / self.macro_rows.clamp(min=1)

    @property
    def sampled(self) -> bool:
        """Whether any number has a standard error."""
        return self.macro.sampled or any(spectrum.sampled for spectrum in self.parts.values())

    def _ratio(self, macro: Estimate, parts: dict[str, Estimate]) -> Estimate:
        """r, 0 where no part carries anything. A part without channels (nothing enters) has no efficiency."""
        counts = torch.stack([self.part_channels[name].expand(self.batch) for name in parts], dim=1)
        values = torch.stack([part.value for part in parts.values()], dim=1)
        errors = torch.stack([part.stderr for part in parts.values()], dim=1)
        has = counts > 0
        scale = torch.where(has, 1.0 / counts.clamp(min=1), 0.0) / has.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (values * scale).sum(dim=1)
        mean_error = (errors * scale).square().sum(dim=1).sqrt()
        channels = self.macro_channels.clamp(min=1)
        whole, whole_error = macro.value / channels, macro.stderr / channels
        safe = torch.where(mean > 0, mean, 1.0)
        ratio = torch.where(mean > 0, whole / safe, 0.0)
        error = torch.hypot(whole_error / safe, ratio * mean_error / safe)
        return Estimate(ratio, torch.where(mean > 0, error, 0.0))


def emergence_spectra(linearized: LinearizedCircuit, options: Options) -> EmergenceSpectra:
    """Spectra of J_M and of the parts, in the chosen metric and mode."""
    relative = options.metric == "relative"
    macro = macro_part(linearized, relative=relative)
    parts = node_parts(linearized, relative) if options.parts == "nodes" else branch_parts(linearized, relative)
    return EmergenceSpectra(
        macro=spectrum_of(macro, options, options.probes_of_macro),
        parts=_spectra(parts, options),
        macro_rows=macro.rows,
        macro_channels=macro.channels,
        part_channels={part.names[0]: part.channels for part in parts},
        batch=linearized.batch,
    )


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
                found[part.names[0]] = spectrum if len(some) == 1 else each(lambda t, rows=rows: t[rows], spectrum)
    return {part.names[0]: found[part.names[0]] for part in parts}


def macro_spectrum(linearized: LinearizedCircuit, options: Options) -> tuple[Spectrum, Tensor]:
    """The spectrum of J_M alone, and how many rows count: all that calibration needs."""
    part = macro_part(linearized, relative=options.metric == "relative")
    return spectrum_of(part, options, options.probes_of_macro), part.rows


def spectrum_of(part: Part, options: Options, probes: int) -> Spectrum:
    """The spectrum of one part, as the mode says; its probes come from a stream of its own."""
    if options.mode == "exact":
        if options.alpha == "auto" or options.curve:
            return exact(part.operator, "svd")  # one factorization for all alphas
        return exact_at(part.operator, float(options.alpha), options.factorization)
    # Which side is smaller is each prompt's own matter: a prompt scores the same alone and in a batch.
    by_rows = (part.rows <= part.cols).tolist()
    found = {side: _estimated(part, options, probes, side) for side in set(by_rows)}
    if len(found) == 1:
        return next(iter(found.values()))
    choice = torch.tensor(by_rows, device=part.left.device)
    merged: Spectrum = each(
        lambda one, other: torch.where(choice.view(-1, *[1] * (one.ndim - 1)), one, other), found[True], found[False]
    )
    return merged


def _estimated(part: Part, options: Options, probes: int, by_rows: bool) -> Spectrum:
    gram = Gram(part.operator, (part.left, part.right), by_rows)
    stream = [generator(options.seed, name) for name in part.names]
    if options.mode == "fast":
        return small_alpha(part.operator, gram, part.channels, probes=probes, stream=stream)
    if options.top_k is not None:
        return top_k(gram, k=options.top_k, steps=options.steps, stream=stream)
    return quadrature(gram, probes=probes, steps=options.steps, stream=stream)


def macro_part(linearized: LinearizedCircuit, *, relative: bool) -> Part:
    """J_M, or `S^-1 J_M R` with the rms of the sinks' and sources' writes."""
    operator = macro_map(linearized)
    left = _stacked(linearized, operator.targets, inverse=True, relative=relative)
    right = _stacked(linearized, operator.sources, inverse=False, relative=relative)
    return _part("the macro map", operator, left, right, relative)


def node_parts(linearized: LinearizedCircuit, relative: bool) -> list[Part]:
    """J_v of every node with a parent, or `S_v^-1 J_v R_v`; a node into which nothing is carried has none."""
    parts = []
    for node in linearized.circuit.inner:
        stalk, entries = linearized.stalks[node], linearized.entries[node]
        if not entries:
            continue
        left = _units(stalk.activation, stalk.weights, inverse=True, relative=relative)
        rights = [_units(entry.read, entry.weights, inverse=False, relative=relative) for entry in entries]
        pairs = zip(entries, rights, strict=True)
        maps = [Scaled(e.operator, left, right) if relative else e.operator for e, right in pairs]
        batch = max(right.shape[0] for right in rights)
        stacked = torch.cat([right.expand(batch, -1) for right in rights], dim=1)
        parts.append(Part((node,), hstack(maps), left, stacked))
    return parts


def branch_parts(linearized: LinearizedCircuit, relative: bool) -> list[Part]:
    """One part for each edge into a sink, from the sources that reach it."""
    parts = []
    for edge, operator in branch_maps(linearized).items():
        upstream = linearized.circuit.ancestors([edge.source])
        sources = [node for node in linearized.circuit.sources if node in upstream]
        left = _stacked(linearized, [edge.target], inverse=True, relative=relative)
        right = _stacked(linearized, sources, inverse=False, relative=relative)
        parts.append(_part(str(edge), operator, left, right, relative))
    return parts


def _part(name: str, operator: LinearOperator, left: Tensor, right: Tensor, relative: bool) -> Part:
    return Part((name,), Scaled(operator, left, right) if relative else operator, left, right)


def _stacked(linearized: LinearizedCircuit, nodes: Sequence[str], *, inverse: bool, relative: bool) -> Tensor:
    stalks = [linearized.stalks[node] for node in nodes]
    units = [_units(s.activation, s.weights, inverse=inverse, relative=relative) for s in stalks]
    batch = max(unit.shape[0] for unit in units)
    return torch.cat([unit.expand(batch, -1) for unit in units], dim=1)


def _units(values: Tensor, weights: Tensor, *, inverse: bool, relative: bool) -> Tensor:
    """Rms of (B, T, d) at each position, or its inverse, by coordinate: (B, T*d). Plain weights if not relative.

    A position where nothing is written has no unit of its own: it does not count.
    """
    if not relative:
        return weights
    rms = (by_position(values) / values.shape[2]).sqrt()
    if inverse:
        rms = torch.where(rms > 0, 1.0 / torch.where(rms > 0, rms, 1.0), 0.0)
    return spread(rms, values) * weights


def _normalized(macro: Estimate, total: Estimate, dei: Estimate) -> Estimate:
    """max(0, dEI) / (eps + EI(J_M)); its error by the delta method, 0 where dEI is negative beyond doubt."""
    below = EPS + macro.value
    value = dei.value.clamp(min=0) / below
    error = torch.hypot(total.stderr / below, total.value * macro.stderr / below.square())
    return Estimate(value, torch.where(dei.value < -5 * dei.stderr, 0.0, error))


def _total(parts: Iterable[Estimate], like: Estimate) -> Estimate:
    value, variance = torch.zeros_like(like.value), torch.zeros_like(like.value)
    for part in parts:
        value = value + part.value
        variance = variance + part.stderr.square()
    return Estimate(value, variance.sqrt())


def _full(estimate: Estimate, batch: int) -> Estimate:
    """The estimate for every prompt: a map that all share was computed once."""
    tensors = (estimate.value, estimate.stderr, estimate.lower, estimate.upper)
    value, stderr, lower, upper = (None if t is None else t.expand(batch) for t in tensors)
    assert value is not None
    assert stderr is not None
    return Estimate(value, stderr, lower, upper)
