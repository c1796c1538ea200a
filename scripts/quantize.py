"""Which parts of a model may be rounded to few bits? `eics compare` predicts it; this script checks the prediction.

    python scripts/quantize.py --model people-0 --prompts people --bits 3

Every MLP and every attention layer is rounded (symmetric, one scale for each row). Comparisons with the original say
what each of them costs; mixed precision moves bits from parts that cost little to parts that cost much, so that the
whole is no larger than with uniform rounding. Both are measured as KL(original || rounded) on prompts other than those
that the choice was made on.
"""

import argparse
import copy
from collections.abc import Iterator

import torch
from scipy.stats import spearmanr

import eics
from eics.models.base import Model


def matrices(model: Model, module: torch.nn.Module, part: str) -> Iterator[torch.Tensor]:
    """The weight matrices of an attention layer (a3) or an MLP (m3)."""
    names = model.adapter.modules
    layer = model.adapter.layers(module)[int(part[1:])]
    block = layer.get_submodule(names.attention if part[0] == "a" else names.mlp)
    yield from (weight for weight in block.parameters() if weight.ndim == 2)


def rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest of 2^bits - 1 evenly spaced values, row by row."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


class Rounding:
    """A model and a copy of it in which each part has its own number of bits."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.copy = eics.adapt(copy.deepcopy(model.module), model.tokenizer, name="rounded")
        layers = range(len(model.transformer.blocks))
        self.parts = [f"{kind}{layer}" for layer in layers for kind in "am"]
        self.original: dict[str | int, torch.Tensor] = {}

    def size(self, part: str) -> int:
        """How many weights a part has."""
        return sum(weight.numel() for weight in matrices(self.model, self.model.module, part))

    @torch.no_grad()
    def set(self, part: str, bits: int | None) -> None:
        """Rounds a part of the copy; None restores it."""
        pairs = zip(
            matrices(self.model, self.model.module, part), matrices(self.copy, self.copy.module, part), strict=True
        )
        for original, own in pairs:
            own.copy_(original if bits is None else rounded(original, bits))

    def set_all(self, bits: dict[str, int]) -> None:
        """Rounds every part."""
        for part in self.parts:
            self.set(part, bits[part])

    @torch.no_grad()
    def loss(self, prompts: list) -> float:
        """Mean KL(original || copy) of the next token, from plain forward passes."""
        total = 0.0
        for prompt in prompts:
            tokens = torch.tensor([self.model.tokenizer(prompt.text)["input_ids"]])
            if prompt.id not in self.original:
                self.original[prompt.id] = self.model.module(tokens).logits[0, -1].log_softmax(dim=0)
            ours, theirs = self.original[prompt.id], self.copy.module(tokens).logits[0, -1].log_softmax(dim=0)
            total += float((ours.exp() * (ours - theirs)).sum())
        return total / len(prompts)

    def predicted(self, prompts: list) -> dict[str, float]:
        """What restoring each part of the copy would take back, from one comparison."""
        found = eics.compare(self.model, None, prompts, against=self.copy, resamples=1)
        effects = dict.fromkeys(self.parts, 0.0)
        for change in found.nodes:
            part = change.node.partition(".")[0]
            if part in effects:
                effects[part] += change.effect.value
        return effects


def losses(rounding: Rounding, prompts: list, bits: int) -> dict[str, list[float]]:
    """The predicted loss of each part with one bit less, as many, and one more; it does not grow with bits."""
    columns = []
    for count in (bits - 1, bits, bits + 1):
        rounding.set_all(dict.fromkeys(rounding.parts, count))
        columns.append(rounding.predicted(prompts))
    listed = {part: [max(0.0, column[part]) for column in columns] for part in rounding.parts}
    return {part: [max(row[place:]) for place in range(3)] for part, row in listed.items()}


def mixed(rounding: Rounding, predicted: dict[str, list[float]], bits: int) -> dict[str, int]:
    """Bits by part, at most as many in all as if each part had `bits`: a bit moves from one part to another as long as
    the predicted loss falls."""
    place = dict.fromkeys(rounding.parts, 1)
    while True:
        moves = [
            (predicted[to][place[to] + 1] - predicted[to][place[to]]
             + predicted[of][place[of] - 1] - predicted[of][place[of]], to, of)
            for to in rounding.parts
            for of in rounding.parts
            if to != of and place[to] < 2 and place[of] > 0 and rounding.size(to) <= rounding.size(of)
        ]  # fmt: skip
        gain, to, of = min(moves, default=(0.0, "", ""))
        if gain >= 0:
            return {part: bits - 1 + at for part, at in place.items()}
        place[to], place[of] = place[to] + 1, place[of] - 1


def main() -> None:
    """Reads the options, rounds, predicts, checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="people-0")
    parser.add_argument("--prompts", default="people")
    parser.add_argument("--count", type=int, default=64, help="prompts to choose on, and as many to measure on")
    parser.add_argument("--bits", type=int, default=3)
    given = parser.parse_args()
    model = eics.load_model(given.model, device="cpu")
    prompts = eics.read_prompts(given.prompts, shuffle=True)[: 2 * given.count]
    choose, measure = prompts[: given.count], prompts[given.count :]
    rounding = Rounding(model)
    uniform = dict.fromkeys(rounding.parts, given.bits)
    rounding.set_all(uniform)
    effects, whole, true = rounding.predicted(choose), rounding.loss(choose), {}
    for part in rounding.parts:
        rounding.set(part, None)
        true[part] = whole - rounding.loss(choose)
        rounding.set(part, given.bits)
    print("part  weights  predicted  true")
    for part in rounding.parts:
        print(f"{part:4}  {rounding.size(part):7}  {effects[part]:9.4f}  {true[part]:.4f}")
    both = [[effects[part], true[part]] for part in rounding.parts]
    print(f"rank correlation {spearmanr(both).statistic:.2f}")
    plain = rounding.loss(measure)
    by_prediction = mixed(rounding, losses(rounding, choose, given.bits), given.bits)
    rounding.set_all(by_prediction)
    print(f"KL, uniform {given.bits} bits: {plain:.4f}; mixed, at most the same size: {rounding.loss(measure):.4f}")
    print("bits:", ", ".join(f"{part} {bits}" for part, bits in by_prediction.items()))


if __name__ == "__main__":
    main()
