"""`damage`: every prompt undamaged once, then with each damage of the plan; rows are written as they are made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, as_prompts, is_single, tokenize
from eics.scoring.batch import score_prompts
from eics.scoring.options import PRESETS, Options, resolve
from eics.scoring.result import Score
from eics.studies.damage.files import Folder
from eics.studies.damage.measures import baselines, more_residuals, numbers_of, ranks_of
from eics.studies.damage.plan import (
    CIRCUIT,
    NONE,
    Damage,
    Plan,
    check_kinds,
    check_strengths,
    choose_nodes,
    choose_partners,
)
from eics.studies.damage.summary import Summary, summarize
from eics.studies.discovery.full_graph import FullGraph
from eics.transformer.adapt import adapt
from eics.transformer.attention import head_writes
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions import Ablate, Intervention, Noise, Patch, Steer

_SIZED_ON = 32  # prompts on which nodes' writes are sized before partners are chosen


def damage(
    model: Any,
    circuit: Circuit,
    prompts: Any,
    *,
    kinds: Sequence[str] = ("noise", "ablate", "patch", "steer"),
    strengths: Sequence[float] = (0.1, 0.3, 1.0, 3.0),
    nodes: int | str | Sequence[str] = 8,
    off_circuit: int = 1,
    at: str | Sequence[int] = "all",
    vector: Sequence[float] | None = None,
    preset: str = "both",
    out: str | Path | None = None,
    resume: bool = False,
    ids: Sequence[str | int] | None = None,
    answer: int | None = None,
    batch_size: int = 8,
    tick: Callable[[int, int], None] = lambda *_: None,
    **options: Any,
) -> Summary:
    """Scores prompts while nodes of the circuit, one at a time, and equal nodes outside it are damaged.

    Args:
        model, circuit, prompts, ids, answer, batch_size: as in `eics.score`.
        kinds: some of `noise`, `ablate`, `patch` (from another of the prompts, of as many tokens) and `steer`.
        strengths: relative to the size of a node's own write; above 1 for noise and steering vectors only.
        nodes: how many of the circuit's nodes, drawn by the seed; `all`; or their names.
        off_circuit: nodes outside the circuit for each of them, for equal damage.
        at: token positions that are damaged: `all`, `last`, or a list.
        vector: the steering vector, d numbers; a random direction if not given.
        preset: `paper`, `well-posed` or `both`, from the same forward pass.
        out: a folder for rows, tables and figures; `resume` goes on with what is there.
        tick: called with rows done and rows in all.
        **options: changes to the presets; `mode` is `fast` unless given.
    """
    adapted, listed = adapt(model), as_prompts([prompts] if is_single(prompts) else prompts, ids)
    configurations = _configurations(preset, options)
    adapted.check_circuit(circuit)
    seed = next(iter(configurations.values())).seed
    chosen = check_kinds(kinds)
    doses = check_strengths(strengths, chosen)
    damaged = choose_nodes(circuit, nodes, seed)
    Noise(damaged[0], at=at)  # refuses what cannot be a position
    if vector is not None:
        Steer(damaged[0], vector=torch.as_tensor(vector)).check_width(adapted.transformer.width)
    if not isinstance(off_circuit, int) or isinstance(off_circuit, bool) or off_circuit < 0:
        raise OptionError.of("off_circuit", "a whole number >= 0", off_circuit)
    tokens = _tokens(adapted, listed)
    norms = _sizes(adapted, [t for t in tokens.values() if t][:_SIZED_ON], batch_size) if off_circuit else {}
    partners = choose_partners(damaged, circuit, norms, off_circuit) if off_circuit else dict.fromkeys(damaged, ())
    plan = Plan(chosen, doses, partners, at if isinstance(at, str) else tuple(at), seed)
    settings = {
        "model": adapted.name,
        "circuit": circuit.label(),
        "configurations": {name: dict(**one) for name, one in configurations.items()},
        "answer": answer,
        "vector": None if vector is None else [float(number) for number in vector],
        **plan.to_record(),
    }
    folder = Folder.open(None if out is None else Path(out), settings, resume=resume)
    work = _Work(adapted, circuit, configurations, plan, tokens, folder, answer, batch_size, settings["vector"])
    total = len(listed) * (1 + len(list(plan.damages())))
    tick(len(folder.rows), total)
    for start in range(0, len(listed), batch_size):
        for _ in work.batch(listed[start : start + batch_size], listed):
            tick(1, total)
    found = summarize(folder.rows, settings)
    folder.finish(found)
    return found


def _configurations(preset: str, options: dict[str, Any]) -> dict[str, Options]:
    if preset not in (*PRESETS, "both"):
        raise OptionError.of("preset", f"one of {', '.join((*PRESETS, 'both'))}", preset)
    names = list(PRESETS) if preset == "both" else [preset]
    found = {name: resolve(name, {"mode": "fast"} | options) for name in names}
    if any(one.alpha == "auto" for one in found.values()):
        raise OptionError.of("alpha", "a number: damaged runs must not choose units of their own", "auto")
    if any(one.readout == "tokens" for one in found.values()):
        raise OptionError.of("readout", "final_norm or logits when a circuit is damaged", "tokens")
    return found


def _tokens(model: Model, prompts: Sequence[Prompt]) -> dict[str | int, list[int]]:
    """Each prompt's tokens; none where it cannot be scored, which its row will say."""
    if not prompts:
        raise OptionError.of("prompts", "a list of at least one prompt", [])
    found: dict[str | int, list[int]] = {}
    for prompt in prompts:
        if prompt.id in found:
            raise OptionError(f"Every prompt must have an id of its own. Got {prompt.id!r} twice.")
        try:
            found[prompt.id] = tokenize(model, prompt)
        except PromptError:
            found[prompt.id] = []
    return found


