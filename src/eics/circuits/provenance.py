"""What a cut circuit says of itself: where it comes from and how it was cut, but nothing that was said of the whole.

A file's metadata speaks of two things. How its scores were made (model, task, method) holds for every subset of its
edges, and stays. How its edges were chosen and how well they do (command, faithfulness, any remark) holds for the
circuit as it was: it moves under `cut.from`, beside that circuit's hash and size, and the steps of the cut go under
`cut.steps`.
"""

from typing import Any

from eics.circuits.file_graph import CircuitGraph

CUT = "cut"
_OF_THE_SCORES = (
    "model", "task", "pairs", "metric", "method", "steps", "ablation", "linearization",
    "metric_clean", "metric_ablated",
)  # fmt: skip
_OF_THE_FORMAT = ("metadata", "qParams", "eap_top", "eap_cfg", "input_string", "scan_name", "scan", "file")


def metadata_after(graph: CircuitGraph, step: str) -> dict[str, Any]:
    """The metadata of a circuit that `step` makes of the graph's; for a cut of a cut the steps add up."""
    stays = {key: value for key, value in graph.metadata.items() if key in (*_OF_THE_SCORES, *_OF_THE_FORMAT)}
    of_the_whole = {key: value for key, value in graph.metadata.items() if key not in stays}
    earlier = of_the_whole.get(CUT)
    if of_the_whole.keys() == {CUT} and isinstance(earlier, dict) and isinstance(earlier.get("steps"), list):
        return stays | {CUT: earlier | {"steps": [*earlier["steps"], step]}}
    origin: dict[str, Any] = {"edges": len(graph.kept_edges)}
    if graph.sha256 is not None:
        origin["sha256"] = graph.sha256
    return stays | {CUT: {"from": origin | of_the_whole, "steps": [step]}}


def cut_sentence(metadata: dict[str, Any]) -> str | None:
    """`Cut from a circuit of 200 edges: ...`; None if the circuit was not cut, or does not say how."""
    cut = metadata.get(CUT)
    if not isinstance(cut, dict) or not isinstance(cut.get("from"), dict) or not isinstance(cut.get("steps"), list):
        return None
    return f"Cut from a circuit of {cut['from'].get('edges')} edges: {'; '.join(map(str, cut['steps']))}."
