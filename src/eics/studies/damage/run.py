"""`eics.damage`: checks the options, plans the damage, runs all prompts, and summarizes the rows.

| file | holds |
|---|---|
| `settings.json` | model, circuit, options, what is damaged; `--resume` requires the same |
| `damage.jsonl` | one flat row per prompt and damage, including the undamaged runs (`kind` none) |
| `undamaged.jsonl` | full records of the undamaged prompts, as `eics score` writes them |
| `damage.parquet` | all rows again, once the run is complete |
| `summary.json`, `damage.md` | curves, AUROCs and ranks with intervals; tables and sentences |
| `dose-response.png`, `auroc.png` | figures |
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError, as_path
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.scoring.checks import check_whole
from eics.scoring.job import fingerprint_of
from eics.scoring.options import BOTH, CHOICES, Options, resolve
from eics.studies.damage.batches import Batches, DamageRows
from eics.studies.damage.plan import Plan, check_kinds, check_strengths, choose_nodes, choose_partners
from eics.studies.damage.summary import Summary, summarize
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.run_folder import RunFolder, digest
from eics.transformer.adapt import adapt
from eics.transformer.attention import head_writes
from eics.transformer.forward import run
from eics.transformer.interventions import Noise, Steer

_SIZED_ON = 32  # prompts on which the norms of all writes are measured to choose partners


@memory_explained
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
    overwrite: bool = False,
    ids: Sequence[str | int] | None = None,
    answer: int | None = None,
    batch_size: int = 8,
    tick: Callable[[int, int], None] = lambda *_: None,
    **options: Any,
) -> Summary:
    """Scores prompts while nodes of the circuit are damaged one at a time, beside equal damage outside the circuit.

    Args:
        model, circuit, prompts, ids, answer, batch_size: as in `eics.score`.
        kinds: some of `noise`, `ablate`, `patch` (from another prompt with as many tokens) and `steer`.
        strengths: relative to the norm of the node's own write; above 1 for noise and steering only.
        nodes: how many of the circuit's nodes, drawn with the seed; `all`; or their names.
        off_circuit: nodes outside the circuit that get equal damage, per damaged node.
        at: damaged token positions: `all`, `last`, or a list.
        vector: the steering vector, d numbers; a random direction by default.
        preset: `paper`, `well-posed` or `both`, from the same forward pass.
        out: a folder for rows, tables and figures. If it holds a run, `resume` continues that and `overwrite`
            replaces it.
        tick: called with the number of rows that were added and the total.
        **options: changes to the presets; `mode` is `fast` by default.
    """
    adapted, listed = adapt(model), as_prompts(prompts, ids)
    configurations = _configurations(preset, options)
    adapted.check_circuit(circuit)
    batch_size = check_whole("batch_size", batch_size, least=1)
    seed = next(iter(configurations.values())).seed
    chosen_kinds = check_kinds(kinds)
    chosen_strengths = check_strengths(strengths, chosen_kinds)
    damaged = choose_nodes(circuit, nodes, seed, {c.linearization for c in configurations.values()})
    Noise(damaged[0], at=at)  # refuses what cannot be a position
    if vector is not None:
        Steer(damaged[0], vector=_as_tensor(vector)).check_width(adapted.transformer.width)
    if not isinstance(off_circuit, int) or isinstance(off_circuit, bool) or off_circuit < 0:
        raise OptionError.of("off_circuit", "a whole number >= 0", off_circuit)
    tokens = _tokens(adapted, listed)
    norms = _write_norms(adapted, [t for t in tokens.values() if t][:_SIZED_ON], batch_size) if off_circuit else {}
    partners = choose_partners(damaged, circuit, norms, off_circuit)
    plan = Plan(chosen_kinds, chosen_strengths, partners, at if isinstance(at, str) else tuple(at), seed)
    settings = {
        "model": adapted.name,
        "fingerprint": fingerprint_of(adapted),
        "dtype": str(adapted.transformer.unembed.dtype).removeprefix("torch."),
        "circuit": circuit.label(),
        "prompts": digest([asdict(prompt) for prompt in listed]),
        "tokens": digest([tokens[prompt.id] for prompt in listed]),
        "configurations": {name: dict(**configuration) for name, configuration in configurations.items()},
        "answer": answer,
        "vector": None if vector is None else [float(number) for number in vector],
        **plan.to_record(),
    }
    folder = None if out is None else as_path(out, "output folder")
    with DamageRows(folder, settings, resume=resume, overwrite=overwrite) as rows:
        batches = Batches(adapted, circuit, configurations, plan, tokens, rows, answer, batch_size, settings["vector"])
        total = len(listed) * (1 + len(list(plan.damages())))
        tick(len(rows.rows), total)
        for start in range(0, len(listed), batch_size):
            for _ in batches.run(listed[start : start + batch_size]):
                tick(1, total)
        summary = summarize(rows.rows, settings)
        if rows.folder is not None:
            _write(rows.folder, summary)
    return summary


def _write(folder: RunFolder, summary: Summary) -> None:
    from eics.reporting.plots import save
    from eics.studies.damage.figures import auroc_figure, dose_figure

    folder.write_parquet("damage.parquet", [{**row, "id": json.dumps(row["id"])} for row in summary.rows])
    folder.write("summary.json", json.dumps(summary.to_record(), indent=1, allow_nan=False) + "\n")
    folder.write("damage.md", summary.to_markdown())
    for name, figure in (("dose-response.png", dose_figure), ("auroc.png", auroc_figure)):
        save(figure(summary), folder.path / name)


def _configurations(preset: str, options: dict[str, Any]) -> dict[str, Options]:
    if preset not in (*BOTH, "both"):
        raise OptionError.of("preset", f"one of {', '.join((*BOTH, 'both'))}", preset)
    names = list(BOTH) if preset == "both" else [preset]
    configurations = {name: resolve(name, {"mode": "fast"} | options) for name in names}
    if any(configuration.alpha == "auto" for configuration in configurations.values()):
        raise OptionError.of("alpha", "a number: damaged runs must not choose their own units", "auto")
    for name, refused in (("residual", "calibrated"), ("terms", "sheaf")):
        if any(configuration[name] == refused for configuration in configurations.values()):
            others = ", ".join(choice for choice in CHOICES[name] if choice != refused)
            raise OptionError.of(name, f"{others} when a circuit is damaged", refused)
    if any(configuration.readout == "tokens" for configuration in configurations.values()):
        raise OptionError.of("readout", "final_norm or logits when a circuit is damaged", "tokens")
    return configurations


def _as_tensor(vector: Any) -> Tensor:
    try:
        return torch.as_tensor(vector)
    except (TypeError, ValueError, RuntimeError):
        raise OptionError.of("vector", "a list of finite numbers", vector) from None


def _tokens(model: Model, prompts: Sequence[Prompt]) -> dict[str | int, list[int]]:
    """Each prompt's tokens; none if it cannot be scored, for which its row will give the reason."""
    if not prompts:
        raise OptionError.of("prompts", "a list of at least one prompt", [])
    tokens: dict[str | int, list[int]] = {}
    for prompt in prompts:
        try:
            tokens[prompt.id] = tokenize(model, prompt)
        except PromptError:
            tokens[prompt.id] = []
    return tokens


def _write_norms(model: Model, prompts: Sequence[Sequence[int]], batch_size: int) -> dict[str, float]:
    """Median norm of every node's write over prompts and positions: unlike a mean, no attention sink dominates it."""
    norms: dict[str, list[Tensor]] = {name: [] for name in FullGraph.of(model).writers}
    for start in range(0, len(prompts), batch_size):
        state = run(model, prompts[start : start + batch_size])
        valid = torch.arange(int(state.lengths.max()), device=state.lengths.device) < state.lengths.unsqueeze(1)

        def add(name: str, write: Tensor, valid: Tensor = valid) -> None:
            norms[name].append(torch.linalg.vector_norm(write, dim=2)[valid].cpu())

        for layer, block in enumerate(model.transformer.blocks):
            spec = block.attention
            heads = head_writes(spec, state.z[layer], list(range(spec.heads)), state.summed.get(layer))
            for head, write in enumerate(heads):
                add(f"a{layer}.h{head}", write)
            add(f"m{layer}", state.mlp_writes[layer])
        add("input", state.write("input"))
    return {name: float(torch.cat(parts).median()) if parts else 0.0 for name, parts in norms.items()}
