"""One row for each prompt and circuit: what ablation says of it, and what the scores say, from shared passes.

A row has the task, the prompt's number, group, length, entropy and max-probability; the circuit's name, kind, edges and
overlap with the discovered one; the task's metric of the full model, and for each ablation of the model with everything
ablated and of the circuit run by itself, with KL(full model || circuit); and the scores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.calibration.fit import prompt_means
from eics.studies.discovery.ablate import circuit_logits
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import Targets, measure
from eics.studies.discovery.reference import ABLATIONS, Writes, mean_writes
from eics.studies.discovery.task import Pair, Task, targets
from eics.studies.tracking.families import Member
from eics.studies.tracking.scores import CHEAP, DEAR, Scorer
from eics.transformer.forward import ForwardState, run
from eics.transformer.means import Means

Row = dict[str, Any]
Tick = Callable[[int], None]

LEAST = 8
"""Prompts of a task below which a rank correlation over prompts says nothing."""


@dataclass(frozen=True)
class Subject:
    """A task with its family of circuits, and the prompts whose means stand in for what is ablated to its mean.

    The first circuit, and one rewired and one random, are measured on every prompt; the others on the first
    `family_prompts`. `dear` says whether EICS itself is computed for all circuits or for the first alone.
    """

    task: Task
    members: tuple[Member, ...]
    reference: Task
    metric: str = "logit_diff"
    family_prompts: int = 8
    dear: bool = False

    def __post_init__(self) -> None:
        for ablation in ABLATIONS:
            self.task.check(self.metric, ablation)
        if len(self.task.pairs) < LEAST:
            raise OptionError(
                f"A task must have at least {LEAST} prompts that the model can run to track anything over prompts. "
                f"{self.task.name!r} has {len(self.task.pairs)}."
            )

    @property
    def everywhere(self) -> tuple[Member, ...]:
        """The circuits that are measured on every prompt."""
        firsts = [next((m for m in self.members if m.kind == kind), None) for kind in ("rewired", "random")]
        return (self.members[0], *(member for member in firsts if member is not None))

    @property
    def rows(self) -> int:
        """How many there will be."""
        family = min(self.family_prompts, len(self.task.pairs))
        return family * len(self.members) + (len(self.task.pairs) - family) * len(self.everywhere)

    def batches(self, size: int) -> Iterator[tuple[list[int], tuple[Member, ...]]]:
        """Prompts of similar length with the circuits to measure on them."""
        pairs = self.task.pairs
        family = min(self.family_prompts, len(pairs))
        for places, members in ((range(family), self.members), (range(family, len(pairs)), self.everywhere)):
            ordered = sorted(places, key=lambda place: len(pairs[place].clean))
            for start in range(0, len(ordered), size):
                yield ordered[start : start + size], members


def measure_subject(
    model: Model,
    subject: Subject,
    known: "References",
    *,
    batch_size: int = 8,
    memory: float = 512,
    seed: int = 0,
    tick: Tick = lambda _: None,
) -> Iterator[list[Row]]:
    """Rows, batch by batch and circuit by circuit."""
    for member in subject.members:
        model.check_circuit(member.circuit)
    with torch.no_grad(), memory_limit(memory):
        work = _Work(model, subject, known, FullGraph.of(model), seed)
        for places, members in subject.batches(batch_size):
            for rows in work.batch(places, members):
                yield rows
                tick(len(rows))


@dataclass(frozen=True)
class References:
    """Mean writes of all nodes, for ablation; means of the circuits' nodes, for the propagated run."""

    writes: Writes
    means: Means


def references(model: Model, subject: Subject, batch_size: int) -> References:
    """Both from the same prompts."""
    with torch.no_grad():
        writes = mean_writes(run(model, [p.clean for p in some]) for some in subject.reference.batches(batch_size))
    every = Circuit(dict.fromkeys(edge for member in subject.members for edge in member.circuit.edges))
    prompts = [Prompt(place, tokens=pair.clean) for place, pair in enumerate(subject.reference.pairs)]
    return References(writes, prompt_means(model, every, prompts, batch_size))


@dataclass(frozen=True)
class _Work:
    model: Model
    subject: Subject
    references: References
    graph: FullGraph
    seed: int

    def batch(self, places: list[int], members: Sequence[Member]) -> Iterator[list[Row]]:
        pairs = [self.subject.task.pairs[place] for place in places]
        clean = run(self.model, [pair.clean for pair in pairs], logits=True)
        assert clean.logits is not None
        ablated = self.ablated(clean, pairs)
        aims = replace(targets(pairs, self.model), full=clean.logits)
        shared = self.of_prompts(clean.logits, aims)
        nothing = torch.zeros_like(self.graph.valid)
        for kind, writes in ablated.items():
            shared[f"metric_empty_{kind}"] = self.value(circuit_logits(clean, writes, self.graph, nothing), aims)
        for member in members:
            found = shared | self.of_circuit(clean, ablated, aims, member)
            about = {"kind": member.kind, "edges": len(member.circuit.edges), "overlap": member.overlap}
            yield [
                {
                    "task": self.subject.task.name,
                    "prompt": place,
                    "group": pair.group,
                    "length": len(pair.clean),
                    "circuit": member.name,
                    **about,
                    **{name: float(values[row]) for name, values in found.items()},
                }
                for row, (place, pair) in enumerate(zip(places, pairs, strict=True))
            ]

    def ablated(self, clean: ForwardState, pairs: Sequence[Pair]) -> dict[str, Writes]:
        corrupted = run(self.model, [pair.corrupted or () for pair in pairs])
        return {"corrupted": Writes.of(corrupted), "mean": self.references.writes, "zero": Writes.of(clean).zero()}

    def of_prompts(self, logits: Tensor, aims: Targets) -> dict[str, Tensor]:
        logs = logits.log_softmax(dim=-1)
        return {
            "entropy": -(logs.exp() * logs).sum(dim=-1),
            "max_probability": logs.amax(dim=-1).exp(),
            "metric_full": self.value(logits, aims),
        }

    def of_circuit(
        self, clean: ForwardState, ablated: dict[str, Writes], aims: Targets, member: Member
    ) -> dict[str, Tensor]:
        mask = self.graph.mask(member.circuit)
        found: dict[str, Tensor] = {}
        for kind, writes in ablated.items():
            logits = circuit_logits(clean, writes, self.graph, mask)
            found[f"metric_circuit_{kind}"] = self.value(logits, aims)
            found[f"kl_{kind}"] = -measure("kl", logits, aims)
        scorer = Scorer(clean, member.circuit, self.references.means, self.seed)
        dear = DEAR if self.subject.dear or member is self.subject.members[0] else ()
        return found | {name: scorer[name] for name in (*CHEAP, *dear)}

    def value(self, logits: Tensor, aims: Targets) -> Tensor:
        return measure(self.subject.metric, logits, aims)