def _sizes(model: Model, prompts: Sequence[Sequence[int]], batch_size: int) -> dict[str, float]:
    """The median norm of every node's write over prompts and positions: no sink rules a median."""
    norms: dict[str, list[Tensor]] = {name: [] for name in FullGraph.of(model).writers}
    for start in range(0, len(prompts), batch_size):
        some = prompts[start : start + batch_size]
        state = run(model, some)
        valid = torch.arange(int(state.lengths.max()), device=state.lengths.device) < state.lengths.unsqueeze(1)
        for layer, block in enumerate(model.transformer.blocks):
            spec = block.attention
            heads = head_writes(spec, state.z[layer], list(range(spec.heads)), state.summed.get(layer))
            for head, write in enumerate(heads):
                norms[f"a{layer}.h{head}"].append(torch.linalg.vector_norm(write, dim=2)[valid].cpu())
            norms[f"m{layer}"].append(torch.linalg.vector_norm(state.mlp_writes[layer], dim=2)[valid].cpu())
        norms["input"].append(torch.linalg.vector_norm(state.write("input"), dim=2)[valid].cpu())
    return {name: float(torch.cat(some).median()) if some else 0.0 for name, some in norms.items()}


@dataclass
class _Calm:
    """What an undamaged prompt left for its damaged runs: results by configuration, logits, norms of writes."""

    scores: dict[str, Score] = field(default_factory=dict)
    logits: Tensor | None = None
    norms: dict[str, Tensor] = field(default_factory=dict)


Item = tuple[Prompt, Damage]


