"""Two models of one architecture on the same prompts: which parts made the change, and what it does.

| file | holds |
|---|---|
| `settings.json` | both models, circuit, prompts, options; `--resume` requires the same |
| `rows.jsonl` | one row for each prompt, as they are made |
| `restored.jsonl` | one row for each prompt and part that was restored |
| `compare.json` | the comparison |
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eics.circuits.formats.shared import json_safe
from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError, as_path
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.scoring.calibration.task import check_groups
from eics.scoring.checks import check_flag, check_whole
from eics.studies.comparison.attribution import SQUARES
from eics.studies.comparison.batches import Item, Outcome, Step, as_batches, touched, with_samples
from eics.studies.comparison.drivers import Apart, Driver, Together
from eics.studies.comparison.parts import Identity, Parts, check_comparable
from eics.studies.comparison.summary import ModelComparison, mean_effects, summarize
from eics.studies.comparison.targets import CURVATURE, check_metric, check_targets
from eics.studies.run_folder import Row, RowFile, RunFolder, digest
from eics.transformer.adapt import adapt, load_model

ROWS, RESTORED, DOCUMENT = "rows.jsonl", "restored.jsonl", "compare.json"
FILES = (ROWS, RESTORED, DOCUMENT)
"""What a run writes, besides its settings."""

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
    pair = _Pair(model, against, loaders, apart=check_flag("one_at_a_time", one_at_a_time))
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
    with _rows(out, settings, resume=resume, overwrite=overwrite) as files, pair.driver() as driver:
        with memory_limit(memory, about.device):
            _first_order(files, driver, step, about, batch_size, tick)
            rows = {row["id"]: row for row in files.rows}
            in_order = [rows[prompt.id] for prompt in listed]
            if restore:
                _restore(files, driver, step, about, in_order, restore, batch_size, tick)
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


@dataclass(frozen=True)
class _About:
    """What is known of both models before they are compared."""

    parts: Parts
    items: list[Item]
    failures: dict[str | int, str]
    names: dict[str, Any]
    settings: dict[str, Any]
    device: torch.device
    dtypes: tuple[torch.dtype, torch.dtype]
    texts: Callable[[int], str | None]


class _Pair:
    """Both models: loaded, or to be loaded one at a time."""

    def __init__(
        self, model: Any, against: Any, loaders: tuple[Callable[[Any], Model], Callable[[Any], Model]], *, apart: bool
    ) -> None:
        given = (model, against)
        if apart and not all(isinstance(one, str | Path) for one in given):
            must = "False unless both models are given by path or name, so that they can be loaded one after the other"
            raise OptionError.of("one_at_a_time", must, True)
        self.apart = apart
        loads: list[Callable[[], Model]] = [partial(load, one) for load, one in zip(loaders, given, strict=True)]
        if not apart:
            pairs = zip(loads, given, strict=True)
            first, other = (load() if isinstance(one, str | Path) else adapt(one) for load, one in pairs)
            if first.module is other.module:
                raise OptionError("Two models that are compared must be two. Got the same one twice: load it again.")
            loads = [lambda: first, lambda: other]
        self._load = dict(zip(("model", "against"), loads, strict=True))

    def identify(self, circuit: Circuit | None, prompts: Sequence[Prompt], metric: str) -> _About:
        """Checks both models against each other, and the prompts against them; one model is there at a time."""
        ours, read = self._look_at_ours(circuit, prompts, metric)
        against = self._load["against"]()
        theirs = Identity.of(against)
        check_comparable(ours, theirs)
        parts, device, texts, (items, failures) = read or _read(against, circuit, prompts, metric)
        prints = {"model": ours.fingerprint, "against": theirs.fingerprint}
        dtypes = (ours.dtype, theirs.dtype)
        dtype = " and ".join(dict.fromkeys(str(one).removeprefix("torch.") for one in dtypes))
        return _About(
            parts=parts,
            items=items,
            failures=failures,
            names={"model": ours.name, "against": theirs.name, "fingerprints": prints, "dtype": dtype},
            settings={"kind": "models", "fingerprints": prints, "dtype": dtype},
            device=device,
            dtypes=dtypes,
            texts=texts,
        )

    def _look_at_ours(
        self, circuit: Circuit | None, prompts: Sequence[Prompt], metric: str
    ) -> "tuple[Identity, _Read | None]":
        """A's identity, and what it says of circuit and prompts; texts need B's tokenizer if A has none."""
        model = self._load["model"]()
        needed = model.tokenizer is None and any(prompt.tokens is None for prompt in prompts)
        return Identity.of(model), None if needed else _read(model, circuit, prompts, metric)

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """Who runs the batches."""
        if not self.apart:
            yield Together(self._load["model"](), self._load["against"]())
            return
        with tempfile.TemporaryDirectory(prefix="eics-compare-") as folder:
            yield Apart(self._load["model"], self._load["against"], Path(folder))


class _Rows:
    """The rows of a run, in memory and, if it has a folder, on disk."""

    def __init__(self, folder: RunFolder | None) -> None:
        self.folder, self._files = folder, {}
        if folder is not None:
            self._files = {ROWS: folder.rows(ROWS, "id", "status"), RESTORED: folder.rows(RESTORED, "id", "node")}
        self.rows, self.restored = (list(self._files.get(name, ())) for name in (ROWS, RESTORED))

    def add(self, rows: Sequence[Row]) -> None:
        """Rows of prompts; on disk when this returns."""
        self._append(ROWS, self.rows, rows)

    def add_restored(self, rows: Sequence[Row]) -> None:
        """Rows of restored parts."""
        self._append(RESTORED, self.restored, rows)

    def _append(self, name: str, held: list[Row], rows: Sequence[Row]) -> None:
        file: RowFile | None = self._files.get(name)
        if file is not None:
            file.append(map(json_safe, rows))
        held += rows

    def write(self, found: ModelComparison) -> None:
        """The whole document, if there is a folder."""
        if self.folder is not None:
            self.folder.write(DOCUMENT, json.dumps(found.to_record(), allow_nan=False, indent=1) + "\n")


@contextmanager
def _rows(out: Any, settings: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Iterator[_Rows]:
    if out is None:
        if resume:
            raise OptionError("--resume needs --out DIR, the folder of the run to continue.")
        yield _Rows(None)
        return
    with RunFolder.open(as_path(out, "output folder"), settings, FILES, resume=resume, overwrite=overwrite) as folder:
        yield _Rows(folder)


def _first_order(
    files: _Rows, driver: Driver, step: Step, about: _About, batch_size: int, tick: Callable[[int], None]
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
    files: _Rows,
    driver: Driver,
    step: Step,
    about: _About,
    rows: Sequence[Row],
    count: int,
    batch_size: int,
    tick: Callable[[int], None],
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
        tick(0)


def _row(item: Item, outcome: Outcome, index: int, about: _About) -> Row:
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


_Read = tuple[
    Parts, torch.device, Callable[[int], str | None], tuple[list[Item], dict[str | int, str]]
]  # parts, device, tokens as text, prompts that run and why others do not


def _read(model: Model, circuit: Circuit | None, prompts: Sequence[Prompt], metric: str) -> _Read:
    """What a model says of the circuit and of the prompts."""
    if circuit is not None:
        model.check_circuit(circuit)
    decode = getattr(model.tokenizer, "decode", None)

    def text(token: int) -> str | None:
        return None if decode is None else str(decode([token]))

    return Parts.of(model.transformer, circuit), model.device, text, _tokenized(model, prompts, metric)


def _tokenized(model: Model, prompts: Sequence[Prompt], metric: str) -> tuple[list[Item], dict[str | int, str]]:
    items: list[Item] = []
    failures: dict[str | int, str] = {}
    for prompt in prompts:
        try:
            check_targets(metric, model, prompt)
            items.append(Item(prompt, tokenize(model, prompt)))
        except PromptError as error:
            failures[prompt.id] = str(error)
    return items, failures
