"""What a part made of the change, and what it inherited, with both models run on the same prompts:

    a_v^B - a_v^A = [f_v^B(x^B) - f_v^A(x^B)] + [f_v^A(x^B) - f_v^A(x^A)]
                         made here                    inherited

Both are differences of functions that this package evaluates, so that a part whose weights are the same makes nothing,
to the last digit. What B wrote beyond its own function (a hook that changes a write, say) is the residue.

The denominator of a norm behind the heads (Gemma) is the one observed in the run whose input is used, so that a head
whose weights are the same makes nothing either if another head of its layer does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.models.base import Model
from eics.models.spec import Norm
from eics.studies.comparison.parts import Parts
from eics.studies.comparison.passes import Tensors, own_functions_of_both
from eics.transformer.attention import by_head, pick, written_out

SQUARES = ("write", "made", "inherited", "residue")
"""Squared norms, summed over the positions of a prompt: of a_v^A, and of the three parts of the change."""


@dataclass(frozen=True)
class Numbers:
    """Of each part and prompt, (parts, B), on the CPU in float64.

    Attributes:
        squares: by the names of `SQUARES`.
        slope: g^T J m, what the gradient at B says of what was made here. second: the mean sample of the second order,
            nan where none was drawn (`targets.py` has both).
        stream: of the final residual stream's change: what all parts leave unattributed of it, and its size, squared,
            (2, B); None unless the parts are the whole model.
    """

    squares: dict[str, Tensor]
    slope: Tensor
    second: Tensor
    stream: Tensor | None


@dataclass(frozen=True)
class HeadOutputs:
    """What the heads of a layer write through in a model whose other weights may no longer be in memory."""

    w_o: Tensor
    post_norm: Norm | None
    b_o: Tensor | None

    @classmethod
    def of(cls, model: Model, parts: Parts) -> "dict[int, HeadOutputs]":
        """By layer."""
        attentions = {layer: model.transformer.blocks[layer].attention for layer in parts.attention_layers}
        return {layer: cls(spec.w_o, spec.post_norm, spec.b_o) for layer, spec in attentions.items()}

    def to(self, device: torch.device) -> "HeadOutputs":
        """The same on another device."""
        post = self.post_norm
        return HeadOutputs(
            self.w_o.to(device),
            None if post is None else replace(post, weight=post.weight.to(device)),
            None if self.b_o is None else self.b_o.to(device),
        )

    def copied(self) -> "HeadOutputs":
        """Tensors of their own on the CPU: views would keep all the weights that they are part of."""
        there = self.to(torch.device("cpu"))
        post, bias = there.post_norm, there.b_o
        post = None if post is None else replace(post, weight=post.weight.clone())
        return HeadOutputs(there.w_o.clone(), post, None if bias is None else bias.clone())

    def write(self, z: Tensor, heads: Sequence[int], summed: Tensor | None) -> Tensor:
        """What these heads write given their z, (H, B, T, e): (H, B, T, d)."""
        return written_out(self.w_o, self.post_norm, z, heads, summed)


@dataclass(frozen=True)
class Change:
    """Some parts that write at one site, (n, B, T, d): what A wrote, what was made, inherited, and is neither.

    The read-out's tensors are (1, B, 1, V).
    """

    names: tuple[str, ...]
    site: str | None
    write: Tensor
    made: Tensor
    inherited: Tensor
    residue: Tensor


def changes(
    parts: Parts, model: Model, ours: Tensors, theirs: Tensors, outputs: Mapping[int, HeadOutputs]
) -> Iterator[Change]:
    """Every part's change, from both runs, model A and what heads write through in B."""
    at_ours, at_theirs = own_functions_of_both(model, ours, theirs, parts)
    own_outputs = HeadOutputs.of(model, parts)
    if parts.input:
        yield _of_input(ours, theirs)
    for layer in parts.layers:
        if layer in parts.heads:
            weights = own_outputs[layer], outputs[layer]
            yield from _of_heads(layer, parts.heads[layer], weights, (ours, theirs), (at_ours, at_theirs))
        if layer in parts.biases:
            yield _of_bias(layer, own_outputs[layer], outputs[layer], ours)
        if layer in parts.mlps:
            yield _of_one(f"m{layer}", f"m{layer}", (ours, theirs), (at_ours, at_theirs))
    if parts.logits:
        runs = ({"write.logits": (run["logits"] - run["logits"].mean(dim=1, keepdim=True))} for run in (ours, theirs))
        first, second = ({**run, **centred} for run, centred in zip((ours, theirs), runs, strict=True))
        yield _at_one_position(_of_one("logits", None, (first, second), (at_ours, at_theirs)))


