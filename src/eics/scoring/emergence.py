"""The emergence term, equation (3): does the circuit as a whole carry more than its parts?

    dEI = EI(J_M) - sum_parts EI(J_part)                  dEI_norm = max(0, dEI) / (eps + EI(J_M))
    r   = eff(J_M) / mean_parts eff(J_part),  eff = EI / min(rows, columns)      (intensive: r / (1 + r))

`emergence_spectra` computes the spectra of J_M and the parts (`parts.py`) as `mode` says: exactly, by stochastic
Lanczos quadrature, from moments (`fast`, `linalg/moments.py`) or in the small-alpha form (`limit`,
`linalg/hutchpp.py`). Alpha enters afterwards, so a whole curve over alpha costs no more than a point.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from eics.linalg.blocks import cat_batches
from eics.linalg.host_device import map_tensors, to_device, to_host
from eics.linalg.hutchpp import SmallAlpha, at_least_one, closed_form, counts, joined, small_alpha
from eics.linalg.kronecker_spectrum import PositionsTimesWeights
from eics.linalg.lanczos import quadrature, top_k
from eics.linalg.memory import chunk_width, memory_bound
from eics.linalg.moment_estimates import closed_moments, sampled_moments
from eics.linalg.moments import Moments
from eics.linalg.probes import generator
from eics.linalg.spectrum import Alpha, Estimate, Gram, SingularValues, Spectrum, exact, exact_at, trailing
from eics.linalg.stacking import by_key, stack_key
from eics.linalg.structure import BlockDiagonal, structure, with_cached_blocks
from eics.linalg.two_steps import two_steps
from eics.linearized.sweep import Engine
from eics.scoring.options import Options
from eics.scoring.parts import Part, branch_parts, macro_part, node_parts
from eics.scoring.sheaf import EPS

_ROUNDING = 64
_CACHED_BLOCKS = 4  # as many blocks of the memory bound may be cached


@dataclass(frozen=True)
class Emergence:
    """The term at one alpha, for each prompt; (B,) each unless said otherwise.

    Attributes:
        ei_macro: EI(J_M).
        ei_parts: (B, parts), in the order of the spectra's parts.
        dei: signed.
        term: what the score multiplies: dEI_norm, or r / (1 + r).
        ratio: r if intensive, else None.
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
        total = _sum(parts)
        macro = _with_reading(macro)
        difference = macro.value - total.value
        rounding = _ROUNDING * torch.finfo(difference.dtype).eps * (macro.value + total.value)
        difference = torch.where(difference.abs() <= rounding, 0.0, difference)  # no sign in the last digits
        dei = Estimate(difference, torch.hypot(macro.stderr, total.stderr))
        if emergence == "difference":
            return Emergence(macro, _with_reading(parts), dei, _normalized(macro, total, dei), None)
        ratio = self._ratio(macro, parts)
        below = 1.0 + ratio.value
        term = Estimate(ratio.value / below, ratio.stderr / below.square())
        return Emergence(macro, _with_reading(parts), dei, term, ratio)

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
        """All parts in one, if all have the small-alpha form."""
        small = [part for part in self.parts.values() if isinstance(part, SmallAlpha)]
        return joined(small, self.batch) if small and len(small) == len(self.parts) else None

    def _ei_parts(self, alpha: Alpha) -> Estimate:
        """EI of all parts, (B, parts)."""
        if self._joined is not None:
            return self._joined.ei(trailing(alpha, 1))
        if not self.parts:
            none = torch.zeros_like(_full(self.macro.ei(alpha), self.batch).value)[:, None][:, :0]
            return Estimate(none, none)
        estimates = []
        for names, spectrum in self._groups:
            joint = alpha.repeat(len(names)) if isinstance(alpha, Tensor) and len(names) > 1 else alpha
            estimates.append(_by_map(spectrum.ei(joint), len(names), self.batch))
        return _side_by_side(estimates, self._order)

    @cached_property
    def _order(self) -> Tensor | None:
        """Where each part stands among the groups; None if they have the parts' order."""
        grouped = [name for names, _ in self._groups for name in names]
        places = [grouped.index(name) for name in self.parts]
        in_order = places == sorted(places)
        return None if in_order else to_device(places, _device(self._groups[0][1]))

    @cached_property
    def _groups(self) -> list[tuple[tuple[str, ...], Spectrum]]:
        """Parts whose spectra have one shape in one spectrum, part by part along the batch: one EI for all."""
        groups = []
        for names in by_key(list(self.parts), lambda name: _join_key(self.parts[name])):
            spectra = [self.parts[name] for name in names]
            joint = spectra[0] if len(spectra) == 1 else map_tensors(partial(_cat_batches, self.batch), *spectra)
            groups.append((tuple(names), joint))
        return groups

    def _ratio(self, macro: Estimate, parts: Estimate) -> Estimate:
        """r, 0 if no part carries anything. A part without channels (nothing enters) has no efficiency."""
        channels = counts(self.part_channels, self.batch, parts.value.device)
        has = channels > 0
        efficiency = torch.where(has, 1.0 / channels.to(parts.value.dtype), 0.0)
        scale = efficiency / has.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (parts.value * scale).sum(dim=1)
        mean_error = _sum(Estimate(parts.value, parts.stderr * scale, reading=_times(parts.reading, scale))).stderr
        of_macro = at_least_one(self.macro_channels)
        whole, whole_error = macro.value / of_macro, macro.stderr / of_macro
        safe = torch.where(mean > 0, mean, 1.0)
        ratio = torch.where(mean > 0, whole / safe, 0.0)
        error = torch.hypot(whole_error / safe, ratio * mean_error / safe)
        return Estimate(ratio, torch.where(mean > 0, error, 0.0))


