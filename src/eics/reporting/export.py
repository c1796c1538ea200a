"""One prompt's scored circuit as a graph that every format can write, with our numbers as extra keys."""

from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.graph import Edge
from eics.errors import RecordError
from eics.scoring.options import RECORDED
from eics.scoring.result import EdgeTerm, Score

_NUMBERS = ("eics", "c_sh", "dei", "dei_norm", "ei_macro", "emergence_ratio", "alpha")
_EXPORTED = (*_NUMBERS, "status", *(name for name in RECORDED if name != "seed"))


def scored_graph(score: Score) -> CircuitGraph:
    """The circuit of a result; edges are weighted by attribution if all of them have one, else by share.

    Edges get `eics_residual`, `eics_share` and `eics_cosine`; nodes get `eics_ei`, `eics_norm` and, if the residual is
    measured per node, `eics_residual` and `eics_share`.
    """
    if not score.edges:
        why = score.reason or "it was scored by node alone"
        raise RecordError(f"A record must have edges to be exported. Prompt {score.id} has none: {why}")
    terms = {Edge(term.source, term.target, term.port): term for term in score.edges}
    attributed = all(term.attribution is not None for term in score.edges)
    weights = {edge: term.attribution if attributed else term.share for edge, term in terms.items()}
    fields = {name: value for name in _EXPORTED if (value := getattr(score, name)) is not None}
    fields["weight"] = "attribution" if attributed else "share of the squared residual"
    return CircuitGraph(
        tuple(sorted(terms, key=str)),
        scores={edge: weight for edge, weight in weights.items() if weight is not None},
        positions={node: tuple(kept) for node, kept in score.node_positions.items()},
        node_attributes=_nodes(score),
        edge_attributes={edge: _edge(term) for edge, term in terms.items()},
        metadata={"metadata": _metadata(score) | {"eics": fields}},
    )


def _metadata(score: Score) -> dict[str, Any]:
    """The metadata that Neuronpedia requires."""
    return {
        "slug": f"eics-{score.id}",
        "scan": score.model or "eics",
        "prompt_tokens": score.tokens or [score.prompt or ""],
        "prompt": score.prompt or "".join(score.tokens or ()),
    }


def _edge(term: EdgeTerm) -> dict[str, Any]:
    numbers = {"eics_residual": term.residual, "eics_share": term.share, "eics_cosine": term.cosine}
    return {name: value for name, value in numbers.items() if value is not None}


def _nodes(score: Score) -> dict[str, dict[str, Any]]:
    attributes: dict[str, dict[str, Any]] = {}
    for name, values in (("eics_ei", score.ei_parts), ("eics_norm", score.norms)):
        for node, value in values.items():
            if node in score.norms or "->" not in node:  # with parts="branches" the parts are edges
                attributes.setdefault(node, {})[name] = value
    for term in score.nodes:
        attributes.setdefault(term.node, {}).update(eics_residual=term.residual, eics_share=term.share)
    return attributes
