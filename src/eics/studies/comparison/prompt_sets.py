"""Two sets of prompts on one model: at which nodes the difference enters, and which nodes only pass it on.

    1  check        both sets, and the calibration if one is given
    2  calibrate    without one, on A; of A only what taught nothing is compared
    3  run          every prompt once: z_v and the whitened write of each judged node (`set_passes.py`)
    4  choose       the prompts to compare: none that failed, none that taught the calibration
    5  test         shifts, p, q and roles (`set_statistics.py`)

| file of a run | holds |
|---|---|
| `settings.json` | model, circuit, sets and calibration; `--resume` requires the same |
| `rows.jsonl` | the numbers of each prompt, as they are made |
| `calibration.safetensors` | the calibration, if it was fitted on A |
| `compare.json` | what was found |
"""

import json
from collections.abc import Sequence
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import as_path
from eics.models.out_of_memory import memory_explained
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.fit import calibrate
from eics.scoring.job import fingerprint_of
from eics.studies.comparison.set_compared import Compared, prompts_to_run, to_compare
from eics.studies.comparison.set_passes import Passes
from eics.studies.comparison.set_result import SetComparison, SetSummary, node_shifts
from eics.studies.comparison.set_rows import DOCUMENT, SetRows, Tick
from eics.studies.comparison.set_sentences import Terms, set_sentences
from eics.studies.comparison.set_statistics import Shifts, shifts, standardised
from eics.studies.comparison.set_task import Comparison, checked


@memory_explained
def compare_prompt_sets(
    model: Any,
    circuit: Circuit,
    prompts_a: Any,
    prompts_b: Any,
    *,
    calibration: Any = None,
    group_a: Any = None,
    group_b: Any = None,
    names: Sequence[str] = ("A", "B"),
    paired: bool | None = None,
    level: float = 0.05,
    seed: int = 0,
    batch_size: int = 8,
    resamples: int = 1000,
    memory: float | None = None,
    interventions: Any = None,
    allow_changed_weights: bool = False,
    out: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    tick: Tick = lambda _: None,
) -> SetComparison:
    """Compares what a circuit does on two sets of prompts, node by node.

    Args:
        model, circuit, batch_size, memory: as `eics.score` takes them.
        prompts_a, prompts_b: two lists of prompts, as `eics.score` takes them.
        calibration: an `eics.Calibration` with a learned sheaf, or its file; then each set needs 20 prompts. Without
            one, A needs 100: a calibration is fitted on it, and of A only what taught nothing is compared.
        group_a, group_b: for each prompt what it belongs to (its subject, its template, ...); groups are then what is
            tested. Without them, equal token lists are a group.
        names: what the sets are called.
        paired: whether prompts of equal ids are pairs. By default they are if both sets have the same ids, and these
            are texts that are no line numbers.
        level: the rate of false discoveries below which a node gets a role.
        seed: of the bootstrap, and of the calibration that is fitted on A.
        resamples: of the bootstrap.
        interventions: interventions on the prompts of B, as `eics.score` takes them.
        allow_changed_weights: whether to go on if the model's weights have changed since the calibration.
        out: a folder for the numbers of each prompt and what was found. If it holds a run, `resume` continues that and
            `overwrite` replaces it.
        tick: called with the number of prompts finished since the last call, of all that both sets have.
    """
    task = checked(
        model,
        circuit,
        (prompts_a, prompts_b),
        (group_a, group_b),
        names,
        calibration=calibration,
        level=level,
        seed=seed,
        memory=memory,
        paired=paired,
        batch_size=batch_size,
        resamples=resamples,
        interventions=interventions,
        allow_changed_weights=allow_changed_weights,
    )
    folder = None if out is None else as_path(out, "output folder")
    with SetRows(folder, task.settings, resume=resume, overwrite=overwrite) as rows:
        found = _compare(task, rows, tick)
        if rows.folder is not None:
            document = json.dumps(found.to_record(), allow_nan=False, ensure_ascii=False)
            rows.folder.write(DOCUMENT, document + "\n")
    return found


