"""How often a comparison of two sets of prompts names the node that differs, and how often it names one for nothing.

    eics models fetch smollm2
    python benchmarks/compare_prompt_sets.py --known known_1000.jsonl        # half an hour on two cores
    python benchmarks/compare_prompt_sets.py --model people-0 --circuit people --known people.jsonl --group person

`--known` names a file of prompts with the field `--group`, such as ROME's known_1000 with `prompt` and `subject`. Half
of the groups calibrate. Of the prompts of the others:

- one node is changed on `--runs` of them: at the last position it writes what it writes on another prompt
  (`eics.Patch`, each prompt with a donor of its own). B is `--prompts` of these runs, A as many unchanged prompts.
  Prints how often the node is the first entry, and how often it is any, over `--repetitions` draws; intervals resample
  nodes. Also at how many nodes it is the first entry in at least 95% of draws.
- all of them are split in two by group, `--splits` times, and nothing is changed. Prints how often any node is an
  entry, and how often the node is that is one most often; intervals are those of a binomial.

Prompts run once; draws and splits only choose among their numbers.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

import eics
from eics.models.prompts import Prompt, as_prompts
from eics.scoring.options import CALIBRATED
from eics.studies.comparison.set_passes import Passes
from eics.studies.comparison.set_statistics import Sample, shifts
from eics.studies.statistics import Flags, Interval, Numbers, resampled_indices

RESAMPLES = 2000
_OFTEN = 0.95
_NONE = 10  # resamples of an interval that nobody looks at


class Bench:
    """A model with its calibration, and the prompts that did not teach it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model, self.circuit = eics.load_model(arguments.model), eics.load_circuit(arguments.circuit)
        lines = [json.loads(line) for line in Path(arguments.known).read_text(encoding="utf-8").splitlines()]
        self.draw = np.random.default_rng(arguments.seed)
        groups = sorted({line[arguments.group] for line in lines})
        taught = set(np.array(groups)[self.draw.permutation(len(groups))[: len(groups) // 2]].tolist())
        usual = [line for line in lines if line[arguments.group] in taught]
        rest = [line for line in lines if line[arguments.group] not in taught]
        self.calibration = eics.calibrate(
            self.model,
            self.circuit,
            [line["prompt"] for line in usual],
            group=[line[arguments.group] for line in usual],
            terms="sheaf",
            batch_size=arguments.batch_size,
        )
        self.prompts = as_prompts([{"prompt": line["prompt"], "id": row} for row, line in enumerate(rest)])
        self.groups = np.array([line[arguments.group] for line in rest])
        self.batch_size = arguments.batch_size
        learned = self.calibration.learned
        assert learned is not None
        self.judged = [name for name in learned.sheaf.layout.judged if name not in learned.sheaf.reasons]
        self._kept = learned.reference.judged.numpy()

    def numbers(self, prompts: Sequence[Prompt], interventions: Any = None) -> Numbers:
        """z of the judged nodes on these prompts, (n, judged)."""
        options = CALIBRATED.with_(terms="sheaf")
        passes = Passes.of(self.model, self.circuit, self.calibration, options, prompts, interventions)
        starts = range(0, len(prompts), self.batch_size)
        rows = [row["z"] for start in starts for row in passes.rows(prompts[start : start + self.batch_size])]
        return np.array(rows, dtype=float)[:, self._kept]

    def changed(self, node: str, count: int) -> tuple[list[int], Numbers]:
        """The places of `count` prompts, and their numbers with the node's write exchanged at the last position."""
        places = self.draw.permutation(len(self.prompts))[:count].tolist()
        donors = [self.prompts[int(self.draw.integers(len(self.prompts)))] for _ in places]
        patches = {
            self.prompts[place].id: [eics.Patch(node, prompt=donor.text, at="last")]
            for place, donor in zip(places, donors, strict=True)
        }
        return places, self.numbers([self.prompts[place] for place in places], patches)


def entries(a: Numbers, b: Numbers, groups: tuple[Sequence[str], Sequence[str]], level: float) -> Flags:
    """Which nodes are entries, and, in the second row, which of them comes first."""
    found = shifts(Sample.of(a, groups[0]), Sample.of(b, groups[1]), resamples=_NONE)
    is_entry = found.q < level
    size = np.where(is_entry, np.abs(found.value), -1.0)
    return np.stack([is_entry, is_entry & (size == size.max())])


def planted(bench: Bench, clean: Numbers, node: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """How often a changed node is the first entry, and how often it is one."""
    places, numbers = bench.changed(node, arguments.runs)
    draw, column = np.random.default_rng([arguments.seed, bench.judged.index(node)]), bench.judged.index(node)
    found = []
    for _ in range(arguments.repetitions):
        rows = draw.permutation(len(places))[: arguments.prompts]
        in_b = [places[row] for row in rows]
        in_a = draw.permutation(np.setdiff1d(np.arange(len(clean)), in_b))[: arguments.prompts]
        both = bench.groups[in_a].tolist(), bench.groups[in_b].tolist()
        found.append(entries(clean[in_a], numbers[rows], both, arguments.level)[:, column])
    is_entry, first = np.mean(found, axis=0)
    return float(first), float(is_entry)


def null(bench: Bench, clean: Numbers, arguments: argparse.Namespace) -> Flags:
    """Which nodes are entries between two halves of the unchanged prompts, (splits, judged)."""
    draw, names = np.random.default_rng([arguments.seed, 1]), np.unique(bench.groups)
    found = []
    for _ in range(arguments.splits):
        in_a = np.isin(bench.groups, draw.permutation(names)[: len(names) // 2])
        both = bench.groups[in_a].tolist(), bench.groups[~in_a].tolist()
        found.append(entries(clean[in_a], clean[~in_a], both, arguments.level)[0])
    return np.array(found)


def over_nodes(rates: Sequence[float], seed: int) -> Interval:
    """The mean over nodes, with an interval from resampling nodes."""
    values = np.array(rates)
    drawn = resampled_indices(len(values), RESAMPLES, np.random.default_rng([seed, 2]))
    return Interval.of(float(values.mean()), values[drawn].mean(axis=1))


def binomial(count: int, of: int) -> Interval:
    """A rate with its exact interval."""
    bounds = binomtest(count, of).proportion_ci()
    return Interval(count / of, float(bounds.low), float(bounds.high))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", required=True, help="JSON lines with prompts and their groups")
    parser.add_argument("--group", default="subject", help="the field with the group")
    parser.add_argument("--model", default="smollm2", help="folder, hub id or name from `eics models list`")
    parser.add_argument("--circuit", default="facts", help="file, or name from `eics circuit list`")
    parser.add_argument("--nodes", type=int, default=20, help="how many nodes are changed in turn")
    parser.add_argument("--prompts", type=int, default=50, help="of each set")
    parser.add_argument("--runs", type=int, default=150, help="changed runs of each node, of which B is drawn")
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--level", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Prints a line for each node, then the rates."""
    arguments, start = _arguments(), time.perf_counter()
    bench = Bench(arguments)
    clean = bench.numbers(bench.prompts)
    print(f"{bench.calibration!r}; {len(bench.prompts)} other prompts in {len(set(bench.groups))} groups", flush=True)
    found = null(bench, clean, arguments)
    any_node, most = int(found.any(axis=1).sum()), int(found.sum(axis=0).max())
    print(f"nothing changed, {len(found)} splits: any node is an entry in {binomial(any_node, len(found))} of them")
    print(f"nothing changed, the node that is one most often: {binomial(most, len(found))}", flush=True)
    nodes = [name for name in bench.judged if name != "logits"]
    rates = []
    for node in bench.draw.permutation(nodes)[: arguments.nodes].tolist():
        rates.append(planted(bench, clean, node, arguments))
        print(f"{node:>8}: first {rates[-1][0]:.2f}, an entry {rates[-1][1]:.2f}", flush=True)
    first, is_entry = (over_nodes(column, arguments.seed) for column in zip(*rates, strict=True))
    size = f"{len(rates)} nodes at {arguments.prompts} prompts"
    print(f"{size}: the changed node is the first entry in {first}, an entry in {is_entry}")
    often = sum(rate >= _OFTEN for rate, _ in rates)
    print(f"nodes that are the first entry in at least {_OFTEN:.0%} of draws: {binomial(often, len(rates))}")
    print(f"{time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
