"""The report: one list of blocks, written as Markdown and as one self-contained HTML file; figures; numbers as JSON."""

import html
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eics.data.files import write_text
from eics.reporting.plots import COLOURS, save
from eics.studies.statistics import Interval, Numbers
from eics.studies.validation.analysis import Validation
from eics.studies.validation.columns import BY_NAME, REFERENCE
from eics.studies.validation.incremental import BASES
from eics.studies.validation.metrics import BINS, cumulative
from eics.studies.words import escape_markdown, markdown_list, markdown_page, markdown_table

_CURVES = ("eics_paper_alpha", "eics_well_posed", "propagated", REFERENCE)
_HISTOGRAMS = ("eics_paper", "dei_paper", "eics_well_posed", "propagated", REFERENCE, "length")
_BINS = 24
_COLUMNS = 3

_COLOURS = (*COLOURS, "#222222")

Block = tuple[str, Any]
"""Title or heading with its text, list with its items, table with its rows (header first), figure with its file."""


def write(validation: Validation, folder: Path) -> None:
    """Writes `results.json`, `roc.svg`, `distributions.svg`, `report.md` and `report.html`."""
    write_text(folder / "results.json", json.dumps(validation.to_record(), indent=1) + "\n")
    save(roc(validation), folder / "roc.svg")
    save(distributions(validation), folder / "distributions.svg")
    content = [(kind, block if isinstance(block, str) else list(block)) for kind, block in blocks(validation)]
    write_text(folder / "report.md", as_markdown(content))
    write_text(folder / "report.html", as_html(content, folder))


def blocks(validation: Validation) -> Iterator[Block]:
    """The contents of the report, in order."""
    yield "title", "Does the score separate correct answers from wrong ones?"
    yield "list", validation.sentences
    yield "heading", "What was done"
    yield "table", [("", ""), *_setup(validation)]
    yield "list", _decided(validation)
    yield "heading", "On the test split"
    yield "list", [_reading(validation)]
    yield "table", _table(validation)
    yield "table", _differences(validation)
    yield "figure", "roc.svg"
    yield "figure", "distributions.svg"
    if validation.within:
        yield "heading", "Within groups of similar prompts"
        yield "list", [_WITHIN]
        yield "table", _within_table(validation)
    yield "heading", "Does a score add to what is known without it?"
    yield "list", _GAINS
    yield "table", _gain_table(validation)
    if validation.columns.missing:
        yield "heading", "Not compared"
        yield "list", [f"{BY_NAME[n].title}: {why}." for n, why in validation.columns.missing.items()]
    yield "heading", "What each score is"
    kinds = [result.kind for result in validation.results.values()]
    yield "table", [("score", "family", "is"), *((k.title, k.family, k.about) for k in kinds)]


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
    drawn = "whole groups" if validation.columns.clustered else "prompts within each label"
    alpha, is_limit = validation.columns.alpha, validation.settings["mode"] == "limit"
    yield (
        "Decided on the development split alone: the direction of every score, thresholds (best F1; Youden's J), alpha "
        f"({alpha:.3g}, of 17 from 1e-4 to 1e4{', which mode limit cannot distinguish' if is_limit else ''}), "
        f"isotonic calibration, conformal quantiles (coverage {validation.settings['coverage']:g}), EAR's maps, and "
        "every fitted baseline (out of fold on development itself)."
    )
    yield (
        f"Nothing was chosen on the test split. Intervals are 95% percentiles of {validation.resamples} "
        f"bootstrap resamples of {drawn}, the same for every score, with the decisions of development fixed; p-values "
        f"of differences are Holm-corrected for {len(validation.results) - 1} scores."
    )


