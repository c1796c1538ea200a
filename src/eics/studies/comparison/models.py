"""Two models of one architecture on the same prompts: which parts made the change, and what it does.

| file | holds |
|---|---|
| `settings.json` | both models, circuit, prompts, options; `--resume` requires the same |
| `rows.jsonl` | one row for each prompt, as they are made |
| `restored.jsonl` | one row for each prompt and part that was restored |
| `compare.json` | the comparison |
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.models.prompts import as_prompts
from eics.scoring.calibration.task import check_groups
from eics.scoring.checks import check_flag, check_whole
from eics.studies.comparison.attribution import SQUARES
from eics.studies.comparison.batches import Item, Outcome, Step, as_batches, touched, with_samples
from eics.studies.comparison.drivers import Driver
from eics.studies.comparison.model_pair import About, Pair
from eics.studies.comparison.model_rows import ModelRows, open_rows
from eics.studies.comparison.parts import Parts
from eics.studies.comparison.summary import ModelComparison, mean_effects, summarize
from eics.studies.comparison.targets import CURVATURE, check_metric
from eics.studies.run_folder import Row, digest
from eics.transformer.adapt import load_model

NOT_FINITE = "the activations of one of the models are not finite on this prompt"


@memory_explained
def compare_models(
    model: Any,
    circuit: Circuit | None,
    prompts: Any,
    against: Any,
    *,
    metric: str = "kl",
    restore: int = 0,
    samples: int | None = None,
    group: Any = None,
    seed: int = 0,
    batch_size: int = 8,
    resamples: int = 1000,
    memory: float | None = None,
    one_at_a_time: bool = False,
    load: Callable[[Any], Model] = load_model,
    load_against: Callable[[Any], Model] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tick: Callable[[int], None] = lambda _: None,
) -> ModelComparison:
    """Attributes the change between two models to the parts that made it.

    Args:
        model, circuit, prompts, against: as `eics.compare` takes them.
        metric: `kl` (of B's next-token distribution from A's), or, for prompts with an `answer`, `log_prob`, and with
            a `foil` too, `logit_diff`.
        restore: for how many parts with the largest effect to measure it truly, by writing A's value into B's run.
        samples: how many samples of the second order of effects to draw; an eighth of the prompts by default, at least
            64.
        group: for each prompt what it belongs to: intervals then resample groups.
        seed, batch_size, resamples, memory: of what is sampled; prompts per pass; bootstrap; megabytes for temporaries.
        one_at_a_time: keep only one model in memory, and activations on disk; both must be given by path or name.
        load, load_against: how models are loaded that are given by path or name.
        out, resume, overwrite: a folder for rows and document, and what to do if it holds a run.
        tick: called with the number of prompts finished since the last call.
    """
    loaders = load, load_against or load
    pair = Pair(model, against, loaders, apart=check_flag("one_at_a_time", one_at_a_time))
    listed = as_prompts(prompts)
    if not listed:
        raise OptionError.of("prompts", "a list of at least one prompt", [])
    check_metric(metric, listed)
    groups = check_groups(group, listed)
    restore = check_whole("restore", restore, least=0)
    batch_size, resamples = check_whole("batch_size", batch_size, least=1), check_whole("resamples", resamples, least=1)
    seed = check_whole("seed", seed, least=0)
    samples = None if samples is None else check_whole("samples", samples, least=1)
    about = pair.identify(circuit, listed, metric)
    if CURVATURE[metric]:
        about = replace(about, items=with_samples(about.items, seed, samples))
    step = Step(about.parts, metric, seed)
    settings = about.settings | {
        "circuit": None if circuit is None else circuit.label(),
        "prompts": digest([asdict(prompt) for prompt in listed]),
        "tokens": digest([item.tokens for item in about.items]),
        "metric": metric,
        "seed": seed,
        "samples": samples,
    }
    with open_rows(out, settings, resume=resume, overwrite=overwrite) as files, pair.driver() as driver:
        with memory_limit(memory, about.device):
            _first_order(files, driver, step, about, batch_size, tick)
            rows = {row["id"]: row for row in files.rows}
            in_order = [rows[prompt.id] for prompt in listed]
            if restore:
                _restore(files, driver, step, about, in_order, restore, batch_size)
        found = summarize(
            in_order,
            files.restored,
            about.parts.names,
            groups=groups,
            resamples=resamples,
            circuit=circuit,
            metric=metric,
            seed=seed,
            **about.names,
        )
        files.write(found)
    return found


def _first_order(
    files: ModelRows, driver: Driver, step: Step, about: About, batch_size: int, tick: Callable[[int], None]
) -> None:
    """A row for each prompt that has none yet."""
    done = {row["id"] for row in files.rows}
    failed = [_failed(id, reason) for id, reason in about.failures.items() if id not in done]
    files.add(failed)
    tick(len(done) + len(failed))
    waiting = [item for item in about.items if item.prompt.id not in done]
    for batch, outcome in driver.outcomes(step, as_batches(waiting, batch_size)) if waiting else ():
        files.add([_row(item, outcome, index, about) for index, item in enumerate(batch)])
        tick(len(batch))


def _restore(
    files: ModelRows,
    driver: Driver,
    step: Step,
    about: About,
    rows: Sequence[Row],
    count: int,
    batch_size: int,
) -> None:
    """The true effect of the parts with the largest mean effect to first order, on every prompt that has none yet."""
    scored = {row["id"]: row for row in rows if row["status"] == "ok"}
    if not scored:
        return
    largest = np.argsort(-np.abs(mean_effects(list(scored.values()), step.metric)), kind="stable")[:count].tolist()
    names = [step.parts.names[index] for index in sorted(largest)]
    done = {(row["id"], row["node"]) for row in files.restored}
    waiting = [
        item
        for item in about.items
        if item.prompt.id in scored and any((item.prompt.id, name) not in done for name in names)
    ]
    if not waiting:
        return
    chosen = Step(Parts.named(names), step.metric)
    for batch, effects in driver.restored(chosen, as_batches(waiting, batch_size)):
        files.add_restored(
            [
                {"id": item.prompt.id, "node": name, "effect": values[index]}
                for name, values in effects.items()
                for index, item in enumerate(batch)
                if (item.prompt.id, name) not in done
            ]
        )


def _row(item: Item, outcome: Outcome, index: int, about: About) -> Row:
    prompt = item.prompt
    if not outcome.finite[index]:
        return _failed(prompt.id, NOT_FINITE)
    numbers = outcome.numbers
    return {
        "id": prompt.id,
        "prompt": prompt.metadata["prompt"],
        "status": "ok",
        "total": outcome.total[index],
        "touched": touched(outcome.relative[index], about.dtypes),
        "before": about.texts(outcome.before[index]),
        "after": about.texts(outcome.after[index]),
        **{name: numbers.squares[name][:, index].tolist() for name in SQUARES},
        "slope": numbers.slope[:, index].tolist(),
        "second": numbers.second[:, index].tolist() if item.draws else None,
        "stream": None if numbers.stream is None else numbers.stream[:, index].tolist(),
    }


def _failed(id: str | int, reason: str) -> Row:
    return {"id": id, "status": "failed", "reason": reason}
