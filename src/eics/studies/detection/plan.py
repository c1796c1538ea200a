"""Which node of which prompt is damaged, and how: one node at a time, at the last position.

| kind | what happens to the node |
|---|---|
| `write` | it writes what it writes on another prompt |
| `read` | what an MLP reads from outside the circuit is that of another prompt; its function stays intact |
| `mean` | it writes its mean over the reference |
| `noise` | Gaussian noise as large as its write is added |
| `steer` | a random direction as long as its write is added |
| `off` | as `write`, but the node lies outside the circuit |

Nodes are dealt to prompts in turn, so that every node is damaged equally often, give or take one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.errors import OptionError
from eics.transformer.interventions.kinds import Ablate, Intervention, Noise, Patch, PatchRead, Steer

KINDS = ("write", "read", "mean", "noise", "steer")
OFF = "off"
"""The kind of damage that lies outside the circuit: a write patched from another prompt."""


@dataclass(frozen=True)
class Damage:
    """One damaged run: the number of the prompt, the node, the kind, and the number of the donor prompt."""

    prompt: int
    node: str
    kind: str
    donor: int


def plan(
    groups: Sequence[str], nodes: Sequence[str], per_prompt: dict[str, int], seed: int, *, kinds: Sequence[str] = KINDS
) -> list[Damage]:
    """Damages for every prompt: `per_prompt` nodes of each kind. A donor belongs to another group than its prompt."""
    unknown = [kind for kind in per_prompt if kind not in kinds]
    if unknown:
        raise OptionError.of("per_prompt", f"numbers of {', '.join(kinds)}", unknown[0])
    if any(per_prompt.values()) and len(set(groups)) < 2:
        raise OptionError(
            f"Damaged prompts must have at least two groups, because a donor is of another one. Got {len(set(groups))}."
        )
    damages = []
    for number, kind in enumerate(kinds):
        draw = np.random.default_rng([seed, number])
        pool = [node for node in nodes if kind != "read" or Node.parse(node).kind is Kind.MLP]
        pool = [pool[index] for index in draw.permutation(len(pool))]
        dealt = min(per_prompt.get(kind, 0), len(pool))
        for prompt, group in enumerate(groups if dealt else ()):
            others = [other for other, of_other in enumerate(groups) if of_other != group]
            donor = others[int(draw.integers(len(others)))]
            damages += [Damage(prompt, pool[(prompt * dealt + j) % len(pool)], kind, donor) for j in range(dealt)]
    return sorted(damages, key=lambda damage: damage.prompt)


def intervention(damage: Damage, token_lists: Sequence[Sequence[int]], mean: Callable[[str], Tensor]) -> Intervention:
    """The damage as an intervention; `mean` knows a node's mean write."""
    node, donor = damage.node, token_lists[damage.donor]
    if damage.kind in ("write", OFF):
        return Patch(node, tokens=tuple(donor), at="last")
    if damage.kind == "read":
        return PatchRead(node, tokens=tuple(donor), at="last")
    if damage.kind == "mean":
        return Ablate(node, mean=mean(node), at="last")
    if damage.kind == "noise":
        return Noise(node, at="last")
    assert damage.kind == "steer", damage.kind
    return Steer(node, at="last")
