"""One row per prompt and circuit: what ablation and the scores say about it, from shared passes; and what each costs.

A row has the task; the prompt's number, group, length, entropy and max-probability; the circuit's name, kind, edges and
overlap with the discovered circuit; the task's metric for the full model and, under each ablation, for the fully
ablated model and for the circuit run by itself, with KL(full model || circuit); and the scores.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.calibration.prompt_means import prompt_means
from eics.studies.bench.measure import Timing, interleaved
from eics.studies.discovery.ablate import circuit_logits
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import Targets, measure
from eics.studies.discovery.reference import ABLATIONS, Writes, mean_writes
from eics.studies.discovery.task import Pair, Task, targets
from eics.studies.run_folder import Row
from eics.studies.tracking.families import Member
from eics.studies.tracking.scores import CHEAP, EXPENSIVE, SCORES, Scorer
from eics.transformer.forward import ForwardState, run
from eics.transformer.means import Means

Key = tuple[str, int, str]
"""Task, prompt and circuit of a row."""

Cost = tuple[str, Timing]
"""What was timed, and its time beside that of plain forward passes, including the pass that it needs itself."""

ABLATION, CORRUPTED = "ablation, mean or zero", "ablation, corrupted"

LEAST = 8
"""Fewest prompts of a task for which a rank correlation over prompts is computed."""


@dataclass(frozen=True)
class Subject:
    """A task with its family of circuits, and a reference task whose prompts give the means for mean ablation.

    The first circuit, one rewired and one random circuit are measured on every prompt, the others only on the first
    `family_prompts`. With `all_eics`, EICS itself is computed for all circuits, otherwise only for the first.
    """

    task: Task
    members: tuple[Member, ...]
    reference: Task
    metric: str = "logit_diff"
    family_prompts: int = 8
    all_eics: bool = False

    def __post_init__(self) -> None:
        for ablation in ABLATIONS:
            self.task.check(self.metric, ablation)
        if len(self.task.pairs) < LEAST:
            raise OptionError(
                f"A task must have at least {LEAST} prompts that the model can run to correlate over prompts. "
                f"{self.task.name!r} has {len(self.task.pairs)}: add prompts."
            )

    @property
    def everywhere(self) -> tuple[Member, ...]:
        """The circuits measured on every prompt."""
        firsts = [next((m for m in self.members if m.kind == kind), None) for kind in ("rewired", "random")]
        return (self.members[0], *(member for member in firsts if member is not None))

    @property
    def rows(self) -> int:
        """How many rows a complete run has."""
        return sum(len(members) for _, members in self.batches(1))

    def batches(self, size: int) -> Iterator[tuple[list[int], tuple[Member, ...]]]:
        """Prompts of similar length, with the circuits to measure on them."""
        pairs = self.task.pairs
        family = min(self.family_prompts, len(pairs))
        for prompts, members in ((range(family), self.members), (range(family, len(pairs)), self.everywhere)):
            ordered = sorted(prompts, key=lambda prompt: len(pairs[prompt].clean))
            for start in range(0, len(ordered), size):
                yield ordered[start : start + size], members


def measure_subject(
    model: Model,
    subject: Subject,
    means: "References",
    *,
    batch_size: int = 8,
    memory: float = 512,
    seed: int = 0,
    done: Collection[Key] = (),
    tick: Callable[[int], None] = lambda _: None,
) -> Iterator[list[Row]]:
    """Rows, batch by batch and circuit by circuit, without those already `done`.

    A resumed run forms the same batches as an uninterrupted one, so that padding, and with it rounding, is the same.
    """
    for member in subject.members:
        model.check_circuit(member.circuit)
    with torch.no_grad(), memory_limit(memory):
        work = _Work(model, subject, means, FullGraph.of(model), seed)
        for prompts, members in subject.batches(batch_size):
            missing = {
                member: [p for p in prompts if (subject.task.name, p, member.name) not in done] for member in members
            }
            unfinished = [member for member in members if missing[member]]
            for member, rows in zip(unfinished, work.batch(prompts, unfinished), strict=True):
                new = [row for row in rows if row["prompt"] in missing[member]]
                yield new
                tick(len(new))


@dataclass(frozen=True)
class References:
    """Mean writes of all nodes, for ablation, and means of the circuits' nodes, for the propagated run."""

    writes: Writes
    means: Means