@dataclass
class _Work:
    model: Model
    circuit: Circuit
    configurations: Mapping[str, Options]
    plan: Plan
    tokens: Mapping[str | int, list[int]]
    folder: Folder
    answer: int | None
    batch_size: int
    vector: list[float] | None

    def batch(self, prompts: Sequence[Prompt], everyone: Sequence[Prompt]) -> Iterator[dict[str, Any]]:
        """All rows of some prompts that are not there yet."""
        missing = [
            (prompt, damage)
            for damage in self.plan.damages()
            for prompt in prompts
            if not self.folder.has(prompt.id, damage.key)
        ]
        todo = [prompt for prompt in prompts if not self.folder.has(prompt.id, _UNDAMAGED.key)]
        needed = [p for p in prompts if p in todo or any(prompt is p for prompt, _ in missing)]
        calm: dict[str | int, _Calm] = {prompt.id: _Calm() for prompt in needed}
        for prompt, scores in zip(needed, self.score(needed, calm), strict=True):
            calm[prompt.id].scores = scores
            if prompt in todo:
                row = self.row(prompt, _UNDAMAGED, scores, None)
                yield self.folder.add(row, list(scores.values()))
        donors = self.donors(needed, everyone) if "patch" in self.plan.kinds else {}
        yield from self.damaged(missing, calm, donors)

    def damaged(
        self, items: Sequence[Item], calm: Mapping[str | int, _Calm], donors: Mapping[tuple[str | int, str], Tensor]
    ) -> Iterator[dict[str, Any]]:
        """Runs of prompts and damages, as many in a pass as go."""
        able: list[Item] = []
        for prompt, damage in items:
            reason = self.cannot(prompt, damage, calm[prompt.id], donors)
            if reason is None:
                able.append((prompt, damage))
            else:
                yield self.folder.add(self.failed(prompt, damage, reason))
        for start in range(0, len(able), self.batch_size):
            some = able[start : start + self.batch_size]
            runs = [Prompt(number, tokens=tuple(self.tokens[p.id])) for number, (p, _) in enumerate(some)]
            done = {
                number: [self.intervention(p, damage, calm[p.id], donors)] for number, (p, damage) in enumerate(some)
            }
            own: dict[str | int, _Calm] = {number: calm[p.id] for number, (p, _) in enumerate(some)}
            found = self.score(runs, own, done)
            for (prompt, damage), scores in zip(some, found, strict=True):
                yield self.folder.add(self.row(prompt, damage, scores, calm[prompt.id].scores))

    def score(
        self, prompts: Sequence[Prompt], calm: Mapping[str | int, _Calm], interventions: Any = None
    ) -> Iterator[dict[str, Score]]:
        """Results by configuration for each prompt; an undamaged run leaves its logits and norms in `calm`."""
        keep = interventions is None

        def also(
            state: ForwardState, some: Sequence[Prompt], linearized: Any, options: Options
        ) -> list[dict[str, Any]]:
            if keep:
                self.keep(state, some, calm)
            passes = baselines(state, [calm[prompt.id].logits for prompt in some])
            more = more_residuals(linearized, options)
            return [one | {"pass": numbers} for one, numbers in zip(more, passes, strict=True)]

        found = score_prompts(
            self.model,
            self.circuit,
            prompts,
            list(self.configurations.values()),
            answer=self.answer,
            batch_size=self.batch_size,
            interventions=interventions,
            extra_diagnostics=also,
        )
        for scores in found:
            yield dict(zip(self.configurations, scores, strict=True))

    def keep(self, state: ForwardState, prompts: Sequence[Prompt], calm: Mapping[str | int, _Calm]) -> None:
        assert state.logits is not None
        writes = {name: torch.linalg.vector_norm(state.write(name), dim=2) for name in self.plan.partners}
        for row, prompt in enumerate(prompts):
            length = int(state.lengths[row])
            calm[prompt.id].logits = state.logits[row]
            calm[prompt.id].norms = {name: norms[row, :length] for name, norms in writes.items()}

    def donors(self, prompts: Sequence[Prompt], everyone: Sequence[Prompt]) -> dict[tuple[str | int, str], Tensor]:
        """What every node that is ever damaged wrote on another prompt, by prompt and node; one pass."""
        others = {prompt.id: self.other(prompt, everyone) for prompt in prompts}
        lists = [tokens for tokens in others.values() if tokens is not None]
        if not lists:
            return {}
        state = run(self.model, lists, nodes=self.plan.nodes)
        found = {}
        for row, name in enumerate(id for id, tokens in others.items() if tokens is not None):
            for node in self.plan.nodes:
                found[name, node] = state.write(node)[row, : len(lists[row])]
        return found

    def other(self, prompt: Prompt, everyone: Sequence[Prompt]) -> list[int] | None:
        """Another prompt's tokens, drawn by the seed from those of this length (any, where only the last is taken)."""
        own = self.tokens[prompt.id]
        able = [
            tokens
            for tokens in (self.tokens[one.id] for one in everyone)
            if tokens and tokens != own and (self.plan.at == "last" or len(tokens) == len(own))
        ]
        place = next(number for number, one in enumerate(everyone) if one.id == prompt.id)
        draw = np.random.default_rng([self.plan.seed, place])
        return able[int(draw.integers(len(able)))] if able else None

    def cannot(
        self, prompt: Prompt, damage: Damage, calm: _Calm, donors: Mapping[tuple[str | int, str], Tensor]
    ) -> str | None:
        """Why this prompt cannot be damaged so; None where it can."""
        failures = [score.reason for score in calm.scores.values() if score.status == "failed"]
        if failures:
            return f"undamaged already: {failures[0]}"
        if damage.kind == "patch" and (prompt.id, damage.node) not in donors:
            length = len(self.tokens[prompt.id])
            return f"no other prompt has its {length} tokens to patch from: add one, or damage the last position only"
        try:
            self.intervention(prompt, damage, calm, donors).check_length(len(self.tokens[prompt.id]))
        except PromptError as error:
            return str(error)
        return None

    def intervention(
        self, prompt: Prompt, damage: Damage, calm: _Calm, donors: Mapping[tuple[str | int, str], Tensor]
    ) -> Intervention:
        """The damage as it is done to this prompt."""
        node, strength, at, seed = damage.node, damage.strength, self.plan.at, self.plan.seed
        norms = None if damage.like is None else calm.norms[damage.like]
        if damage.kind == "noise":
            return Noise(node, strength, at, seed=seed, like=damage.like, norms=norms)
        if damage.kind == "steer":
            vector = None if self.vector is None else torch.tensor(self.vector, dtype=torch.float64)
            return Steer(node, strength, at, seed=seed, like=damage.like, norms=norms, vector=vector)
        if damage.kind == "ablate":
            return Ablate(node, strength, at)
        return Patch(node, strength, at, write=donors[prompt.id, node])

    def row(
        self, prompt: Prompt, damage: Damage, scores: Mapping[str, Score], calm: Mapping[str, Score] | None
    ) -> dict[str, Any]:
        """One flat row: what was done, and what came of it."""
        failures = [score.reason for score in scores.values() if score.status == "failed"]
        if failures:
            return self.failed(prompt, damage, str(failures[0]))
        (said,) = next(iter(scores.values())).interventions or [{}]
        sizes = {name: said.get(name) for name in ("write_norm", "change_norm")}
        found = self.about(prompt, damage) | sizes | numbers_of(scores)
        if calm is not None and damage.place == CIRCUIT:
            found |= ranks_of(damage.node, scores, calm)
        return found

    def failed(self, prompt: Prompt, damage: Damage, reason: str) -> dict[str, Any]:
        return self.about(prompt, damage) | {"status": "failed", "reason": reason}

    def about(self, prompt: Prompt, damage: Damage) -> dict[str, Any]:
        return {"id": prompt.id, **vars(damage), "status": "ok", "reason": None}


_UNDAMAGED = Damage(NONE, 0.0, "", NONE)