def _compare(task: Comparison, rows: SetRows, tick: Tick) -> SetComparison:
    """Steps 2 to 5."""
    calibration = task.calibration or _fitted(task, rows, tick)
    assert calibration.learned is not None
    to_run = prompts_to_run(task, calibration.learned)
    for one, prompts, given in zip((task.a, task.b), to_run, (None, task.interventions), strict=True):
        passes = Passes.of(task.model, task.circuit, calibration, task.options, one.prompts, given)
        if task.fits and one is task.a:  # all its prompts were counted when they fitted
            rows.run(one.key, passes, prompts, task.batch_size, lambda _: None)
        else:
            rows.run(one.key, passes, prompts, task.batch_size, tick)
            tick(len(one.prompts) - len(prompts))
    return _tested(task, calibration, *to_compare(task, rows, calibration.learned))


def _fitted(task: Comparison, rows: SetRows, tick: Tick) -> Calibration:
    """The calibration that is fitted on A."""
    ticks = [0]

    def counted(count: int) -> None:
        ticks.append(count)
        tick(count)

    def fit(failures: dict[str | int, str]) -> Calibration:
        return calibrate(
            task.model,
            task.circuit,
            task.a.prompts,
            preset=task.options,
            group=task.a.groups,
            batch_size=task.batch_size,
            tick=counted,
            failures=failures,
        )

    calibration = rows.fitted(fit)
    tick(len(task.a.prompts) - sum(ticks))
    return calibration


def _tested(task: Comparison, calibration: Calibration, a: Compared, b: Compared) -> SetComparison:
    """Step 5."""
    learned = calibration.learned
    assert learned is not None
    sheaf, level = learned.sheaf, task.options.level
    r2 = tuple(sheaf.regressions.r2.tolist())
    nodes = node_shifts(sheaf.layout.judged, r2, sheaf.reasons, *_shifts(task, a, b), level)
    summaries = {one.given.key: _summary(one) for one in (a, b)}
    terms = Terms(
        level,
        task.paired,
        shared=len(task.a.distinct & task.b.distinct),
        fitted=learned.fitted if task.fits else None,
        breadth=learned.breadth,
    )
    sentences = tuple(set_sentences(nodes, (a, b), terms))
    judged = [name for name in sheaf.layout.judged if name not in sheaf.reasons]
    prompts = tuple(row for one in (a, b) for row in _prompts(one, judged))
    return SetComparison(nodes, sentences, _about(task), summaries, prompts)


def _shifts(task: Comparison, a: Compared, b: Compared) -> tuple[Shifts, Shifts]:
    """Of z_v, and of the whitened write in standard deviations of A."""
    how: dict[str, Any] = {"paired": task.paired, "resamples": task.resamples, "seed": task.options.seed}
    writes = (one.sample.with_values(standardised(one.write, a.write)) for one in (a, b))
    return shifts(a.sample, b.sample, **how), shifts(*writes, **how)


def _summary(one: Compared) -> SetSummary:
    given = one.given
    return SetSummary(given.name, len(given.prompts), len(one.ids), one.sample.units, one.failures)


def _about(task: Comparison) -> dict[str, Any]:
    return {
        "model": task.model.name,
        "fingerprint": fingerprint_of(task.model),
        "circuit": task.circuit.label(),
        "edges": [str(edge) for edge in task.circuit.edges],
        "level": task.options.level,
        "seed": task.options.seed,
        "calibration": None if task.calibration is None else task.calibration.sha256,
        "paired": task.paired,
        "grouped": task.a.groups is not None,
    }


def _prompts(one: Compared, judged: Sequence[str]) -> list[dict[str, Any]]:
    """The compared prompts of a set, in their order, each with its z by node."""
    given = {prompt.id: place for place, prompt in enumerate(one.given.prompts)}
    groups = one.given.groups
    return [
        {
            "set": one.given.key,
            "id": id,
            "prompt": one.given.prompts[given[id]].metadata["prompt"],
            "group": None if groups is None else groups[given[id]],
            "z": dict(zip(judged, z.tolist(), strict=True)),
        }
        for id, z in zip(one.ids, one.z, strict=True)
    ]