def emergence_spectra(engine: Engine, options: Options) -> EmergenceSpectra:
    """Spectra of J_M and of the parts, in the chosen metric and mode."""
    relative = options.metric == "relative"
    macro = macro_part(engine, relative=relative)
    parts = (
        node_parts(engine, relative=relative) if options.parts == "nodes" else branch_parts(engine, relative=relative)
    )
    cached = _with_cached_blocks(engine) if options.mode == "exact" and options.parts == "nodes" else None
    if cached is None:
        of_macro, of_parts = spectrum_of_macro(macro, options), _spectra(parts, options)
    else:
        of_macro, of_blocks = _one_by_one(cached, options)
        spectra = _spectra([part for part in parts if part.names[0] not in of_blocks], options) | of_blocks
        of_parts = {part.names[0]: spectra[part.names[0]] for part in parts}
    return EmergenceSpectra(
        macro=of_macro,
        parts=of_parts,
        macro_rows=macro.rows,
        macro_channels=macro.channels,
        part_channels=tuple(part.channels for part in parts),
        batch=engine.linearized.batch,
    )


def _blocks(part: Part) -> int:
    known = structure(part.operator)
    return known.blocks if isinstance(known, BlockDiagonal) else 1


def _with_cached_blocks(engine: Engine) -> Iterable[Engine] | None:
    """The circuit, or that of each prompt, with block-diagonal maps that make their matrices once, for J_M and the
    parts.

    None if there are no such maps, or if the matrices of a single prompt are too many to be cached.
    """
    linearized = engine.linearized
    operators = [entry.operator for _, entries in engine.node_maps() for entry in entries]
    known = [(one, structure(one)) for one in operators]
    sizes = [
        one.rows * one.cols // blocks.blocks * one.dtype.itemsize
        for one, blocks in known
        if isinstance(blocks, BlockDiagonal) and blocks.blocks > 1
    ]
    bound = _CACHED_BLOCKS * memory_bound()
    if not sizes or sum(sizes) > bound:
        return None
    if linearized.batch * sum(sizes) <= bound:
        return [linearized.with_operators(with_cached_blocks).engine()]
    prompts = (linearized.prompt(index) for index in range(linearized.batch))
    return (prompt.with_operators(with_cached_blocks).engine() for prompt in prompts)


