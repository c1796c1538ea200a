"""From the numbers of a batch to one result for each prompt: score, terms, diagnostics, status and reason."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from eics.models.prompts import token_texts, token_warnings
from eics.scoring.alpha import Curve
from eics.scoring.cautions import ratio_warnings, reference_warnings
from eics.scoring.computed import Computed, ConfigurationResult, EmergenceTerm
from eics.scoring.formula import discounted
from eics.scoring.job import Job, TokenizedPrompt
from eics.scoring.numbers import number
from eics.scoring.options import Options
from eics.scoring.result import EdgeTerms, NodeTerm, Score, Scores, failed
from eics.transformer.forward import ForwardState

_NUMBERS = ("eics", "c_sh", "dei", "dei_norm", "ei_macro", "emergence_ratio")
_ESTIMATED = ("dei", "dei_norm", "ei_macro", "emergence_ratio")


def assemble(
    job: Job,
    items: Sequence[TokenizedPrompt],
    state: ForwardState,
    nonfinite: set[int],
    results: Sequence[ConfigurationResult],
) -> dict[int, Scores]:
    """The results of prompts that shared a pass, by row of the batch: one for each configuration."""
    metadata = []
    for index, item in enumerate(items):
        interventions = state.applied.records[index] if state.applied.records else []
        tokens = token_texts(job.model, item.tokens)
        of_prompt = {"tokens": tokens, "token_ids": list(item.tokens), "interventions": interventions}
        warnings = token_warnings(job.model, item.tokens)
        metadata.append(job.provenance(item.prompt) | of_prompt | {"warnings": warnings})
    columns = []
    for options, result in zip(job.configurations, results, strict=True):
        if isinstance(result.computed, str):
            pairs = zip(items, metadata, strict=True)
            columns.append([job.failure(item.prompt, result.computed, options, own) for item, own in pairs])
            continue
        of_the_pass = {"readout": options.readout, "forward_passes": state.forward_passes}
        own = [
            entry | {"options": job.requested(item.prompt, options)}
            for item, entry in zip(items, metadata, strict=True)
        ]
        ids = [item.prompt.id for item in items]
        scores = scores_of(result.computed, ids, own, of_the_pass, token_text=job.model.token_text)
        if result.details is not None:
            scores = _with_details(scores, result.details)
        columns.append(scores if result.extra is None else _with_diagnostics(scores, result.extra))
    rows = {item.row: Scores(row) for item, row in zip(items, zip(*columns, strict=True), strict=True)}
    for index in nonfinite:
        reason = "the model's activations are not finite on this prompt"
        rows[items[index].row] = job.failures(items[index].prompt, reason, metadata[index])
    return rows


def _with_details(scores: Scores, details: Sequence[dict[str, Any]]) -> Scores:
    pairs = zip(scores, details, strict=True)
    return Scores(score if score.status == "failed" else replace(score, details=more) for score, more in pairs)


def _with_diagnostics(scores: Scores, extra: Sequence[dict[str, Any]]) -> list[Score]:
    return [replace(score, diagnostics=score.diagnostics | more) for score, more in zip(scores, extra, strict=True)]


def scores_of(
    computed: Computed,
    ids: Sequence[str | int],
    metadata: Sequence[Mapping[str, Any]] | None = None,
    of_the_pass: Mapping[str, Any] | None = None,
    token_text: Callable[[int], str | None] = lambda _: None,
) -> Scores:
    """One `Score` for each prompt, with its metadata; fields `of_the_pass` are missing from a failed one."""
    batch = _Batch(computed, token_text)
    metadata = [{}] * len(ids) if metadata is None else metadata
    return Scores(_score(batch, index, id, metadata[index], of_the_pass or {}) for index, id in enumerate(ids))


class _Batch:
    """The numbers of a batch as lists by prompt, copied from the device together."""

    def __init__(self, computed: Computed, token_text: Callable[[int], str | None]) -> None:
        self.computed, self.token_text = computed, token_text
        self.numbers: dict[str, Any] = computed.packed.fetch()

    def __getitem__(self, name: str) -> Any:
        """One number for each prompt."""
        return self.numbers[name]

    def get(self, name: str, index: int) -> Any:
        """One prompt's number, or None."""
        return self.numbers[name][index] if name in self.numbers else None


