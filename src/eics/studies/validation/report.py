"""The report: one list of blocks, written as Markdown and as one self-contained HTML file; and the numbers as JSON."""

import html
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eics.reporting.plots import save
from eics.studies.statistics import Interval
from eics.studies.validation.analysis import Validation
from eics.studies.validation.columns import BY_NAME
from eics.studies.validation.figures import distributions, roc
from eics.studies.validation.incremental import BASES
from eics.studies.validation.metrics import BINS
from eics.studies.words import escape_markdown, markdown_table


@dataclass(frozen=True)
class Block:
    """A heading, a list of sentences, a table (first row: its header) or a figure's file name."""

    kind: str
    text: str = ""
    items: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def write(validation: Validation, folder: Path) -> None:
    """Writes `results.json`, `roc.svg`, `distributions.svg`, `report.md` and `report.html`."""
    (folder / "results.json").write_text(json.dumps(validation.to_record(), indent=1) + "\n", encoding="utf-8")
    save(roc(validation), folder / "roc.svg")
    save(distributions(validation), folder / "distributions.svg")
    content = list(blocks(validation))
    (folder / "report.md").write_text(as_markdown(content), encoding="utf-8")
    (folder / "report.html").write_text(as_html(content, folder), encoding="utf-8")


def blocks(validation: Validation) -> Iterator[Block]:
    """The contents of the report, in order."""
    yield Block("title", "Does the score separate correct answers from wrong ones?")
    yield Block("list", items=validation.sentences)
    yield Block("heading", "What was done")
    yield Block("table", rows=[("", ""), *_setup(validation)])
    yield Block("list", items=list(_decided(validation)))
    yield Block("heading", "On the test split")
    yield Block("list", items=list(_reading(validation)))
    yield Block("table", rows=list(_table(validation)))
    yield Block("table", rows=list(_differences(validation)))
    yield Block("figure", "roc.svg")
    yield Block("figure", "distributions.svg")
    if validation.within:
        yield Block("heading", "Within groups of similar prompts")
        yield Block("list", items=[_WITHIN])
        yield Block("table", rows=list(_within_table(validation)))
    yield Block("heading", "Does a score add to what is known without it?")
    yield Block("list", items=_GAINS)
    yield Block("table", rows=list(_gain_table(validation)))
    if validation.columns.missing:
        yield Block("heading", "Not compared")
        yield Block("list", items=[f"{BY_NAME[n].title}: {why}." for n, why in validation.columns.missing.items()])
    yield Block("heading", "What each score is")
    kinds = [result.kind for result in validation.results.values()]
    yield Block("table", rows=[("score", "family", "is"), *((k.title, k.family, k.about) for k in kinds)])


_WITHIN = (
    "AUROC over pairs of a correct and a wrong test prompt of the same group. A score that is a function of the "
    "grouping alone has exactly 0.5, however well it separates overall."
)

_GAINS = (
    "Logistic regressions fitted on development (the base out of fold), compared on test: the base alone, and with the "
    "score; a base that does worse on test than the constant share of correct development prompts is replaced by it. "
    "The gain is the fall of the log-loss (nats per prompt) and the rise of the AUROC; p by bootstrap, Holm-corrected "
    "for the scores tried on a base.",
    *(f"{name}: {', '.join(BY_NAME[member].title for member in members)}." for name, members in BASES.items()),
)


def _setup(validation: Validation) -> Iterator[tuple[str, str]]:
    settings, counts = validation.settings, validation.counts
    yield "model", f"{settings['model']} ({settings['dtype']})"
    if settings["ensemble"]:
        yield "ensemble with", ", ".join(map(str, settings["ensemble"]))
    yield "circuit", f"{settings['circuit']['name']} (sha256 {settings['circuit']['sha256'][:12]})"
    yield "prompts", f"{counts.prompts}, of which {counts.kept} count (data sha256 {settings['data_sha256'][:12]})"
    for reason, count in counts.dropped.items():
        yield f"dropped: {reason}", str(count)
    given = f"given for {counts.labels_given}"
    matched = f"by the model's answer ({settings['match']}) for {counts.kept - counts.labels_given}"
    yield "labels", f"{given}, {matched}"
    yield "function words", "dropped" if settings["drop_function_words"] else "kept"
    yield "matched within", settings["matched"] or "nothing"
    yield "split", f"by {settings['group']}: test groups unseen" if settings["group"] else "stratified by label"
    yield "development", f"{counts.development[0]} correct, {counts.development[1]} wrong"
    yield "test", f"{counts.test[0]} correct, {counts.test[1]} wrong"
    yield "mode of the EI terms", settings["mode"]
    yield "seed", str(settings["seed"])


