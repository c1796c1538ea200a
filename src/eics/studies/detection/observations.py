"""What runs leave behind at the answer position: samples of the circuit's nodes, and what baselines look at.

All of it is kept, so that one set of runs can be judged in many ways and against many references.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Kind, Node
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.batching import batch_indices
from eics.scoring.calibration.sheaf.samples import Layout, Samples, sample
from eics.transformer.attention import head_writes
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions.donors import bind, with_writes
from eics.transformer.interventions.kinds import Intervention
from eics.transformer.linearize import Linearizer, TransformerRun
from eics.transformer.mlp import MLPMap

Rows = Sequence[Sequence[Intervention]]


@dataclass(frozen=True)
class Observations:
    """R runs, on the CPU.

    Attributes:
        samples: of the circuit's nodes.
        layers: what each layer added to the residual stream, (R, layers, d).
        recomputed: how far each judged node's write is from its own function of what it read, over the size of the
            write, (R, judged).
        log_probabilities: of the next token, (R, V) in half precision; empty where they were not asked for.
        predicted, probability: the likeliest next token and its probability, (R,).
    """

    samples: Samples
    layers: Tensor
    recomputed: Tensor
    log_probabilities: Tensor
    predicted: Tensor
    probability: Tensor

    def __len__(self) -> int:
        return len(self.predicted)

    def rows(self, kept: Tensor) -> "Observations":
        """Some of the runs."""
        parts = (self.layers, self.recomputed, self.log_probabilities, self.predicted, self.probability)
        return Observations(self.samples.rows(kept), *(part[kept] for part in parts))

    @staticmethod
    def cat(parts: "Sequence[Observations]") -> "Observations":
        """The runs of one after those of another."""
        names = ("layers", "recomputed", "log_probabilities", "predicted", "probability")
        samples = Samples.cat([part.samples for part in parts])
        samples = replace(samples, prompt=torch.arange(samples.writes.shape[1]))
        return Observations(samples, *(torch.cat([getattr(part, name) for part in parts]) for name in names))


def layout_of(model: Model, circuit: Circuit) -> Layout:
    """The circuit's nodes as rows."""
    spec = model.transformer
    return Layout.of(circuit, spec.width, parallel=spec.blocks[0].parallel)


def observe_batch(
    model: Model,
    circuit: Circuit,
    token_lists: Sequence[Sequence[int]],
    interventions: Rows | None = None,
    *,
    distributions: bool = False,
) -> Observations:
    """One pass over a batch, with a list of interventions for each prompt."""
    rows = None
    if interventions is not None:
        rows, _ = with_writes(model, [bind(model, circuit, row) for row in interventions])
    with torch.no_grad():
        state = run(model, token_lists, None, logits=True, interventions=rows)
        samples = sample(TransformerRun(state, circuit), layout_of(model, circuit), "answer").to("cpu", torch.float32)
        assert state.logits is not None
        log_probabilities = torch.log_softmax(state.logits.float(), dim=1).cpu()
        best = log_probabilities.max(dim=1)
        return Observations(
            samples,
            _layer_changes(state).float().cpu(),
            _recomputed(state, circuit).float().cpu(),
            log_probabilities.half() if distributions else log_probabilities[:, :0],
            best.indices,
            best.values.exp(),
        )


def observe(
    model: Model,
    circuit: Circuit,
    token_lists: Sequence[Sequence[int]],
    *,
    batch_size: int = 16,
    distributions: bool = False,
    tick: Callable[[int], None] = lambda _: None,
) -> Observations:
    """Undamaged runs, in the order of the prompts; those of similar length share a pass."""
    prompts = [Prompt(index, tokens=tuple(tokens)) for index, tokens in enumerate(token_lists)]
    order: list[int] = []
    parts = []
    for indices in batch_indices(prompts, batch_size, sort=True):
        parts.append(
            observe_batch(model, circuit, [token_lists[index] for index in indices], distributions=distributions)
        )
        order += indices
        tick(len(indices))
    places = torch.empty(len(order), dtype=torch.long)
    places[torch.tensor(order)] = torch.arange(len(order))
    return Observations.cat(parts).rows(places)


def divergence(clean: Tensor, damaged: Tensor) -> Tensor:
    """KL(clean || damaged) of next-token log-probabilities, (R, V), in nats."""
    first, second = clean.float(), damaged.float()
    kl: Tensor = (first.exp() * (first - second)).sum(dim=1)
    return kl.clamp(min=0)


def _layer_changes(state: ForwardState) -> Tensor:
    """What each layer added at the answer position, (B, layers, d)."""
    prompts = torch.arange(len(state.answer), device=state.answer.device)
    assert state.final_read is not None
    streams = [state.attention_reads[layer] for layer in sorted(state.attention_reads)] + [state.final_read]
    at_answer = torch.stack([stream[prompts, state.answer] for stream in streams], dim=1)
    return at_answer[:, 1:] - at_answer[:, :-1]


def _recomputed(state: ForwardState, circuit: Circuit) -> Tensor:
    """||f_v(x_v) - a_v|| / ||a_v|| of every judged node, (B, judged); the read-out is not recomputed."""
    here = Linearizer(TransformerRun(state.at_answer(), circuit), frozen=True)
    columns = []
    for node in map(Node.parse, circuit.inner):
        write = here.written(node).squeeze(1)
        own = write if node.kind is Kind.LOGITS else _function(here, node)
        size = torch.linalg.vector_norm(write, dim=1).clamp(min=1e-30)
        columns.append(torch.linalg.vector_norm(own - write, dim=1) / size)
    return torch.stack(columns, dim=1)


def _function(here: Linearizer, node: Node) -> Tensor:
    """f_v(x_v) at the answer position, (B, d): for a head what its own z writes."""
    if node.kind is Kind.MLP:
        operator = here.map(node, None)
        assert isinstance(operator, MLPMap)
        return operator.function.squeeze(1)
    assert node.layer is not None
    assert node.head is not None
    state, spec = here.state, here.spec.blocks[node.layer].attention
    own: Tensor = head_writes(spec, state.z[node.layer], [node.head], state.summed.get(node.layer))[0]
    return own.squeeze(1)
