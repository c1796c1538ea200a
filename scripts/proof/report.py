"""Tables and figures of docs/validation-calibrated.md and docs/calibrate.md, from the numbers of the runs.

A page holds a pair of comments for every table, `<!-- table: NAME -->` and `<!-- end -->`; what stands between them
is written here and nowhere else. A test compares the pages with the numbers.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eics.data.files import write_text
from eics.studies.detection.ways import WAYS
from proof.figures import draw

PAGES = (Path("docs/validation-calibrated.md"), Path("docs/calibrate.md"))
RUNS = {"facts": "`facts`", "ioi": "`ioi`", "greater-than": "`greater-than`", "second-model": "Gemma, `facts`"}
KINDS = {
    "write": "write patched",
    "read": "read patched",
    "mean": "mean ablation",
    "noise": "noise",
    "steer": "steering",
}
FORMS = {
    "same": "the same form",
    "sentence": "a sentence put before",
    "rephrased": "another template",
    "context": "six to ten sentences before",
    "relation": "another relation",
    "translated": "another language",
}
LEVELS = ("0.01", "0.05", "0.1")
_TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Results = dict[str, Any]
Row = Sequence[str]


def write(folder: Path, pages: Sequence[Path] = PAGES) -> None:
    """Fills in the pages' tables and draws their figures."""
    results = read_results(folder)
    for page in pages:
        write_text(page, filled(page.read_text(encoding="utf-8"), results))
    draw(results, folder)


def read_results(folder: Path) -> Results:
    """Every run's numbers, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def filled(text: str, results: Results) -> str:
    """A page with its tables renewed."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']](results)}\n{found[3]}", text)


def _table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    """Two digits, or three where two would hide what is near 1.

    >>> _number(0.8367), _number(0.9986)
    ('0.84', '0.999')
    """
    return f"{value:.2f}" if value < 0.985 else f"{value:.3f}"


def _with_interval(entry: dict[str, float]) -> str:
    return f"{entry['value']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _rates(entry: Results) -> list[str]:
    """Alarms at the three levels."""
    return [_percent(entry[level]["rate"]) for level in LEVELS]


def damage(results: Results) -> str:
    """Localisation by task and kind of damage."""
    rows = []
    for name, label in RUNS.items():
        for kind, words in KINDS.items():
            found = results[name]["kinds"][kind]["calibrated"]
            numbers = [_number(found[key]["value"]) for key in ("own", "prompt", "caught", "named")]
            rows.append(
                [label, words, _with_interval(found["first"]), _with_interval(found["three"]), *numbers,
                 _percent(found["wrong_suspects"])]
            )  # fmt: skip
    head = ["task", "damage", "first", "in three", "own", "prompt", "caught", "named", "suspects that are not it"]
    return _table(head, rows)


def ways(results: Results) -> str:
    """How often the damaged node comes first, by way of judging."""
    rows = []
    for way in WAYS:
        cells = [
            _number(results[name]["kinds"][kind][way]["first"]["value"]) for kind in ("write", "read") for name in RUNS
        ]
        rows.append([f"`{way}`", *cells])
    head = [
        "judged by",
        *(f"{kind}: {label}" for kind in ("write", "read") for label in ("facts", "ioi", "greater-than", "Gemma")),
    ]
    return _table(head, rows)


def calm(results: Results) -> str:
    """False alarms on undamaged test prompts, and in five more splits."""
    rows = []
    for name, label in RUNS.items():
        found = results[name]["calm"]["calibrated"]
        cells = []
        for level in LEVELS:
            entry = found["largest"][level]
            mark = "" if entry["within"] else " **outside**"
            cells.append(f"{_percent(entry['rate'])} ({100 * entry['low']:.1f} to {100 * entry['high']:.1f}){mark}")
        others = [split for split in results[name]["splits"] if "refused" not in split]
        outside = sum(not split["largest"][level]["within"] for split in others for level in LEVELS)
        rows.append(
            [label, *cells, _percent(found["any_suspect"]), f"{found['ks_largest']:.2f}",
             f"{outside} of {len(others) * len(LEVELS)}"]
        )  # fmt: skip
    head = ["task", "at 1%", "at 5%", "at 10%", "any suspect (5%)", "KS p", "outside in other splits"]
    return _table(head, rows)


def sizes(results: Results) -> str:
    """Three references of each size, on the same damaged runs."""
    rows = []
    for size, draws in results["facts"]["sizes"].items():
        writes, reads = (
            [_range([draw["kinds"][kind]["calibrated"][key]["value"] for draw in draws]) for key in ("first", "three")]
            for kind in ("write", "read")
        )
        rates = [draw["calm"]["calibrated"]["largest"]["0.05"]["rate"] for draw in draws]
        rows.append([size, *writes, *reads, f"{100 * min(rates):.1f} to {100 * max(rates):.1f}%"])
    head = ["prompts", "write: first", "in three", "read: first", "in three", "false alarms at 5%"]
    return _table(head, rows)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def off_circuit(results: Results) -> str:
    """The prompt's AUROC when the damage lies outside the circuit."""
    rows = []
    for name, label in RUNS.items():
        parts = results[name]["off"]["calibrated"]
        keys = ("all", "answer kept", "answer changed", "smallest quarter of KL", "largest quarter of KL")
        cells = [f"{_with_interval(parts[key])}, n = {parts[key]['runs']}" if key in parts else "none" for key in keys]
        rows.append([label, *cells])
    return _table(["task", "all", "answer kept", "answer changed", "least effect", "largest effect"], rows)