def _decided(validation: Validation) -> Iterator[str]:
    drawn = "whole groups" if validation.comparison.clustered else "prompts within each label"
    alpha, is_fast = validation.columns.alpha, validation.settings["mode"] == "fast"
    yield (
        "Decided on the development split alone: the direction of every score, thresholds (best F1; Youden's J), alpha "
        f"({alpha:.3g}, of 17 from 1e-4 to 1e4{', which mode fast cannot distinguish' if is_fast else ''}), "
        f"isotonic calibration, conformal quantiles (coverage {validation.settings['coverage']:g}), EAR's maps, and "
        "every fitted baseline (out of fold on development itself)."
    )
    yield (
        f"Nothing was chosen on the test split. Intervals are 95% percentiles of {validation.comparison.resamples} "
        f"bootstrap resamples of {drawn}, the same for every score, with the decisions of development fixed; p-values "
        f"of differences are Holm-corrected for {len(validation.results) - 1} scores."
    )


def _reading(validation: Validation) -> Iterator[str]:
    correct, wrong = validation.counts.test
    yield (
        "Correct is the positive class. AUROC 0.5 is chance; below 0.5 the direction of development did not hold; p "
        "(0.5) tests against chance, Holm-corrected within the family of the score. "
        f"PRR: 0 is random rejection, 1 an oracle. ECE in {BINS} bins after isotonic calibration. F1 of calling "
        f"everything correct: {2 * correct / (2 * correct + wrong):.3f}."
    )


def _table(validation: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", "high means", "AUROC dev", "AUROC", "p (0.5)", "AUPRC", "F1", "F1 (Youden)", "PRR", "ECE")
    for result in validation.results.values():
        metrics = (result.metrics[name] for name in ("auprc", "f1", "f1_youden", "prr", "ece"))
        high = ("correct" if result.decision.sign > 0 else "wrong") if result.distinct > 1 else "-"
        area = (f"{result.decision.auroc:.3f}", _number(result.auroc), _plain(result.p_chance))
        yield (result.kind.title, high, *area, *map(_number, metrics))


def _differences(validation: Validation) -> Iterator[tuple[str, ...]]:
    suspect = BY_NAME[validation.comparison.suspect].title
    yield (
        "score", "AUROC less max-probability's", "p (Holm)", f"AUROC less that of {suspect}",
        "rank correlation with length", "with max-probability", "distinct values",
    )  # fmt: skip
    for r in validation.results.values():
        yield (
            r.kind.title, _number(r.difference), _plain(r.p_value), _number(r.beyond_suspects),
            _plain(r.length_correlation), _plain(r.confidence_correlation), str(r.distinct),
        )  # fmt: skip


def _within_table(validation: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", *(f"same {grouping} ({within.pairs} pairs)" for grouping, within in validation.within.items()))
    for result in validation.results.values():
        yield (result.kind.title, *(_number(within.auroc[result.name]) for within in validation.within.values()))


def _gain_table(validation: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", "base", "log-loss falls by", "AUROC rises by", "p (Holm)")
    for gain in validation.gains:
        yield (gain.title, gain.base, _number(gain.log_loss), _number(gain.auroc), _plain(gain.p_value))


def _number(interval: Interval | None) -> str:
    return "-" if interval is None else str(interval)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def as_markdown(content: Sequence[Block]) -> str:
    """The report as Markdown, with its figures in files beside it."""
    parts = []
    for block in content:
        if block.kind in ("title", "heading"):
            parts.append(f"{'#' if block.kind == 'title' else '##'} {block.text}")
        elif block.kind == "list":
            parts.append("\n".join(f"- {escape_markdown(item)}" for item in block.items))
        elif block.kind == "table":
            parts.append(markdown_table(block.rows[0], block.rows[1:]))
        else:
            parts.append(f"![{block.text.removesuffix('.svg')}]({block.text})")
    return "\n\n".join(parts) + "\n"


def as_html(content: Sequence[Block], folder: Path) -> str:
    """The report as one HTML file: all text escaped, figures embedded, no script."""
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
