"""One forward pass, and what it left behind.

The model's own code runs, with its own attention implementation and whatever hooks the user registered on it. Our hooks
come last and only record, so a modified write is recorded as it was written, and every node's read as it was read.
Interventions (`interventions/`) act in between: after the user's hooks, before ours.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from eics.circuits.graph import Circuit, Kind, Node
from eics.linalg.host_device import to_device
from eics.models.base import Model
from eics.transformer.attention import Rotation, head_writes
from eics.transformer.interventions.hooks import Applied, Rows, in_force, parents_of
from eics.transformer.next_token import answer_logits, answer_only, likeliest_tokens
from eics.transformer.write_sites import GradientTape


@dataclass
class ForwardState:
    """Tensors of a padded batch, in the working dtype; only what the circuit needs is recorded.

    Attributes:
        lengths: tokens of each prompt, (B,). Padding is on the right and masked everywhere.
        longest, padded: the largest length, and whether any prompt is shorter, known on the host.
        input: residual stream before layer 0, (B, T, d).
        attention_reads, mlp_reads: by layer, what heads and MLP read.
        z: by layer, the heads' outputs side by side, (B, T, H*e). summed: what the output projection made of them.
        mlp_writes: by layer. mlp_hidden: what its activation takes, where that was recorded.
        rotations: by layer, cos and sin.
        final_read, final: before and after the final norm. logits: at each prompt's answer position, (B, V), if wanted.
        likeliest: the likeliest next tokens there and their probabilities, (B, k) each, if wanted.
        forward_passes: how often the model ran.
        applied: the interventions that were in force, with what they added to heads' writes.
    """

    model: Model
    lengths: Tensor
    answer: Tensor
    longest: int
    padded: bool
    input: Tensor | None = None
    attention_reads: dict[int, Tensor] = field(default_factory=dict)
    mlp_reads: dict[int, Tensor] = field(default_factory=dict)
    z: dict[int, Tensor] = field(default_factory=dict)
    summed: dict[int, Tensor] = field(default_factory=dict)
    mlp_writes: dict[int, Tensor] = field(default_factory=dict)
    mlp_hidden: dict[int, Tensor] = field(default_factory=dict)
    rotations: dict[int, Rotation] = field(default_factory=dict)
    final_read: Tensor | None = None
    final: Tensor | None = None
    logits: Tensor | None = None
    likeliest: tuple[Tensor, Tensor] | None = None
    forward_passes: int = 0
    applied: Applied = field(default_factory=Applied)

    def write(self, name: str) -> Tensor:
        """What a node wrote to the residual stream, (B, T, d), if it was recorded."""
        node = Node.parse(name)
        if node.kind is Kind.INPUT:
            assert self.input is not None
            return self.input
        assert node.layer is not None
        if node.kind is Kind.MLP:
            return self.mlp_writes[node.layer]
        assert node.head is not None
        return self.head_writes(node.layer, [node.head])[0]

    def head_writes(self, layer: int, heads: Sequence[int]) -> Tensor:
        """What heads of a layer wrote, interventions included: (H, B, T, d)."""
        spec = self.model.transformer.blocks[layer].attention
        writes = head_writes(spec, self.z[layer], heads, self.summed.get(layer))
        for head, change in self.applied.heads.get(layer, {}).items():
            if head in heads:
                writes[heads.index(head)] += change
        return writes

    def at_answer(self) -> "ForwardState":
        """The same pass seen at each prompt's answer position alone: prompts of one token, without rotations."""
        rows = torch.arange(len(self.answer), device=self.answer.device)
        seen = self._seen(lambda tensor: tensor[rows, self.answer].unsqueeze(1), {})
        return replace(
            seen, lengths=torch.ones_like(self.lengths), answer=torch.zeros_like(self.answer), longest=1, padded=False
        )

    def stretch(self, start: int, stop: int) -> "ForwardState":
        """The same pass seen at the positions from `start` to before `stop`, padding included; `answer` may lie outside
        of them."""
        stop = min(stop, self.longest)
        rotations = {i: (cos[:, start:stop], sin[:, start:stop]) for i, (cos, sin) in self.rotations.items()}
        seen = self._seen(lambda tensor: tensor[:, start:stop], rotations)
        lengths = (self.lengths - start).clamp(min=0, max=stop - start)
        return replace(seen, lengths=lengths, answer=self.answer - start, longest=stop - start, padded=self.padded)

    def _seen(self, pick: Callable[[Tensor], Tensor], rotations: dict[int, Rotation]) -> "ForwardState":
        """The pass at the positions that `pick` takes of a tensor (B, T, ...)."""
        stores = ("attention_reads", "mlp_reads", "mlp_hidden", "z", "summed", "mlp_writes")
        picked: dict[str, Any] = {name: {i: pick(t) for i, t in getattr(self, name).items()} for name in stores}
        for name in ("input", "final_read", "final"):
            tensor = getattr(self, name)
            picked[name] = None if tensor is None else pick(tensor)
        heads = {layer: {h: pick(change) for h, change in own.items()} for layer, own in self.applied.heads.items()}
        return replace(
            self,
            **picked,
            rotations=rotations,
            likeliest=None,
            forward_passes=0,
            applied=Applied(heads, self.applied.records),
        )

    @property
    def valid(self) -> Tensor:
        """True on a prompt's own positions, False on padding: (B, T)."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths.unsqueeze(1)

    @property
    def mask(self) -> Tensor | None:
        """`valid` in the working dtype; None if nothing is padded."""
        return self.valid.to(self.model.dtype) if self.padded else None


def run(
    model: Model,
    prompts: Sequence[Sequence[int]],
    circuit: Circuit | None = None,
    *,
    answer: Sequence[int] | None = None,
    logits: bool = False,
    likeliest: int = 0,
    embeddings: Tensor | None = None,
    nodes: Iterable[str] | None = None,
    interventions: Rows | None = None,
    tape: GradientTape | None = None,
) -> ForwardState:
    """Runs the model once on a batch of token lists and records what the circuit's nodes need (None: everything).

    `likeliest` is how many of the likeliest next tokens to keep. `embeddings`, (B, T, d), replace what enters block 0.
    `nodes` are further nodes to record. `interventions`, a list for each prompt, change what nodes write or read. A
    `tape` can then give gradients of the logits. The model's weights are those of this moment (`Model.refresh`).
    """
    read_weights(model)
    sizes = [len(tokens) for tokens in prompts]
    lengths, longest = to_device(sizes, model.device), max(sizes)
    ids = to_device([[*tokens, *[0] * (longest - len(tokens))] for tokens in prompts], model.device)
    at = lengths - 1 if answer is None else to_device(list(answer), model.device)
    state = ForwardState(model, lengths, at, longest, min(sizes) < longest)
    # Attention is causal and padding is on the right, so no token of a prompt ever sees it. Masked, it would leave a
    # sliding window that holds nothing else without a softmax, and its nan would spread to the prompt.
    attention_mask = torch.ones_like(ids)
    unembedding = answer_only(model.module, at) if logits or likeliest else nullcontext()
    keep = 0 if logits or likeliest else 1  # 0: all positions, of which `answer_only` leaves one
    further = (*(nodes or ()), *parents_of(interventions))
    names = None if circuit is None and nodes is None else [*(circuit.order if circuit else ()), *further]
    damaging = in_force(model, prompts, interventions, state.applied, state.write)
    with (
        _injected(model, embeddings),
        damaging,
        recording(state, names, logits),
        unembedding,
        evaluating(model.module),
        torch.no_grad() if tape is None else tape.recording(),
    ):
        output = model.module(input_ids=ids, attention_mask=attention_mask, use_cache=False, logits_to_keep=keep)
        if tape is not None:
            tape.logits = answer_logits(output.logits, at)
    if logits or likeliest:
        at_answer = answer_logits(output.logits.detach(), at).to(model.dtype)
        state.logits = at_answer if logits else None
        state.likeliest = likeliest_tokens(at_answer, likeliest) if likeliest else None
    return state


def read_weights(model: Model) -> None:
    """Reads weights that have changed; where a module was replaced, the adapter has to prove itself again."""
    model.refresh()
    if model.unproven is not None:
        from eics.transformer.check import check_replaced

        check_replaced(model)


@contextmanager
def _injected(model: Model, embeddings: Tensor | None) -> Iterator[None]:
    """Replaces the embeddings that enter block 0."""
    if embeddings is None:
        yield
        return

    def hook(_: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        if arguments:
            return (embeddings.to(arguments[0].dtype), *arguments[1:]), keywords
        return arguments, {**keywords, "hidden_states": embeddings.to(keywords["hidden_states"].dtype)}

    handle = model.adapter.layers(model.module)[0].register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switches dropout off for the pass."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


@contextmanager
def recording(state: ForwardState, names: Sequence[str] | None, logits: bool) -> Iterator[None]:
    """Registers recording hooks after all others, and removes them whatever happens."""
    handles: list[Any] = []
    try:
        _register(state, _needed(state.model, names, logits), handles)
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class _Needed:
    heads: frozenset[int]
    mlps: frozenset[int]
    input: bool
    final: bool


def _needed(model: Model, names: Sequence[str] | None, logits: bool) -> _Needed:
    every = frozenset(range(len(model.transformer.blocks)))
    if names is None:
        return _Needed(every, every, input=True, final=True)
    nodes = [Node.parse(name) for name in names]
    layers = {kind: frozenset(n.layer for n in nodes if n.kind is kind and n.layer is not None) for kind in Kind}
    kinds = {node.kind for node in nodes}
    return _Needed(layers[Kind.HEAD], layers[Kind.MLP], Kind.INPUT in kinds, logits or Kind.LOGITS in kinds)


def _register(state: ForwardState, needed: _Needed, handles: list[Any]) -> None:
    adapter, module = state.model.adapter, state.model.module
    layers = adapter.layers(module)

    def count(*_: Any) -> None:
        state.forward_passes += 1

    handles.append(module.register_forward_hook(count))
    if needed.input:
        _on_input(handles, layers[0], lambda x: setattr(state, "input", x), state)
    for index, layer in enumerate(layers):
        sites = adapter.sites(layer)
        if index in needed.heads:
            _on_input(handles, sites.attention_norm, _store(state.attention_reads, index), state)
            _on_input(handles, sites.out_proj, _store(state.z, index), state)
            _on_rotation(handles, sites.attention, state, index)
            if state.model.transformer.blocks[index].attention.post_norm is not None:
                _on_output(handles, sites.out_proj, _store(state.summed, index), state)
        if index in needed.mlps:
            _on_input(handles, sites.mlp_norm, _store(state.mlp_reads, index), state)
            _on_output(handles, sites.mlp_write, _store(state.mlp_writes, index), state)
    if needed.final:
        final = adapter.final_norm(module)[0]
        _on_input(handles, final, lambda x: setattr(state, "final_read", x), state)
        _on_output(handles, final, lambda x: setattr(state, "final", x), state)


def _store(tensors: dict[int, Tensor], index: int) -> Callable[[Tensor], None]:
    return lambda tensor: tensors.__setitem__(index, tensor)


def _on_input(handles: list[Any], module: nn.Module, keep: Callable[[Tensor], None], state: ForwardState) -> None:
    def hook(_: Any, arguments: Any, keywords: Any) -> None:
        tensor = arguments[0] if arguments else keywords["hidden_states"]
        keep(tensor.detach().to(state.model.dtype))

    handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))


def _on_output(handles: list[Any], module: nn.Module, keep: Callable[[Tensor], None], state: ForwardState) -> None:
    def hook(_: Any, __: Any, output: Any) -> None:
        keep((output[0] if isinstance(output, tuple) else output).detach().to(state.model.dtype))

    handles.append(module.register_forward_hook(hook))


def _on_rotation(handles: list[Any], attention: nn.Module, state: ForwardState, index: int) -> None:
    def hook(_: Any, __: Any, keywords: Any) -> None:
        embeddings = keywords.get("position_embeddings")
        if embeddings is not None:
            state.rotations[index] = tuple(embeddings)  # the same tensors in every layer, recognised by identity

    handles.append(attention.register_forward_pre_hook(hook, with_kwargs=True))
