"""Plain words about a run, from the records alone: how it was scored, what is exact, what to be careful with."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from eics.circuits.graph import Kind, Node
from eics.scoring.batch_sentences import length_correlation
from eics.scoring.numbers import number
from eics.scoring.result import EdgeTerm, Score, Scores

_DOMINANT = 0.5  # share above which one token, edge or part deserves a warning
_TINY_GAP = 1e-3
_NOISY = 0.5  # standard error over the spread between prompts


_EXACT = "C_sh, residuals, shares, cosines and norms are exact up to rounding."


def alpha_sentence(scored: Sequence[Score]) -> str:
    """How alpha was chosen."""
    alphas = sorted({score.alpha for score in scored if score.alpha is not None})
    if not alphas:
        return "Not needed: EI was not computed." if _without_ei(scored) else "Not recorded."
    calibration = next((c for s in scored if isinstance(c := s.diagnostics.get("alpha_calibration"), dict)), None)
    if calibration is not None:
        try:
            low, high = calibration["quartiles"]
            return (
                f"Calibrated on {calibration['prompts']} prompts so that macro EI per read-out dimension has a "
                f"median of {calibration['target']:.4g} nats; half of them lie between {low:.4g} and {high:.4g}."
            )
        except (KeyError, TypeError, ValueError):
            return "Calibrated on the prompts; the details could not be read."
    if len(alphas) > 1:
        return f"Differs between records, from {alphas[0]:g} to {alphas[-1]:g}: their EI cannot be compared."
    return "The paper's prior." if alphas == [1.0] else "Set by the user."


def exactness(scored: Sequence[Score]) -> list[str]:
    """What is exact and what is estimated."""
    plain = [_judgement(scored)] if judged(scored) else [_EXACT]
    if _without_ei(scored):
        return [*plain, "EI was not computed."]
    how = {
        "exact": "EI is exact too: computed by factorization, without sampling.",
        "lanczos": "EI is estimated by stochastic Lanczos quadrature.",
        "fast": "EI is an estimate from exact spectra of heads and from moments of the other spectra.",
        "limit": "EI is the small-alpha form, alpha/2 ||J||_F^2: an upper bound for ranking.",
    }.get((scored[0].mode if scored else None) or "")
    if how is None:
        return [*(plain if judged(scored) else []), "The records do not say how EI was computed."]
    error = "" if scored[0].mode == "exact" else f" {_error_sentence(scored)}"
    return [*plain, how + error]


def reference(scored: Sequence[Score]) -> str | None:
    """How many prompts say what is usual; None if the records were not compared with any."""
    counts = sorted({n for score in judged(scored) if isinstance(n := score.diagnostics.get("reference_prompts"), int)})
    if not counts:
        return None
    return f"{counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} calibration prompts"


def judged(scored: Sequence[Score]) -> list[Score]:
    """The records that were compared with what is usual."""
    return [score for score in scored if score.p_value is not None and score.suspects is not None]


def _judgement(scored: Sequence[Score]) -> str:
    count = reference(scored)
    smallest = ""
    if count is not None:
        most = max(n for score in judged(scored) if isinstance(n := score.diagnostics.get("reference_prompts"), int))
        smallest = f": {count}, so that no p is below {number(1 / (1 + most), trim=True)}"
    return (
        "C_ref, z and shares are exact up to rounding, given the calibration: what each node writes for what it reads "
        "was learned from its reference prompts, and so was r2. p-values are counts of calibration prompts at least "
        f"as unusual{smallest}."
    )


def _without_ei(scored: Sequence[Score]) -> bool:
    """Whether the EI term was left out: whatever has it has the EI of the macro map."""
    return bool(scored) and all(score.eics is None and score.ei_macro is None for score in scored)


def _error_sentence(scored: Sequence[Score]) -> str:
    errors = [score.stderr["dei"] for score in scored if "dei" in score.stderr]
    if not errors:
        return "Without sampling: every map has a closed form."
    parts = scored[0].ei_parts
    closed = sum(f"ei_parts.{name}" not in scored[0].stderr for name in parts)
    partly = f" {closed} of {len(parts)} parts needed no sampling." if closed else ""
    return f"The standard error of dEI is {median(errors):.3g} nats for the median prompt.{partly}"


def warnings(scores: Scores) -> list[dict[str, str]]:
    """Reasons not to trust a number blindly, the worst first."""
    scored = Scores(score for score in scores if not score.failed)
    checks = (_kind, _clipped, _norms, _gap, _sampling, _concentrated, _left_out, _length)
    found = [*_failed(scores), *(warning for check in checks for warning in check(scored))]
    return [{"title": title, "text": text} for title, text in found]


def _failed(scores: Scores) -> Iterator[tuple[str, str]]:
    reasons = Counter(score.reason or "no reason given" for score in scores if score.failed)
    if reasons:
        listed = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3))
        more = f"; and {len(reasons) - 3} other reasons" if len(reasons) > 3 else ""
        yield (f"{reasons.total()} of {len(scores)} prompts were not scored", f"{listed}{more}.")


def _kind(scored: Scores) -> Iterator[tuple[str, str]]:
    compared = judged(scored)
    if not compared:
        return
    count = reference(scored)
    levels = {level for score in compared if isinstance(level := score.options.get("level"), float)}
    chance = (
        f" Even of such prompts, up to {number(100 * max(levels), trim=True)}% have a suspect by chance."
        if levels
        else ""
    )
    yield (
        "p-values hold for prompts of the same kind as the reference",
        f"Usual is what the {count or 'calibration prompts'} did. On prompts of another form, length or topic a small "
        f"p may say no more than that they are different.{chance}",
    )


def _clipped(scored: Scores) -> Iterator[tuple[str, str]]:
    clipped = [score for score in scored if score.status == "clipped"]
    prompts = f"all {len(scored)} prompts" if len(scored) > 1 else "the only prompt"
    why = "the parts carry more EI than the macro map, so dEI is negative and was clipped to 0"
    if clipped and len(clipped) == len(scored):
        yield (
            "Every score is 0",
            f"On {prompts} {why}. This score cannot rank prompts: use signed dEI and C_sh, or the well-posed preset.",
        )
    elif clipped:
        yield (f"{len(clipped)} of {len(scored)} scores were clipped", f"On these prompts {why}.")


def _norms(scored: Scores) -> Iterator[tuple[str, str]]:
    transformer = any(Node.parse(e.target).kind is not Kind.OTHER for s in scored[:1] for e in s.edges if _has_name(e))
    if scored and scored[0].linearization == "jacobian" and scored[0].model is not None and transformer:
        yield (
            "Norm layers inflate C_sh",
            "The Jacobian of a norm maps its own input to zero. What the parents of a node explain together therefore "
            "nearly vanishes, and C_sh is high however coherent the model is. The linearization 'frozen' holds norms "
            "at their observed scale.",
        )


def _has_name(edge: EdgeTerm) -> bool:
    """Whether the target is a valid node name; records may come from anywhere."""
    return bool(edge.target) and edge.target == edge.target.strip() and not set("<>") & set(edge.target)


def _gap(scored: Scores) -> Iterator[tuple[str, str]]:
    gaps = [gap for score in scored if isinstance(gap := score.diagnostics.get("spectral_gap"), int | float)]
    tiny = [gap for gap in gaps if gap < _TINY_GAP]
    if tiny:
        yield (
            "Tiny spectral gap",
            f"The sheaf Laplacian's smallest non-zero eigenvalue is {min(tiny):.2g} on the worst of {len(tiny)} "
            "prompts: activations can be far from every consistent assignment although each edge disagrees only a "
            "little.",
        )


def _sampling(scored: Scores) -> Iterator[tuple[str, str]]:
    pairs = [
        (s.eics, s.stderr["eics"]) for s in scored if s.eics is not None and s.status == "ok" and "eics" in s.stderr
    ]
    values = sorted(value for value, _ in pairs)
    if len(values) < 4:
        return
    spread = values[(3 * len(values)) // 4] - values[len(values) // 4]
    error = median(error for _, error in pairs)
    if error > _NOISY * spread:
        yield (
            "Sampling noise",
            f"The standard error of a score ({error:.2g}) is large compared with the spread between prompts "
            f"({spread:.2g}): use more probes, or mode exact, before ranking them.",
        )


def _concentrated(scored: Scores) -> Iterator[tuple[str, str]]:
    for name, title, text in _CONCENTRATED:
        values = [value for s in scored if isinstance(value := s.diagnostics.get(name), int | float)]
        if values and (share := median(values)) > _DOMINANT:
            yield (title, text.format(share=f"{share:.0%}"))


_CONCENTRATED = (
    (
        "share_position_0",
        "One token dominates C_sh",
        "The first position accounts for {share} of it on the median prompt. It is often an attention sink: positions "
        "'no_sink' leaves it out, and metric 'relative' measures each position in its own units.",
    ),
    (
        "share_top_edge",
        "One edge dominates",
        "The worst edge accounts for {share} of the squared residual on the median prompt; the others hardly count.",
    ),
    (
        "share_largest_part",
        "One part dominates EI",
        "The largest part carries {share} of the parts' EI on the median prompt; dEI says little about the others.",
    ),
)


def _left_out(scored: Scores) -> Iterator[tuple[str, str]]:
    left = max((n for s in scored if isinstance(n := s.diagnostics.get("edges_left_out"), int)), default=0)
    if left:
        yield (
            f"{left} edges are left out",
            "The linearization 'frozen' holds attention patterns fixed, so edges into <q> and <k> "
            + ("have no residual of their own." if judged(scored) else "are not in C_sh."),
        )


def _length(scored: Scores) -> Iterator[tuple[str, str]]:
    if len(scored) < 8:
        return
    correlation = length_correlation(scored)
    if correlation is not None and abs(correlation) > 0.7:
        yield (
            "The score follows prompt length",
            f"Its rank correlation with the number of positions is {correlation:.2f}: compare only prompts of equal "
            "length.",
        )