def _reading(validation: Validation) -> str:
    correct, wrong = validation.counts.test
    return (
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
        area = (f"{result.decision.auroc:.3f}", _cell(result.auroc), _cell(result.p_chance))
        yield (result.kind.title, high, *area, *map(_cell, metrics))


def _differences(validation: Validation) -> Iterator[tuple[str, ...]]:
    yield (
        "score", "AUROC less max-probability's", "p (Holm)", f"AUROC less that of {validation.suspect.kind.title}",
        "rank correlation with length", "with max-probability", "distinct values",
    )  # fmt: skip
    for r in validation.results.values():
        yield (
            r.kind.title, _cell(r.difference), _cell(r.p_value), _cell(r.beyond_suspects),
            _cell(r.length_correlation), _cell(r.confidence_correlation), str(r.distinct),
        )  # fmt: skip


def _within_table(validation: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", *(f"same {grouping} ({within.pairs} pairs)" for grouping, within in validation.within.items()))
    for result in validation.results.values():
        yield (result.kind.title, *(_cell(within.auroc[result.name]) for within in validation.within.values()))


def _gain_table(validation: Validation) -> Iterator[tuple[str, ...]]:
    yield ("score", "base", "log-loss falls by", "AUROC rises by", "p (Holm)")
    for gain in validation.gains:
        yield (gain.title, gain.base, _cell(gain.log_loss), _cell(gain.auroc), _cell(gain.p_value))


def _cell(number: Interval | float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def roc(validation: Validation) -> Any:
    """ROC curves of the main scores, max-probability and the strongest suspect, in their development direction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 7.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
    names = [name for name in (*_CURVES, validation.suspect.name) if name in validation.results]
    for index, name in enumerate(dict.fromkeys(names)):
        label = f"{BY_NAME[name].title}: {validation.results[name].auroc}"
        axes.plot(*_rates(validation, name), color=_COLOURS[index], label=label, linewidth=1.6)
    axes.set(xlabel="wrong prompts called correct", ylabel="correct prompts called correct")
    correct, wrong = validation.counts.test
    axes.set_title(f"test split: {correct} correct, {wrong} wrong", fontsize=11)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", title="AUROC (95% interval)", title_fontsize=8)
    axes.set_box_aspect(1)
    return figure


def distributions(validation: Validation) -> Any:
    """Histograms of scores over the test prompts, correct and wrong ones apart."""
    from matplotlib.figure import Figure

    names = [name for name in _HISTOGRAMS if name in validation.columns.values]
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(11, 2.4 * rows), layout="constrained")
    grid = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    test, labels = validation.columns.test, validation.columns.labels
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(grid, names, strict=False):
        values = validation.columns.values[name]
        shown = {"correct": values[test & labels], "wrong": values[test & ~labels]}
        low, high = float(min(map(np.min, shown.values()))), float(max(map(np.max, shown.values())))
        bounds = (low, high) if low < high else (low - 0.5, high + 0.5)
        for (label, part), colour in zip(shown.items(), _COLOURS, strict=False):
            counts, edges = np.histogram(part, bins=_BINS, range=bounds)
            axes.stairs(counts, edges, color=colour, label=label, linewidth=1.3)
        axes.set_title(BY_NAME[name].title, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=5)
    grid[0].legend(frameon=False, fontsize=8)
    return figure


def _rates(validation: Validation, name: str) -> tuple[Numbers, Numbers]:
    """False and true positive rates of the directed score."""
    test = validation.columns.test
    labels = validation.columns.labels[test]
    values = validation.results[name].decision.sign * validation.columns.values[name][test]
    tp, n = cumulative(values, labels, np.ones((1, len(labels))))
    fp = n - tp
    return np.append(0, fp[0] / fp[0, -1]), np.append(0, tp[0] / tp[0, -1])


def as_markdown(content: Sequence[Block]) -> str:
    """The report as Markdown, with its figures in files beside it."""
    parts = []
    for kind, block in content:
        if kind == "list":
            parts.append(markdown_list(map(escape_markdown, block)))
        elif kind == "table":
            header, *rows = block
            parts.append(markdown_table(header, rows))
        elif kind == "figure":
            parts.append(f"![{block.removesuffix('.svg')}]({block})")
        else:
            parts.append(f"{'#' if kind == 'title' else '##'} {block}")
    return markdown_page(parts)


def as_html(content: Sequence[Block], folder: Path) -> str:
    """The report as one HTML file: all text escaped, figures embedded, no script."""
    body = "\n".join(_block_html(kind, block, folder) for kind, block in content)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>EICS validation</title>'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src '
        f"'unsafe-inline'\"><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _block_html(kind: str, block: Any, folder: Path) -> str:
    if kind == "list":
        return f"<ul>{_tagged('li', block)}</ul>"
    if kind == "table":
        header, *rows = block
        top = f"<thead><tr>{_tagged('th', header)}</tr></thead>" if any(header) else ""
        body = "".join(f"<tr>{_tagged('td', row)}</tr>" for row in rows)
        return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'
    if kind == "figure":
        coded = b64encode((folder / block).read_bytes()).decode()
        return f'<p><img alt="{html.escape(Path(block).stem)}" src="data:image/svg+xml;base64,{coded}"></p>'
    return _tagged("h1" if kind == "title" else "h2", [block])


def _tagged(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
li { margin: 0.25em 0; max-width: 75em; }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #8884; vertical-align: top; }
img { max-width: 100%; background: white; }
"""
