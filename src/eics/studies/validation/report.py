"""The report: one list of blocks, written as Markdown and as one HTML file that asks for nothing; and the numbers."""

import html
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eics.reporting.plots import save
from eics.studies.validation.adds import BASES, title
from eics.studies.validation.analysis import Validation
from eics.studies.validation.columns import BY_NAME
from eics.studies.validation.compare import Estimate, Result
from eics.studies.validation.figures import distributions, roc
from eics.studies.validation.metrics import BINS


@dataclass(frozen=True)
class Block:
    """A heading, a list of sentences, a table (first row: its head) or a figure's file name."""

    kind: str
    text: str = ""
    items: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def write(found: Validation, folder: Path) -> None:
    """`results.json`, `roc.svg`, `distributions.svg`, `report.md`, `report.html`."""
    (folder / "results.json").write_text(json.dumps(found.to_record(), indent=1) + "\n", encoding="utf-8")
    save(roc(found), folder / "roc.svg")
    save(distributions(found), folder / "distributions.svg")
    content = list(blocks(found))
    (folder / "report.md").write_text(as_markdown(content), encoding="utf-8")
    (folder / "report.html").write_text(as_html(content, folder), encoding="utf-8")


def blocks(found: Validation) -> Iterator[Block]:
    """What the report says, in order."""
    yield Block("title", "Does the score tell correct answers from wrong ones?")
    yield Block("list", items=found.sentences)
    yield Block("heading", "What was done")
    yield Block("table", rows=[("", ""), *_setup(found)])
    yield Block("list", items=list(_decided(found)))
    yield Block("heading", "On the test split")
    yield Block("list", items=list(_reading(found)))
    yield Block("table", rows=list(_table(found)))
    yield Block("table", rows=list(_differences(found)))
    yield Block("figure", "roc.svg")
    yield Block("figure", "distributions.svg")
    if found.within:
        yield Block("heading", "Among prompts that are alike")
        yield Block("list", items=[_ALIKE])
        yield Block("table", rows=list(_within_table(found)))
    yield Block("heading", "Does a score add to what is known without it?")
    yield Block("list", items=_GAINS)
    yield Block("table", rows=list(_gain_table(found)))
    if found.columns.missing:
        yield Block("heading", "Not compared")
        yield Block("list", items=[f"{BY_NAME[n].title}: {why}." for n, why in found.columns.missing.items()])
    yield Block("heading", "What each score is")
    yield Block("table", rows=[("score", "family", "is"), *((_t(r), r.kind.family, r.kind.about) for r in _all(found))])


_ALIKE = (
    "AUROC over pairs of a correct and a wrong test prompt that share something. A score that is a function of that "
    "thing alone, however well it knows it, has exactly 0.5."
)

_GAINS = (
    "Logistic regressions fitted on development (the base out of fold), compared on test: the base alone, and with the "
    "score; a base that does worse on test than the share of correct development prompts is replaced by it. A gain "
    "is how much the log-loss falls (nats a prompt) and the AUROC rises; p by bootstrap, corrected by Holm for the "
    "scores tried on a base.",
    *(f"{name}: {', '.join(BY_NAME[member].title for member in members)}." for name, members in BASES.items()),
)


def _setup(found: Validation) -> Iterator[tuple[str, str]]:
    said, counts = found.settings, found.counts
    yield "model", f"{said['model']} ({said['dtype']})"
    if said["ensemble"]:
        yield "ensemble with", ", ".join(map(str, said["ensemble"]))
    yield "circuit", f"{said['circuit']['name']} (sha256 {said['circuit']['sha256'][:12]})"
    yield "prompts", f"{counts.prompts}, of which {counts.kept} count (data sha256 {said['data_sha256'][:12]})"
    for reason, count in counts.dropped.items():
        yield f"dropped: {reason}", str(count)
    given = f"given for {counts.labels_given}"
    matched = f"by the model's answer ({said['match']}) for {counts.kept - counts.labels_given}"
    yield "labels", f"{given}, {matched}"
    yield "function words", "dropped" if said["drop_function_words"] else "kept"
    yield "matched within", said["matched"] or "nothing"
    yield "split", f"by {said['group']}: test groups unseen" if said["group"] else "stratified by label"
    yield "development", f"{counts.development[0]} correct, {counts.development[1]} wrong"
    yield "test", f"{counts.test[0]} correct, {counts.test[1]} wrong"
    yield "mode of the EI terms", said["mode"]
    yield "seed", str(said["seed"])


def _decided(found: Validation) -> Iterator[str]:
    drawn = "whole groups" if found.comparison.clustered else "prompts within each label"
    alpha = found.columns.alpha
    yield (
        "Decided on the development split alone: the direction of every score, thresholds (best F1; Youden's J), alpha "
        f"({alpha:.3g}, of 17 from 1e-4 to 1e4{', which mode fast cannot tell apart' if _fast(found) else ''}), "
        f"isotonic calibration, conformal quantiles (coverage {found.settings['coverage']:g}), EAR's maps, and every "
        "fitted baseline (out of fold on development itself)."
    )
    yield (
        f"On the test split nothing was chosen. Intervals are 95% percentiles of {found.comparison.resamples} "
        f"bootstrap resamples of {drawn}, the same for every score, with development's decisions held; p-values of "
        f"differences are corrected by Holm for {len(found.results) - 1} scores."
    )