def _score(
    batch: _Batch, index: int, id: str | int, metadata: Mapping[str, Any], of_the_pass: Mapping[str, Any]
) -> Score:
    computed, options = batch.computed, batch.computed.options
    numbers: dict[str, Any] = {name: batch.get(name, index) for name in _NUMBERS}
    numbers["consistency"] = discounted(1.0, numbers["c_sh"])
    wrong = [name for name, value in numbers.items() if value is not None and not math.isfinite(value)]
    if not batch["finite"][index]:
        numbers, wrong = {"a residual": "not finite"}, ["a residual"]
    if wrong:
        dtype = computed.used["dtype"]
        cause = f"{wrong[0]} is {numbers[wrong[0]]}: a map, an activation or alpha is too large for {dtype}"
        return failed(id, cause, **computed.used, **metadata)
    status, reason = ("ok", None) if computed.term is None else _status(numbers, options, _silent(batch, index))
    return Score(
        id=id,
        status=status,
        reason=reason,
        **numbers,
        ei_parts=_parts(batch, index),
        edges=_edges(batch, index) if computed.edges else (),
        nodes=_nodes(batch, index) if options.residual != "edge" else (),
        norms=_norms(batch, index),
        node_positions=computed.frame.node_positions,
        stderr=_errors(batch, index),
        diagnostics=_diagnostics(batch, index),
        predictions=_predictions(batch, index),
        curve=None if computed.term is None or computed.term.curve is None else _curve(computed.term.curve, index),
        warnings=[*metadata.get("warnings", ()), *ratio_warnings(numbers), *_unlike(batch, index)],
        **_judgement(batch, index),
        **computed.used,
        **{name: value for name, value in metadata.items() if name != "warnings"},
        **of_the_pass,
    )


def _silent(batch: _Batch, index: int) -> list[str]:
    """Nodes that write nothing: in the relative metric they have no unit."""
    nodes = batch.computed.frame.nodes
    return [node for node, writes in zip(nodes, batch["writes"][index], strict=True) if not writes]


def _norms(batch: _Batch, index: int) -> dict[str, float]:
    """||a_v|| of every node, as far as it is finite."""
    columns = zip(batch.computed.frame.nodes, batch.get("norms", index) or (), strict=True)
    return {node: norm for node, norm in columns if math.isfinite(norm)}


def _parts(batch: _Batch, index: int) -> dict[str, float]:
    """The EI of each part; none without an EI term."""
    term = batch.computed.term
    return {} if term is None else dict(zip(term.parts, batch["parts"][index], strict=True))


def _judgement(batch: _Batch, index: int) -> dict[str, Any]:
    """The fields of a result whose nodes were judged against what is usual."""
    judged = batch.computed.judged
    if judged is None:
        return {}
    columns = zip(judged.names, batch["z"][index], batch["suspect"][index], strict=True)
    suspects = sorted(((z, node) for node, z, suspect in columns if suspect), reverse=True)
    numbers = {"c_ref": batch["c_sh"][index]} | {name: batch[name][index] for name in ("p_value", "p_value_mean")}
    return numbers | {"suspects": [node for _, node in suspects]}


def _unlike(batch: _Batch, index: int) -> list[dict[str, str]]:
    """Says so if a judged prompt is unlike the reference."""
    judged = batch.computed.judged
    if judged is None:
        return []
    return reference_warnings(
        batch["length"][index], judged.lengths, batch["p_value_input"][index], batch["p_value_mean"][index]
    )


def _status(numbers: dict[str, Any], options: Options, silent: list[str]) -> tuple[str, str | None]:
    dei, macro = numbers["dei"], numbers["ei_macro"]
    clipped = dei < 0 and options.emergence == "difference"
    status = "clipped" if clipped else "ok"
    unitless = ", ".join(silent) if options.metric == "relative" else ""
    if macro == 0 and unitless:
        return status, f"the macro map is zero in relative units: {unitless} writes nothing and so has no unit"
    if macro == 0:
        return status, "the macro map is zero: nothing that enters the sources reaches the sinks"
    if numbers["emergence_ratio"] == 0:
        return status, f"no part carries anything, so there is no ratio: {unitless or 'every map'} is zero"
    if clipped:
        return status, (
            f"dEI = {number(dei)} nats was clipped to 0: the parts carry {number(macro - dei)} nats, the macro map "
            f"{number(macro)}"
        )
    return status, None


def _errors(batch: _Batch, index: int) -> dict[str, float]:
    """Standard errors of the estimated numbers; a part in closed form has none."""
    term = batch.computed.term
    if term is None or not term.spectra.sampled:
        return {}
    estimated = [name for name in _ESTIMATED if f"{name} error" in batch.numbers]
    errors: dict[str, float] = {name: batch[f"{name} error"][index] for name in estimated}
    errors["eics"] = discounted(errors["dei_norm"], batch["c_sh"][index])
    if not term.spectra.macro.sampled:
        del errors["ei_macro"]
    by_part = dict(zip(term.parts, batch["parts error"][index], strict=True))
    return errors | {f"ei_parts.{name}": by_part[name] for name in term.sampled_parts}


