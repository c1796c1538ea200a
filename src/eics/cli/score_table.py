"""What `eics score` prints: a row for each prompt, and what a reader should know before trusting the numbers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eics.cli.layout import Column, bar, fitted
from eics.cli.terminal import blocks, console
from eics.scoring.numbers import number, percent, with_error
from eics.scoring.result import Score

if TYPE_CHECKING:
    from rich.table import Table

_WORST = 3  # edges or nodes named in a row
_BARS = 8  # edges of a single prompt
_BAR = 24  # columns of the longest bar
_NAMED = 4  # prompts named before "and N more"
_ABSENT = "-"


def score_table(scores: Sequence[Score], title: str, width: int | None = None) -> "Table":
    """One row per prompt; the title has the alpha that all of them share.

    In a narrow terminal these go first: the prompt's text, the emergence term, dEI, the model's next token.
    """
    alphas = sorted({score.alpha for score in scores if score.alpha is not None})
    if len(alphas) == 1:
        title += f", alpha {number(alphas[0], trim=True)}"
    by_node = any(score.nodes for score in scores)
    judged = any(score.suspects is not None for score in scores)

    def cells(show: Callable[[Score], str]) -> list[str]:
        return [show(score) for score in scores]

    def numbers(name: str) -> list[str]:
        """A dash stands for what was not computed, if other prompts have it; a failed prompt's cell is empty."""
        known = any(getattr(score, name) is not None for score in scores)
        absent = _ABSENT if known else ""
        return cells(
            lambda score: with_error(getattr(score, name), score.error_of(name)) or absent * (not score.failed)
        )

    eics = numbers("eics")
    columns = [
        Column("id", cells(lambda score: str(score.id)), names=True),
        *([Column("EICS", eics)] if any(eics) or all(score.failed for score in scores) else []),
        Column("%ile", cells(lambda score: number(score.percentile)), rank=1),
        Column("C_ref" if judged else "C_sh", cells(lambda score: number(score.c_sh))),
        *([Column("p", cells(lambda score: number(score.p_value)))] if judged else []),
        Column("dEI (nats)", numbers("dei"), rank=4),
        Column("dEI_norm", numbers("dei_norm"), rank=5),
        Column("alpha", cells(lambda score: number(score.alpha, trim=True)) if len(alphas) > 1 else [""] * len(scores),
               rank=2),
        Column("status", cells(lambda score: score.status), text=True),
        Column("next token", cells(_next_token), rank=3, text=True, least=16),
        *([Column("suspects", cells(_suspects), folds=True)] if judged else []),
        Column(_worst_header(judged, by_node), cells(_worst), folds=True),
        Column("prompt", cells(lambda score: " ".join((score.prompt or "").split())), rank=6, text=True, least=24),
    ]  # fmt: skip
    return fitted(title, columns, width or console().width)


def _worst_header(judged: bool, by_node: bool) -> str:
    return "most unusual (z)" if judged else f"worst {'nodes' if by_node else 'edges'}"


def node_table(score: Score, width: int | None = None) -> "Table | None":
    """The most unusual nodes of one prompt that was compared with what is usual, or None."""
    if score.suspects is None:
        return None
    shown = [term for term in score.nodes if term.z is not None][:_BARS]
    left = sum(term.z is not None for term in score.nodes) - len(shown)
    columns = [
        Column("node", [term.node for term in shown], text=True),
        Column("z", [number(term.z) for term in shown]),
        Column("p", [number(term.p) for term in shown]),
        Column("r2", [number(term.r2) for term in shown], rank=1),
        Column("share", [percent(term.share) for term in shown], rank=2),
    ]
    title = "Most unusual nodes, given what they read" + (f" ({left} more are not shown)" if left else "")
    return fitted(title, columns, width or console().width)


def edge_bars(score: Score, width: int | None = None) -> "Table | None":
    """A bar for each of the worst edges of one prompt, or None if the prompt is consistent."""
    if score.c_sh is None or score.is_consistent or not score.edges:
        return None
    shown = score.edges[:_BARS]
    left = len(score.edges) - len(shown)
    largest = max(shown[0].share, 1e-300)
    columns = [
        Column("edge", [str(edge) for edge in shown], text=True, least=16),
        Column("", [bar(edge.share / largest, _BAR, blocks=blocks()) for edge in shown], rank=2, text=True, least=_BAR,
               style="magenta"),
        Column("share", [percent(edge.share) for edge in shown]),
        Column("residual", [number(edge.residual) for edge in shown]),
        Column("cosine", [number(edge.cosine) for edge in shown], rank=1),
    ]  # fmt: skip
    title = "Worst edges: share of the squared residual" + (f" ({left} more are not shown)" if left else "")
    return fitted(title, columns, width or console().width)


def prediction_sentences(score: Score) -> list[str]:
    """The model's likeliest next tokens, if it was a model that was scored."""
    if not score.predictions:
        return []
    return [f"Next token: {', '.join(_prediction(score, rank) for rank in range(len(score.predictions)))}."]


def warning_sentences(scores: Sequence[Score], *, full: bool = False) -> list[str]:
    """Each kind of warning once, after the prompts that it holds for; every one of them if `full`."""
    by_kind: dict[str, list[tuple[Score, str]]] = {}
    for score in scores:
        for warning in score.warnings:
            key = f"{warning.get('code')} {score.id}" if full else str(warning.get("code"))
            by_kind.setdefault(key, []).append((score, str(warning.get("text"))))
    lines = []
    for found in by_kind.values():
        example = "" if len({text for _, text in found}) == 1 else f"for example {found[0][0].id}: "
        lines.append(f"Warning for {_which([score for score, _ in found], len(scores))}: {example}{found[0][1]}")
    return lines


def reasons(scores: Sequence[Score]) -> list[str]:
    """Each reason that a scored record gives, once, after the prompts that it holds for."""
    prompts: dict[str, list[str]] = {}
    for score in scores:
        if score.reason and not score.failed:
            prompts.setdefault(score.reason, []).append(str(score.id))
    return [f"{', '.join(ids)}: {reason}" for reason, ids in prompts.items()]


def _which(scores: Sequence[Score], total: int) -> str:
    if total == 1:
        return "the prompt"
    names = ", ".join(str(score.id) for score in scores[:_NAMED])
    more = f" and {len(scores) - _NAMED} more" if len(scores) > _NAMED else ""
    return f"{len(scores)} of {total} prompts ({names}{more})"


def _next_token(score: Score) -> str:
    return _prediction(score, 0) if score.predictions else ""


def _prediction(score: Score, rank: int) -> str:
    predicted = score.predictions[rank]
    text = f"token {predicted['id']}" if predicted["token"] is None else repr(predicted["token"])
    return f"{text} {percent(predicted['probability'])}"


def _suspects(score: Score) -> str:
    return ", ".join(score.suspects[:_WORST]) if score.suspects else "none" if score.suspects is not None else ""


def _worst(score: Score) -> str:
    if score.failed:
        return str(score.reason)
    if score.suspects is not None:
        return ", ".join(f"{term}:{number(term.z)}" for term in score.nodes[:_WORST] if term.z is not None)
    if score.is_consistent:
        return "none: consistent to rounding"
    return ", ".join(f"{term}:{percent(term.share)}" for term in (score.nodes or score.edges)[:_WORST])