def _fast(found: Validation) -> bool:
    return bool(found.settings["mode"] == "fast")


def _reading(found: Validation) -> Iterator[str]:
    yield (
        "Correct is the positive class. AUROC 0.5 is chance; below 0.5 the direction of development did not hold; p "
        "(0.5) is for chance, corrected by Holm within the family of the score. "
        f"PRR: 0 is random rejection, 1 an oracle's. ECE in {BINS} bins after isotonic calibration. F1 of calling "
        f"everything correct: {_all_correct(found):.3f}."
    )


def _all_correct(found: Validation) -> float:
    correct, wrong = found.counts.test
    return 2 * correct / (2 * correct + wrong)


def _table(found: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", "high means", "AUROC dev", "AUROC", "p (0.5)", "AUPRC", "F1", "F1 (Youden)", "PRR", "ECE")
    for result in _all(found):
        metrics = (result.metrics[name] for name in ("auprc", "f1", "f1_youden", "prr", "ece"))
        high = ("correct" if result.decision.sign > 0 else "wrong") if result.distinct > 1 else "-"
        area = (f"{result.decision.auroc:.3f}", _number(result.auroc), _plain(result.p_chance))
        yield (_t(result), high, *area, *map(_number, metrics))


def _differences(found: Validation) -> Iterator[tuple[str, ...]]:
    suspect = BY_NAME[found.comparison.suspect].title
    yield (
        "score", "AUROC less max-probability's", "p (Holm)", f"AUROC less that of {suspect}",
        "rank correlation with length", "with max-probability", "distinct values",
    )  # fmt: skip
    for r in _all(found):
        yield (
            _t(r), _number(r.difference), _plain(r.p_value), _number(r.beyond_suspects), _plain(r.length_correlation),
            _plain(r.confidence_correlation), str(r.distinct),
        )  # fmt: skip


def _within_table(found: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", *(f"same {what} ({alike.pairs} pairs)" for what, alike in found.within.items()))
    for result in _all(found):
        yield (_t(result), *(_number(alike.auroc[result.name]) for alike in found.within.values()))


def _gain_table(found: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", "base", "log-loss falls by", "AUROC rises by", "p (Holm)")
    for gain in found.gains:
        yield (title(gain), gain.base, _number(gain.log_loss), _number(gain.auroc), _plain(gain.p_value))


def _all(found: Validation) -> list[Result]:
    return list(found.results.values())


def _t(result: Result) -> str:
    return result.kind.title


def _number(estimate: Estimate | None) -> str:
    return "-" if estimate is None else str(estimate)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def as_markdown(content: Sequence[Block]) -> str:
    """The report as Markdown; figures lie beside it."""
    found = []
    for block in content:
        if block.kind in ("title", "heading"):
            found.append(f"{'#' if block.kind == 'title' else '##'} {block.text}")
        elif block.kind == "list":
            found.append("\n".join(f"- {_escape_markdown(item)}" for item in block.items))
        elif block.kind == "table":
            head, *rows = (f"| {' | '.join(map(_escape_markdown, row))} |" for row in block.rows)
            found.append("\n".join([head, "|---" * len(block.rows[0]) + "|", *rows]))
        else:
            found.append(f"![{block.text.removesuffix('.svg')}]({block.text})")
    return "\n\n".join(found) + "\n"


def _escape_markdown(text: str) -> str:
    """Names and reasons come from others' files: no cell ends, no markup begins."""
    for mark in ("\\", "|", "<", "[", "`", "*"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def as_html(content: Sequence[Block], folder: Path) -> str:
    """The report as one HTML file: every text escaped, figures inside, no script."""
    writers: dict[str, Callable[[Block], str]] = {
        "title": lambda block: f"<h1>{html.escape(block.text)}</h1>",
        "heading": lambda block: f"<h2>{html.escape(block.text)}</h2>",
        "list": lambda block: f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in block.items)}</ul>",
        "table": _table_html,
        "figure": lambda block: _figure_html(folder / block.text),
    }
    body = "\n".join(writers[block.kind](block) for block in content)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>EICS validation</title>'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src '
        f"'unsafe-inline'\"><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _table_html(block: Block) -> str:
    head, *rows = block.rows
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head) if any(head) else ""
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table>{f"<thead><tr>{top}</tr></thead>" if top else ""}<tbody>{body}</tbody></table></div>'
    )


def _figure_html(path: Path) -> str:
    coded = b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/svg+xml;base64,{coded}"></p>'


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
li { margin: 0.25em 0; max-width: 75em; }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #8884; vertical-align: top; }
img { max-width: 100%; background: white; }
"""