def numbers(parts: Parts, model: Model, ours: Tensors, theirs: Tensors, outputs: Mapping[int, HeadOutputs]) -> Numbers:
    """The numbers of a batch."""
    mask = ours["valid"].to(model.dtype)
    by_name: dict[str, list[Tensor]] = {name: [] for name in (*SQUARES, "slope", "second")}
    draws = [name.partition(".")[0] for name in theirs if name.startswith("sampled") and name.endswith(".logits")]
    total = torch.zeros_like(ours["stream"]) if parts.whole else None
    for change in changes(parts, model, ours, theirs, outputs):
        positions = mask[:, :1] if change.site is None else mask  # no prompt is empty
        for name in SQUARES:
            squares = getattr(change, name).square().sum(dim=3)
            by_name[name].append((squares * positions).sum(dim=2))
        by_name["slope"].append(_along(change, "gradient", theirs, positions))
        if draws:
            samples = torch.stack([_along(change, name, theirs, positions).double() for name in draws])
            by_name["second"].append(_log_cosh(samples).mean(dim=0))
        if total is not None and change.site is not None:
            total += (change.made + change.inherited).sum(dim=0)
    found = {name: torch.cat(rows).double().cpu() for name, rows in by_name.items() if rows}
    slope = found.pop("slope")
    second = found.pop("second", torch.full_like(slope, torch.nan))
    return Numbers(found, slope, second, None if total is None else _stream(ours, theirs, total, mask))


def _log_cosh(x: Tensor) -> Tensor:
    """log cosh x, without overflow; x^2 / 2 near 0."""
    size = x.abs()
    return torch.where(size < 1e-4, size.square() / 2, size + torch.log1p(torch.exp(-2 * size)) - math.log(2))


def _along(change: Change, name: str, theirs: Tensors, positions: Tensor) -> Tensor:
    """The inner product of what was made with a gradient in B's run, (n, B)."""
    gradient = theirs[f"{name}.logits"].unsqueeze(1) if change.site is None else theirs[f"{name}.{change.site}"]
    return ((change.made * gradient).sum(dim=3) * positions).sum(dim=2)


def _stream(ours: Tensors, theirs: Tensors, attributed: Tensor, mask: Tensor) -> Tensor:
    """What is left of the final residual stream's change, and the size of that stream in A, squared, (2, B)."""
    left = theirs["stream"] - ours["stream"] - attributed
    sizes = [(part.square().sum(dim=2) * mask).sum(dim=1) for part in (left, ours["stream"])]
    return torch.stack(sizes).double().cpu()


def _of_input(ours: Tensors, theirs: Tensors) -> Change:
    write = ours["write.input"].unsqueeze(0)
    nothing = torch.zeros_like(write)
    return Change(("input",), "input", write, theirs["write.input"].unsqueeze(0) - write, nothing, nothing)


def _of_bias(layer: int, ours: HeadOutputs, theirs: HeadOutputs, run: Tensors) -> Change:
    """An output bias is the same on every prompt and at every position."""
    assert ours.b_o is not None
    assert theirs.b_o is not None, "the models were checked to have the same weights"
    like = run[f"read.a{layer}"]
    write = ours.b_o.to(like).expand_as(like).unsqueeze(0)
    nothing = torch.zeros_like(write)
    return Change((f"a{layer}.bias",), f"a{layer}", write, theirs.b_o.to(like) - write, nothing, nothing)


def _of_one(name: str, site: str | None, runs: tuple[Tensors, Tensors], at: tuple[Tensors, Tensors]) -> Change:
    """A part that is alone at its site."""
    (ours, theirs), (at_ours, at_theirs), own, observed = runs, at, f"own.{name}", f"write.{name}"
    made, inherited = theirs[own] - at_theirs[own], at_theirs[own] - at_ours[own]
    residue = theirs[observed] - ours[observed] - made - inherited
    return Change((name,), site, *(tensor.unsqueeze(0) for tensor in (ours[observed], made, inherited, residue)))


def _at_one_position(change: Change) -> Change:
    """(1, B, V) as (1, B, 1, V)."""
    return replace(change, **{name: getattr(change, name).unsqueeze(2) for name in SQUARES})


def _of_heads(
    layer: int,
    heads: tuple[int, ...],
    outputs: tuple[HeadOutputs, HeadOutputs],
    runs: tuple[Tensors, Tensors],
    at: tuple[Tensors, Tensors],
) -> Iterator[Change]:
    """Heads of a layer, as many at a time as the memory bound allows: z is written out only here."""
    (ours, theirs), (at_ours, at_theirs), own = runs, at, f"own.a{layer}"
    summed = tuple(run.get(f"summed.{layer}") for run in runs)
    observed = tuple(by_head(run[f"z.{layer}"], len(weights.w_o)) for run, weights in zip(runs, outputs, strict=True))
    read = ours[f"read.a{layer}"]
    together = chunk_width(6 * read.numel(), read.dtype)
    for start in range(0, len(heads), together):
        some = slice(start, start + together)
        chosen = heads[some]
        middle = outputs[0].write(at_theirs[own][some], chosen, summed[1])
        made = outputs[1].write(theirs[own][some], chosen, summed[1]) - middle
        inherited = middle - outputs[0].write(at_ours[own][some], chosen, summed[0])
        write, other = (outputs[i].write(pick(observed[i], chosen), chosen, summed[i]) for i in (0, 1))
        names = tuple(f"a{layer}.h{head}" for head in chosen)
        yield Change(names, f"a{layer}", write, made, inherited, other - write - made - inherited)