def _one_by_one(engines: Iterable[Engine], options: Options) -> tuple[Spectrum, dict[str, Spectrum]]:
    """The spectra of J_M and of the block-diagonal parts, of one circuit after another."""
    relative, spectra = options.metric == "relative", []
    for engine in engines:
        block_diagonal = [part for part in node_parts(engine, relative=relative) if _blocks(part) > 1]
        macro = spectrum_of_macro(macro_part(engine, relative=relative), options)
        spectra.append((macro, _spectra(block_diagonal, options)))
    merged: tuple[Spectrum, dict[str, Spectrum]] = map_tensors(lambda *tensors: torch.cat(tensors), *spectra)
    return merged if len(spectra) > 1 else spectra[0]


def _spectra(parts: Sequence[Part], options: Options) -> dict[str, Spectrum]:
    """Every part's spectrum, by name; parts that can be stacked together, within the memory
    bound."""
    spectra: dict[str, Spectrum] = {}
    held = options.steps if options.mode == "lanczos" else 3  # blocks of probes that an estimate keeps at once
    for group in by_key(parts, lambda part: stack_key(part.operator)):
        operator = group[0].operator
        batch = operator.batch
        size = batch * max(operator.rows, operator.cols) * options.node_probes * held
        width = chunk_width(size, operator.dtype)
        for start in range(0, len(group), width):
            chunk = group[start : start + width]
            spectrum = spectrum_of(Part.stacked(chunk), options, options.node_probes)
            for index, part in enumerate(chunk):
                own = partial(_rows, start=index * batch, end=(index + 1) * batch)
                spectra[part.names[0]] = spectrum if len(chunk) == 1 else map_tensors(own, spectrum)
    return {part.names[0]: spectra[part.names[0]] for part in parts}


def _rows(tensor: Tensor, *, start: int, end: int) -> Tensor:
    return tensor[start:end]


def macro_spectrum(engine: Engine, options: Options) -> tuple[Spectrum, Tensor | int]:
    """The spectrum of J_M alone, and how many rows count: all that choosing alpha needs."""
    part = macro_part(engine, relative=options.metric == "relative")
    return spectrum_of_macro(part, options), part.rows


def spectrum_of_macro(part: Part, options: Options) -> Spectrum:
    """The spectrum of J_M, as the mode says. Its effective rank is low, so `fast` takes two Lanczos steps."""
    return spectrum_of(part, options, options.probes_of_macro, whole=True)


def spectrum_of(part: Part, options: Options, probes: int, *, whole: bool = False) -> Spectrum:
    """The spectrum of one part, or of the `whole`, as the mode says; its probes come from a stream of its own."""
    if options.mode == "exact":
        if options.alpha == "auto" or options.curve:
            return exact(part.operator, "svd")  # one factorization for all alphas
        return exact_at(part.operator, float(options.alpha), options.factorization)
    closed = _closed(part, options)
    if closed is not None:
        return closed
    # Which side is smaller is decided for each prompt, so that it scores the same alone and in a batch.
    smaller = part.rows <= part.cols
    by_rows = to_host(smaller) if isinstance(smaller, Tensor) else [smaller]
    found = {side: _estimated(part, options, probes, side, whole) for side in set(by_rows)}
    if len(found) == 1:
        return next(iter(found.values()))
    choice = to_device(by_rows, part.operator.device)
    merged: Spectrum = map_tensors(
        lambda one, other: torch.where(choice.view(-1, *[1] * (one.ndim - 1)), one, other), found[True], found[False]
    )
    return merged


def _closed(part: Part, options: Options) -> Spectrum | None:
    """What `fast` and `limit` know of a part without a product with probes."""
    if options.mode == "limit":
        return closed_form(part.operator, part.channels)
    return closed_moments(part.operator, part.channels, _streams(part, options)) if options.mode == "fast" else None


def _streams(part: Part, options: Options) -> list[torch.Generator]:
    return [generator(options.seed, name) for name in part.names]