def unlike(results: Results) -> str:
    """Alarms on clean prompts of other forms."""
    rows = []
    for form, label in FORMS.items():
        found = results["unlike"]["forms"][form]
        ours = found["calibrated"]
        theirs = [_percent(found[way]["largest"]["0.05"]["rate"]) for way in ("activations", "layers")]
        rows.append(
            [label, str(ours["prompts"]), *_rates(ours["largest"]), _percent(ours["mean"]["0.05"]["rate"]), *theirs]
        )
    head = ["prompts", "n", "largest z: 1%", "5%", "10%", "mean: 5%", "activations: 5%", "layers: 5%"]
    return _table(head, rows)


def breadth(results: Results) -> str:
    """Alarms by size and breadth of the reference."""
    rows = []
    for entry in results["unlike"]["breadth"]:
        other = _percent(entry["other"]["largest"]["0.05"]["rate"]) if entry["other"] else "none left"
        rates = [_percent(entry[key]["largest"]["0.05"]["rate"]) for key in ("like", "sentence")]
        rows.append([str(entry["size"]), str(entry["relations"]), f"{entry['endings']:.1f}", rates[0], other, rates[1]])
    head = ["prompts", "relations", "effective endings", "alarms on the same relations", "on others", "sentence before"]
    return _table(head, rows)


def relations(results: Results) -> str:
    """A fifth of the relations left out, grouped by subject and by relation."""
    rows = []
    for grouping, parts in results["explored"]["relations"].items():
        total = sum(part["prompts"] for part in parts)
        cells = []
        for statistic, levels in (("largest", LEVELS), ("mean", ("0.05",))):
            for level in levels:
                alarms = sum(part["prompts"] * part[statistic][level]["rate"] for part in parts)
                cells.append(_percent(alarms / total))
        spread = [part["largest"]["0.05"]["rate"] for part in parts]
        rows.append([f"`{grouping}`", *cells, f"{_percent(min(spread))} to {_percent(max(spread))}"])
    head = ["grouped by", "largest z: 1%", "5%", "10%", "mean: 5%", "largest z, 5%: part by part"]
    return _table(head, rows)


def allowance(results: Results) -> str:
    """What an unusual input excuses, on a split of the reference."""
    found = results["explored"]["allowance"]["kinds"]
    rows = [
        [a, *(_number(found[kind][a][key]["value"]) for kind in ("write", "read") for key in ("first", "prompt"))]
        for a in found["write"]
    ]
    return _table(["a", "write: first", "prompt", "read: first", "prompt"], rows)


def reasons(results: Results) -> str:
    """Copy and swap against recall."""
    rows = []
    judges = ("calibrated, mean", "calibrated, largest", "activations, mean", "activations, largest", "layers, mean")
    for judge in (*judges, "max-probability"):
        cells = [
            _with_interval(results["reasons"]["auroc"][reference][pair]["auroc"][judge])
            for reference in ("plain alone", "plain and recall")
            for pair in ("copy", "swap")
        ]
        rows.append([judge, *cells])
    questions = [results["reasons"]["auroc"]["plain alone"][pair]["questions"] for pair in ("copy", "swap")]
    pairs = [f"{pair} (n = {count})" for pair, count in zip(("copy", "swap"), questions, strict=True)]
    head = ["judged by", *(f"{reference}: {pair}" for reference in ("plain", "plain and recall") for pair in pairs)]
    return _table(head, rows)


def labels(results: Results) -> str:
    """AUROC of wrong answers."""
    found = results["labels"]
    rows = [
        [name, *(_with_interval(entry[key]) for key in ("overall", "within"))] for name, entry in found["auroc"].items()
    ]
    gain = [_with_interval(found["gain"][key]) for key in ("overall", "within")]
    return _table(["judged by", "overall", "within a relation"], [*rows, ["nodes on top of confidence: gain", *gain]])


def weights(results: Results) -> str:
    """Damaged weights."""
    rows = []
    for size, found in results["weights"].items():
        for way in ("calibrated", "activations", "recomputed"):
            rows.append(
                [size, f"`{way}`", *(_number(found[way][key]["value"]) for key in ("first", "three", "prompt"))]
            )
    return _table(["noise / weights", "judged by", "first", "in three", "prompt"], rows)


def circuits(results: Results) -> str:
    """Found, rewired and random circuits, and the full graph."""
    rows = []
    for name, found in results["circuits"].items():
        rows.append(
            [name, f"{found['judged']} of {found['nodes']}",
             *(_with_interval(found["kinds"][kind]["calibrated"]["first"]) for kind in ("write", "read")),
             *(_number(found["kinds"][kind]["calibrated"]["prompt"]["value"]) for kind in ("write", "read")),
             _percent(found["calm"]["calibrated"]["largest"]["0.05"]["rate"])]
        )  # fmt: skip
    head = [
        "circuit",
        "nodes damaged",
        "write: first",
        "read: first",
        "write: prompt",
        "read: prompt",
        "false alarms at 5%",
    ]
    return _table(head, rows)


def layers(results: Results) -> str:
    """Patched reads by depth of the MLP."""
    by_node = results["facts"]["by_node"]["read"]
    thirds: dict[str, list[float]] = {"m0 to m9": [], "m10 to m19": [], "m20 to m29": []}
    for node, first in by_node.items():
        thirds[list(thirds)[int(node[1:]) // 10]].append(first)
    rows = [[name, str(len(values)), _number(sum(values) / len(values))] for name, values in thirds.items()]
    return _table(["MLPs", "number", "read patched: first"], rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "damage": damage,
    "ways": ways,
    "calm": calm,
    "sizes": sizes,
    "off-circuit": off_circuit,
    "unlike": unlike,
    "breadth": breadth,
    "relations": relations,
    "allowance": allowance,
    "reasons": reasons,
    "labels": labels,
    "weights": weights,
    "circuits": circuits,
    "layers": layers,
}