def _edges(batch: _Batch, index: int) -> EdgeTerms:
    residual, share, cosine = (batch[name][index] for name in ("residual", "share", "cosine"))
    return EdgeTerms(batch.computed.edges, residual, share, cosine, batch.computed.attributions)


def _nodes(batch: _Batch, index: int) -> tuple[NodeTerm, ...]:
    """Largest share first; judged nodes, most unusual first."""
    judged = batch.computed.judged
    columns = zip(batch.computed.sheaf_names, batch["node residual"][index], batch["node share"][index], strict=True)
    terms = [NodeTerm(str(node), residual, share) for node, residual, share in columns]
    if judged is None:
        return tuple(sorted(terms, key=attrgetter("share"), reverse=True))
    numbers = zip(terms, batch["z"][index], batch["p"][index], judged.r2, strict=True)
    terms = [replace(term, z=_finite(z), p=_finite(p), r2=r2) for term, z, p, r2 in numbers]
    terms = [replace(term, reason=judged.reasons.get(term.node)) for term in terms]
    return tuple(sorted(terms, key=lambda term: -math.inf if term.z is None else term.z, reverse=True))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _predictions(batch: _Batch, index: int) -> list[dict[str, Any]]:
    """The likeliest next tokens; none for an explicit circuit, or if the logits overflowed."""
    ids, probabilities = batch.get("predicted", index) or (), batch.get("probability", index) or ()
    if not all(map(math.isfinite, probabilities)):
        return []
    pairs = zip(ids, probabilities, strict=True)
    return [{"token": batch.token_text(id), "id": id, "probability": share} for id, share in pairs]


def _diagnostics(batch: _Batch, index: int) -> dict[str, Any]:
    computed, frame = batch.computed, batch.computed.frame
    diagnostics: dict[str, Any] = {
        "dei": batch.get("dei", index),
        "length": batch.get("length", index),
        "share_position_0": batch.get("first", index),
        "share_top_edge": max(batch["share"][index]) if computed.edges else None,
        "edges_left_out": frame.edges_left_out,
    }
    if computed.term is not None:
        diagnostics |= _of_the_term(batch, index, computed.term)
    if computed.products is not None:
        diagnostics["products"] = computed.products
    if computed.judged is not None:
        diagnostics |= {"p_value_input": batch["p_value_input"][index], "reference_prompts": computed.judged.prompts}
    return diagnostics | (frame.laplacians[index] if frame.laplacians is not None else {})


def _of_the_term(batch: _Batch, index: int, term: EmergenceTerm) -> dict[str, Any]:
    """What the diagnostics say of the EI term."""
    by_part, chosen = batch["parts"][index], term.calibration
    entries: dict[str, Any] = {
        "share_largest_part": max(by_part) / sum(by_part) if sum(by_part) > 0 else None,
        "ei_methods": term.methods,
    }
    if "macro lower" in batch.numbers:
        entries["ei_bounds"] = _bounds(batch, index)
    if chosen is not None:
        entries["alpha_calibration"] = {
            "target": chosen.target,
            "median": chosen.median,
            "quartiles": list(chosen.quartiles),
            "prompts": chosen.prompts,
        }
    return entries


def _bounds(batch: _Batch, index: int) -> dict[str, Any]:
    """Intervals that hold the true EI of the macro map and of each part, from the norms that `fast` has; and dEI."""
    low, high = batch["macro lower"][index], batch["macro upper"][index]
    bounds = ("parts lower", "parts upper")  # if all parts are exact, each is its own bounds
    lower, upper = (batch[name if name in batch.numbers else "parts"][index] for name in bounds)
    names = () if batch.computed.term is None else batch.computed.term.parts
    parts = {name: [least, most] for name, least, most in zip(names, lower, upper, strict=True)}
    return {"macro": [low, high], "parts": parts, "dei": [low - sum(upper), high - sum(lower)]}


def _curve(curve: Curve, index: int) -> dict[str, list[float]]:
    tensors = {"alpha": curve.alphas, "dei": curve.dei[index], "ei_macro": curve.ei_macro[index]}
    return {name: tensor.tolist() for name, tensor in tensors.items()} | {"zeros": curve.zeros[index]}