def references(model: Model, subject: Subject, batch_size: int) -> References:
    """Both means, from the prompts of the subject's reference task."""
    with torch.no_grad():
        writes = mean_writes(run(model, [p.clean for p in pairs]) for pairs in subject.reference.batches(batch_size))
    every = Circuit(dict.fromkeys(edge for member in subject.members for edge in member.circuit.edges))
    prompts = [Prompt(number, tokens=pair.clean) for number, pair in enumerate(subject.reference.pairs)]
    return References(writes, prompt_means(model, every, prompts, batch_size))


@dataclass(frozen=True)
class _Work:
    model: Model
    subject: Subject
    references: References
    graph: FullGraph
    seed: int

    def batch(self, prompts: list[int], members: Sequence[Member]) -> Iterator[list[Row]]:
        """Rows of each circuit on these prompts."""
        if not members:
            return
        pairs = [self.subject.task.pairs[prompt] for prompt in prompts]
        clean = run(self.model, [pair.clean for pair in pairs], logits=True)
        assert clean.logits is not None
        ablated = self.ablated(clean, pairs)
        aims = replace(targets(pairs, self.model), full=clean.logits)
        shared = self.of_prompts(clean.logits, aims)
        nothing = torch.zeros_like(self.graph.valid)
        for kind, writes in ablated.items():
            shared[f"metric_empty_{kind}"] = self.value(circuit_logits(clean, writes, self.graph, nothing), aims)
        for member in members:
            columns = shared | self.of_circuit(clean, ablated, aims, member)
            yield [
                {
                    "task": self.subject.task.name,
                    "prompt": prompt,
                    "group": pair.group,
                    "length": len(pair.clean),
                    "circuit": member.name,
                    "kind": member.kind,
                    "edges": len(member.circuit.edges),
                    "overlap": member.overlap,
                    **{name: float(values[index]) for name, values in columns.items()},
                }
                for index, (prompt, pair) in enumerate(zip(prompts, pairs, strict=True))
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
        columns: dict[str, Tensor] = {}
        for kind, writes in ablated.items():
            logits = circuit_logits(clean, writes, self.graph, mask)
            columns[f"metric_circuit_{kind}"] = self.value(logits, aims)
            columns[f"kl_{kind}"] = -measure("kl", logits, aims)
        scorer = Scorer(clean, member.circuit, self.references.means, self.seed)
        expensive = EXPENSIVE if self.subject.all_eics or member is self.subject.members[0] else ()
        return columns | {name: scorer[name] for name in (*CHEAP, *expensive)}

    def value(self, logits: Tensor, aims: Targets) -> Tensor:
        return measure(self.subject.metric, logits, aims)


def costs(
    model: Model,
    subject: Subject,
    references: References,
    *,
    batch_size: int = 8,
    memory: float = 512,
    repeats: int = 3,
    budget: float = 12.0,
) -> list[Cost]:
    """What ablation and each score of the subject's first circuit cost, timed between forward passes on one batch.

    The prompts are of medium length; `budget` is in seconds per cost.
    """
    ordered = sorted(subject.task.pairs, key=lambda pair: len(pair.clean))
    start = max(0, (len(ordered) - batch_size) // 2)
    pairs, circuit = ordered[start : start + batch_size], subject.members[0].circuit
    prompts, corrupted = [pair.clean for pair in pairs], [pair.corrupted or () for pair in pairs]
    longest = max(map(len, prompts))
    ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in prompts], device=model.device)
    visible = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in prompts], device=model.device)
    graph = FullGraph.of(model)
    mask = graph.mask(circuit)

    def forward() -> None:
        model.module(input_ids=ids, attention_mask=visible, use_cache=False, logits_to_keep=1)

    def ablate(kind: str) -> None:
        writes = Writes.of(run(model, corrupted)) if kind == CORRUPTED else references.writes
        circuit_logits(run(model, prompts, logits=True), writes, graph, mask)

    def score(name: str) -> None:
        means = references.means if name == "propagated_mean" else None
        Scorer(run(model, prompts, circuit), circuit, means)[name]

    works: dict[str, Callable[[], object]] = {name: partial(ablate, name) for name in (ABLATION, CORRUPTED)}
    works |= {name: partial(score, name) for name in SCORES}
    with torch.no_grad(), memory_limit(memory):
        forward()  # warm-up
        return [
            (name, interleaved(work, forward, model.device, repeats=repeats, budget=budget))
            for name, work in works.items()
        ]
