"""A learned sheaf as named tensors and a JSON header: what a calibration file holds of it."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from eics.errors import OptionError
from eics.scoring.calibration.sheaf.assign import FOLDS
from eics.scoring.calibration.sheaf.bases import OF_EACH, OUTPUTS, REGRESSORS, ROWS, Bases, Coordinates
from eics.scoring.calibration.sheaf.breadth import Breadth
from eics.scoring.calibration.sheaf.judge import Kept, Learned
from eics.scoring.calibration.sheaf.learned import ROUNDING, LearnedSheaf, Regressions
from eics.scoring.calibration.sheaf.moments import ENERGIES, SIZE, Moments
from eics.scoring.calibration.sheaf.positions import Positions
from eics.scoring.calibration.sheaf.reference import Reference
from eics.scoring.calibration.sheaf.samples import FIRST, Layout
from eics.transformer.explained import AT

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in ROUNDING}
_PARTS: dict[str, type] = {
    "bases": Bases, "regressions": Regressions, "reference": Reference, "positions": Positions, "moments": Moments,
    "coordinates": Coordinates,
}  # fmt: skip
_KEPT = ("moments", "coordinates")
_SINGLE = ("bases", "regressions", "coordinates")  # stored in float32, to which they were rounded


def learned_tensors(learned: Learned) -> dict[str, Tensor]:
    """All tensors, named `bases.write` and so on; those of positions only if all are judged, of moments if kept."""
    parts = {
        "bases": learned.sheaf.bases,
        "regressions": learned.sheaf.regressions,
        "reference": learned.reference,
        "positions": learned.positions,
        "moments": None if learned.kept is None else learned.kept.moments,
        "coordinates": None if learned.kept is None else learned.kept.coordinates,
    }
    prompt = {} if learned.kept is None else {"prompt": learned.kept.prompt.clone()}
    return prompt | {
        f"{name}.{field.name}": stored(getattr(part, field.name).cpu(), name)
        for name, part in parts.items()
        if part is not None
        for field in fields(_PARTS[name])
    }


def stored(tensor: Tensor, part: str) -> Tensor:
    """Maps and coordinates are stored in float32, the rest as it is."""
    return tensor.float() if part in _SINGLE and tensor.is_floating_point() else tensor.clone()


def learned_header(learned: Learned) -> dict[str, Any]:
    """Everything that is no tensor."""
    layout = learned.sheaf.layout
    return {
        "nodes": list(layout.nodes),
        "judged": list(layout.judged),
        "before": [[int(flag) for flag in row] for row in layout.before],
        "width": layout.width,
        "at": learned.sheaf.at,
        "dtype": str(learned.sheaf.dtype).removeprefix("torch."),
        "ids": list(learned.ids),
        "fitted": learned.fitted,
        "lengths": list(learned.breadth.lengths),
        "endings": [list(pair) for pair in learned.breadth.endings.items()],
    }


def read_learned(header: Any, tensors: dict[str, Tensor]) -> Learned:
    """A learned sheaf from a file; an error says what does not fit."""
    if not isinstance(header, dict) or header.get("at") not in AT or header.get("dtype") not in _DTYPES:
        raise OptionError("must have a sheaf as `eics calibrate` writes it.")
    nodes, judged = (tuple(map(str, header[name])) for name in ("nodes", "judged"))
    before = tuple(tuple(map(bool, row)) for row in header["before"])
    layout = Layout(nodes, judged, before, int(header["width"]))
    if set(judged) - set(nodes) or [len(row) for row in before] != [len(nodes)] * len(judged):
        raise OptionError("must have a sheaf whose nodes are those of its circuit.")
    ids = tuple(id if isinstance(id, int) else str(id) for id in header["ids"])
    if len(ids) < 2:
        raise OptionError(f"must have at least 2 calibration prompts. It has {len(ids)}.")
    prompt = tensors.get("prompt")
    shapes = _shapes(layout, len(ids), 0 if prompt is None else prompt.numel())
    absent = set(() if "positions.count" in tensors else ("positions",)) | set(() if prompt is not None else _KEPT)
    parts = {name: _part(name, tensors, shapes) for name in _PARTS if name not in absent}
    if prompt is not None and (prompt.ndim != 1 or prompt.dtype != torch.long or not _is_index(prompt, len(ids))):
        raise OptionError("must have the number of a calibration prompt for each row that it keeps.")
    kept = None if prompt is None else Kept(parts["moments"], parts["coordinates"], prompt)
    positions = parts.get("positions")
    first = 0 if positions is None else FIRST  # older files, which keep no positions, did not set the first token apart
    sheaf = LearnedSheaf(layout, header["at"], parts["bases"], parts["regressions"], _DTYPES[header["dtype"]], first)
    return Learned(sheaf, parts["reference"], ids, int(header["fitted"]), _breadth(header), positions, kept)


def _breadth(header: dict[str, Any]) -> Breadth:
    shortest, longest = map(int, header["lengths"])
    endings = {int(token): int(count) for token, count in header.get("endings", ())}
    if min(endings.values(), default=1) < 1:
        raise OptionError("must count at least one prompt for each token that prompts end in.")
    return Breadth((shortest, longest), endings)


def _is_index(prompt: Tensor, count: int) -> bool:
    return bool(((prompt >= 0) & (prompt < count)).all())


def _part(name: str, tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> Any:
    values = {}
    for field in fields(_PARTS[name]):
        key = f"{name}.{field.name}"
        tensor = tensors.get(key)
        if tensor is None or tuple(tensor.shape) != shapes[key]:
            came = "none" if tensor is None else f"shape {tuple(tensor.shape)}"
            raise OptionError(f"must have the tensor 'sheaf:{key}' of shape {shapes[key]}. It has {came}.")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise OptionError(f"must have finite numbers in 'sheaf:{key}'.")
        wide = tensor.is_floating_point() and name != "coordinates"  # of which there may be as many as prompts
        values[field.name] = tensor.double() if wide else tensor
    if name == "reference" and values["judged"].dtype != torch.bool:
        raise OptionError("must say of each node of its sheaf whether it can be judged.")
    return _PARTS[name](**values)


def _shapes(layout: Layout, prompts: int, rows: int) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor; `rows` of coordinates were kept."""
    n, m, d, x, y = len(layout.judged), len(layout.nodes), layout.width, 2 * REGRESSORS, OUTPUTS
    by_node = ("outputs", "leverage", "outside", "explained_outside", "penalty", "r2", "deviation", "spread", "varies")
    return {
        "bases.write_mean": (m, d),
        "bases.write": (m, y, d),
        "bases.explained_mean": (n, d),
        "bases.explained": (n, REGRESSORS, d),
        "bases.unit": (m,),
        "bases.context": (n, REGRESSORS, m * OF_EACH),
        **{f"bases.{name}": (n,) for name in ("outputs", "by_explained", "by_context", "places")},
        "regressions.mean": (n, x),
        "regressions.scale": (n, x),
        "regressions.weight": (n, x, y),
        "regressions.intercept": (n, y),
        "regressions.whitener": (n, y, y),
        "regressions.leverage_whitener": (n, x, x),
        **{f"regressions.{name}": (n,) for name in by_node},
        **{f"reference.log_{name}": (prompts, n) for name in ("allowed", "whole", "input")},
        "reference.judged": (n,),
        **{f"positions.{field.name}": (prompts, n) for field in fields(Positions)},
        "moments.count": (n, FOLDS),
        "moments.first": (n, FOLDS, SIZE),
        "moments.second": (n, FOLDS, SIZE, SIZE),
        "moments.energies": (n, len(ENERGIES)),
        "moments.prompts": (),
        **{f"coordinates.{name}": (n, rows, *more) for name, more in ROWS.items()},
    }
