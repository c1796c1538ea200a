"""What there is to say of a batch of results: how many failed or were clipped, what random circuits give, lengths."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from eics.scoring.cautions import HARDLY_ANY_PATH
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from eics.scoring.result import Score

_SYMBOLS = {"emergence_ratio": "r", "eics": "EICS"}


def batch_sentences(scores: "Sequence[Score]") -> Iterator[str]:
    """All of it, the worst first."""
    scored = [score for score in scores if not score.failed]
    if len(scored) < len(scores):
        yield f"{len(scores) - len(scored)} of {len(scores)} prompts failed."
    clipped = [score for score in scored if score.status == "clipped"]
    if clipped and len(clipped) == len(scored):
        yield (
            f"Every score is 0: on {_all_of(scored)} the parts carry more than the macro map, so dEI was "
            "clipped. Ranking by this score ranks nothing; look at dei, or use the well-posed preset."
        )
    elif clipped:
        yield f"dEI was negative and clipped to 0 on {len(clipped)} of {len(scored)} prompts."
    yield from _hardly_any_path(scored)
    yield from _against_random(scored)
    correlation = length_correlation(scored)
    if correlation is not None:
        yield f"Rank correlation of the score with the number of positions: {number(correlation)}."


def _hardly_any_path(scored: "list[Score]") -> Iterator[str]:
    """How often the emergence ratio says only that nothing gets through."""
    meaningless = [s for s in scored if any(warning.get("code") == HARDLY_ANY_PATH for warning in s.warnings)]
    if meaningless:
        largest = max(score.emergence_ratio or 0.0 for score in meaningless)
        where = _all_of(scored) if len(meaningless) == len(scored) else f"{len(meaningless)} of {len(scored)} prompts"
        yield (
            f"Hardly any path carries anything to the sinks on {where}: r is at most {largest:.1e} there, and says "
            "nothing more."
        )


def _against_random(scored: "list[Score]") -> Iterator[str]:
    """What random circuits of the same size give, and where this one stands among them; medians over prompts."""
    name = "emergence_ratio" if any(score.emergence_ratio is not None for score in scored) else "eics"
    pairs = [(s, (s.diagnostics.get("against_random") or {}).get(name)) for s in scored]
    pairs = [(score, random) for score, random in pairs if None not in (random, getattr(score, name))]
    found = [(getattr(score, name), random) for score, random in pairs if random is not None]
    if found:
        own = median(value for value, _ in found)
        low, middle, high = (median(random[key] for _, random in found) for key in ("low", "median", "high"))
        circuits = max(score.diagnostics["against_random"]["circuits"] for score, _ in pairs)
        rank = median(random["rank"] for _, random in found)
        yield (
            f"{circuits} random circuits of this size give {_SYMBOLS[name]} = {middle:.3g} ({low:.3g} to {high:.3g}), "
            f"this one {own:.3g}: rank {rank:g} of {circuits + 1}" + (", medians over prompts." if found[1:] else ".")
        )


def _all_of(scored: "list[Score]") -> str:
    return f"all {len(scored)} prompts" if len(scored) > 1 else "the only prompt"


def length_correlation(scores: "Iterable[Score]") -> float | None:
    """Spearman correlation of EICS with prompt length; None if either does not vary."""
    pairs = [(score.eics, score.diagnostics.get("length")) for score in scores]
    scored = [(eics, length) for eics, length in pairs if eics is not None and length is not None]
    if any(len(set(values)) < 2 for values in zip(*scored, strict=True)) or not scored:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(*zip(*scored, strict=True)).statistic)


def median_text(scores: "Sequence[Score]") -> str:
    """The median of the score, or of C_sh where no score was computed."""
    for name in ("eics", "c_sh"):
        values = [value for score in scores if (value := getattr(score, name)) is not None]
        if values:
            return f"; median {name}={number(float(median(values)))}"
    return ""
