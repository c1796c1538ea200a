"""What ablation and each score cost in plain forward passes, timed between such passes on one batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.studies.bench.measure import Spread, interleaved
from eics.studies.discovery.ablate import circuit_logits
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.reference import Writes
from eics.studies.tracking.measure import References, Subject
from eics.studies.tracking.scores import SCORES, Scorer
from eics.transformer.forward import run

ABLATION = "ablation, mean or zero"
CORRUPTED = "ablation, corrupted"


@dataclass(frozen=True)
class Cost:
    """The cost in forward-equivalents, including the forward pass that it needs itself."""

    name: str
    ratio: Spread
    seconds: float
    forward: float


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
    """Costs for the subject's first circuit on prompts of medium length; `budget` is in seconds per cost."""
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
    measured = []
    with torch.no_grad(), memory_limit(memory):
        forward()  # warm-up
        for name, work in works.items():
            timing = interleaved(work, forward, model.device, repeats=repeats, budget=budget)
            measured.append(Cost(name, timing.ratio, timing.seconds.median, timing.forward.median))
    return measured