def _estimated(part: Part, options: Options, probes: int, by_rows: bool, whole: bool) -> Spectrum:
    gram, stream = Gram(part.operator, part.support, by_rows), _streams(part, options)
    if options.mode == "fast" and whole:
        return two_steps(gram, part.channels, probes=probes, stream=stream)
    if options.mode == "fast":
        return sampled_moments(part.operator, gram, part.channels, probes=probes, stream=stream)
    if options.mode == "limit":
        return small_alpha(part.operator, gram, part.channels, probes=probes, stream=stream)
    if options.top_k is not None:
        return top_k(gram, k=options.top_k, steps=options.steps, stream=stream)
    return quadrature(gram, probes=probes, steps=options.steps, stream=stream)


def _normalized(macro: Estimate, total: Estimate, dei: Estimate) -> Estimate:
    """max(0, dEI) / (eps + EI(J_M)); its error by the delta method, 0 if dEI is negative beyond doubt."""
    below = EPS + macro.value
    value = dei.value.clamp(min=0) / below
    error = torch.hypot(total.stderr / below, total.value * macro.stderr / below.square())
    return Estimate(value, torch.where(dei.value < -5 * dei.stderr, 0.0, error))


def _full(estimate: Estimate, batch: int) -> Estimate:
    """The estimate for every prompt: a map that all share was computed once."""
    full: Estimate = map_tensors(lambda tensor: tensor.expand(batch), estimate)
    return full


def _join_key(spectrum: Spectrum) -> Hashable:
    """Spectra with an equal key can be evaluated as one; None for those that are large, or evaluated once."""
    if not isinstance(spectrum, Moments | PositionsTimesWeights | SingularValues):
        return None
    values = [getattr(spectrum, field.name) for field in fields(spectrum) if field.name != "method"]
    return type(spectrum), tuple((v.shape[1:], v.dtype) if isinstance(v, Tensor) else v for v in values)


def _cat_batches(batch: int, *tensors: Tensor) -> Tensor:
    return cat_batches(tensors, batch)


def _device(spectrum: Spectrum) -> torch.device:
    return next(value.device for value in vars(spectrum).values() if isinstance(value, Tensor))


def _by_map(estimate: Estimate, count: int, batch: int) -> Estimate:
    """The estimate of `count` maps that were joined along the batch, (B, count)."""
    columns: Estimate = map_tensors(lambda tensor: tensor.view(count, -1).mT.expand(batch, count), estimate)
    return columns


def _side_by_side(estimates: Sequence[Estimate], order: Tensor | None) -> Estimate:
    """Estimates (B, maps) side by side in this order. An exact number is its own bounds, and leaves nothing open."""

    def joined(tensors: Sequence[Tensor]) -> Tensor:
        whole = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=1)
        return whole if order is None else whole[:, order]

    value, stderr = (joined([getattr(estimate, name) for estimate in estimates]) for name in ("value", "stderr"))
    if all(estimate.lower is None for estimate in estimates):
        return Estimate(value, stderr)
    lower = joined([e.value if e.lower is None else e.lower for e in estimates])
    upper = joined([e.value if e.upper is None else e.upper for e in estimates])
    reading = joined([torch.zeros_like(e.value) if e.reading is None else e.reading for e in estimates])
    return Estimate(value, stderr, lower, upper, reading)


def _sum(parts: Estimate) -> Estimate:
    """The sum over parts, (B,): independent errors add in quadrature, errors of one reading add up."""
    error = parts.stderr.square().sum(dim=1).sqrt()
    error = error if parts.reading is None else torch.hypot(error, parts.reading.sum(dim=1))
    return Estimate(parts.value.sum(dim=1), error)


def _with_reading(estimate: Estimate) -> Estimate:
    """The estimate with the error of its reading in the standard error."""
    if estimate.reading is None:
        return estimate
    return replace(estimate, stderr=torch.hypot(estimate.stderr, estimate.reading), reading=None)


def _times(error: Tensor | None, scale: Tensor) -> Tensor | None:
    return None if error is None else error * scale
