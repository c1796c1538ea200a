"""Calibrations on disk: safetensors (numbers in a JSON header, the rest as tensors) or plain JSON; no code in either.

The JSON document has `format: eics-calibration`, `version` and the fields of `Calibration`. In a `.json` file it also
has `means`, lists of numbers by node; in a `.safetensors` file it is the entry `calibration` of the header, and means
are float64 tensors named `write:a3.h7` and `read:a3`. A learned sheaf has tensors named `sheaf:...` and the entry
`sheaf` in the document (`sheaf/tensors.py`); it needs a `.safetensors` file.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eics.data.files import nameable, write_bytes, write_text
from eics.data.json_text import parse_json
from eics.errors import OptionError, as_path
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.calibration.calibration import QUANTITIES, Calibration
from eics.scoring.calibration.sheaf.tensors import learned_header, learned_tensors, read_learned
from eics.scoring.record_types import field_problem, is_number
from eics.transformer.means import Means

FORMAT = "eics-calibration"
VERSION = 3
WITH_POSITIONS = 4
"""Of files that keep what tracing compares positions with."""
READABLE = (1, 2, 3, 4)
SUFFIXES = (".safetensors", ".json")


def check_calibration_path(path: Path, *, learned: bool = False) -> None:
    """Raises an error, before any work is done, for a path that a calibration cannot be written to; a learned sheaf
    takes a `.safetensors` file."""
    suffixes = SUFFIXES[:1] if learned else SUFFIXES
    if path.suffix not in suffixes or not path.parent.is_dir():
        raise OptionError.of("out", f"a {' or '.join(suffixes)} file in a folder that exists", str(path))


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Writes a calibration in the format of the file's suffix; the file appears whole, in place of an earlier one."""
    path = as_path(path, "calibration file")
    check_calibration_path(path, learned=calibration.learned is not None)
    fields = {name: getattr(calibration, name) for name in _FIELDS}
    chosen = None if calibration.chosen is None else asdict(calibration.chosen)
    means, learned = calibration.means, calibration.learned
    version = VERSION if learned is None or learned.positions is None else WITH_POSITIONS
    document = {"format": FORMAT, "version": version, **fields, "chosen": chosen}
    if path.suffix == ".json":
        assert means is not None  # only a learned sheaf can be without them
        lists = {
            part: {name: mean.tolist() for name, mean in getattr(means, part).items()} for part in ("writes", "reads")
        }
        write_text(path, _dump(document | {"means": lists}) + "\n")
        return
    from safetensors.torch import save

    tensors = {} if means is None else means.tensors
    if learned is not None:
        tensors |= {f"sheaf:{name}": tensor for name, tensor in learned_tensors(learned).items()}
        document["sheaf"] = learned_header(learned)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = _dump(document).encode("utf-8", "backslashreplace").decode()  # a lone surrogate as the escape of JSON
    write_bytes(path, save(contiguous, {"calibration": header}))


def load_calibration(path: str | Path) -> Calibration:
    """Reads a calibration; the error for any other file says what is wrong with it."""
    path = nameable(as_path(path, "calibration file"))
    try:
        document, means, tensors = _read_json(path) if path.suffix == ".json" else _read_safetensors(path)
        return _calibration(document, means, tensors)
    except OptionError as error:
        raise OptionError(f"The calibration {str(path)!r} {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"The calibration {str(path)!r} must have every field that `eics calibrate` writes. Could not read {error}."
        ) from None


def as_calibration(given: Any) -> Calibration:
    """A calibration, read from a file if a path is given."""
    if isinstance(given, str | Path):
        return load_calibration(given)
    if not isinstance(given, Calibration):
        raise OptionError.of("calibration", "an eics.Calibration or the path of its file", given)
    return given


_FIELDS = (
    "model", "circuit", "options", "alpha", "prompts", "quantiles", "answer", "tokens", "fingerprint", "seed", "group",
)  # fmt: skip


def _dump(document: dict[str, Any]) -> str:
    return json.dumps(document, allow_nan=False, ensure_ascii=False)


def _read_json(path: Path) -> tuple[dict[str, Any], Means, dict[str, Tensor]]:
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise OptionError(f"must be a readable file of JSON: {error}.") from None
    _check_format(document)
    parts = [
        {name: torch.tensor(values, dtype=torch.float64) for name, values in document["means"][part].items()}
        for part in ("writes", "reads")
    ]
    return document, Means(*parts), {}


def _read_safetensors(path: Path) -> tuple[dict[str, Any], Means, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"must be a safetensors or .json file that can be read: {reason}.") from None
    try:
        document = parse_json(metadata.get("calibration", "null"))
    except json.JSONDecodeError as error:
        raise OptionError(f"must have JSON in its header: {error}.") from None
    _check_format(document)
    named = [(*name.partition(":")[::2], tensor) for name, tensor in tensors.items()]
    parts = [{name: tensor.double() for kind, name, tensor in named if kind == part} for part in ("write", "read")]
    return document, Means(*parts), {name: tensor for kind, name, tensor in named if kind == "sheaf"}


def _check_format(document: Any) -> None:
    header = document if isinstance(document, dict) else {}
    format, version = header.get("format"), header.get("version")
    if format != FORMAT or version not in READABLE:
        raise OptionError(
            f"must have format {FORMAT!r}, version {VERSION} or {WITH_POSITIONS}. Got format {format!r}, version "
            f"{version!r}: make it with `eics calibrate`."
        )


def _calibration(document: dict[str, Any], means: Means, tensors: dict[str, Tensor]) -> Calibration:
    chosen, sheaf = document["chosen"], document.get("sheaf")
    alone = sheaf is not None and document["alpha"] is None  # nothing but a learned sheaf
    alpha = None if alone else float(document["alpha"])
    quantiles = {name: tuple(map(float, document["quantiles"][name])) for name in document["quantiles"]}
    if alpha is not None and not 0 < alpha < math.inf:
        raise OptionError(f"must have an alpha that is a finite number > 0. Got {alpha!r}.")
    for name, values in quantiles.items():
        rising = len(values) > 1 and list(values) == sorted(values) and all(map(math.isfinite, values))
        if name not in QUANTITIES or not rising:
            raise OptionError(f"must have quantiles of {', '.join(QUANTITIES)} that never fall. Got {name!r}.")
    if "eics" not in quantiles and not alone:
        raise OptionError("must have quantiles of eics.")
    for name, kind in (("model", "model"), ("circuit", "circuit"), ("options", "options"), ("answer", "seed"),
                       ("tokens", "token_ids"), ("fingerprint", "fingerprint"), ("seed", "seed"),
                       ("group", "prompt")):  # fmt: skip
        if problem := field_problem(kind, document.get(name)):
            raise OptionError(f"has a {name} that {problem}.")
    odd = next((name for part in (means.writes, means.reads) for name in part if not name.isascii()), None)
    if odd is not None:
        raise OptionError(f"must have means of a model's nodes. Got {odd!r}.")
    widths = {tuple(mean.shape) for part in (means.writes, means.reads) for mean in part.values()}
    if not alone and (len(widths) != 1 or len(next(iter(widths))) != 1):
        raise OptionError(f"must have means that are vectors of one width. Got shapes {sorted(widths)}.")
    if chosen is not None:
        chosen = AlphaCalibration(**chosen | {"quartiles": tuple(chosen["quartiles"])})
        if not all(map(is_number, (chosen.alpha, chosen.target, chosen.median, chosen.prompts, *chosen.quartiles))):
            raise OptionError("must say how its alpha was chosen in finite numbers.")
    tokens = document["tokens"]
    options = dict(document["options"])
    if document["version"] == 1 and options.get("mode") == "fast":
        options["mode"] = "limit"  # what `fast` was until version 2
    return Calibration(
        model=document["model"],
        circuit=dict(document["circuit"]),
        options=options,
        alpha=alpha,
        chosen=chosen,
        prompts=int(document["prompts"]),
        quantiles=quantiles,
        means=None if alone else means,
        answer=document["answer"],
        tokens=None if tokens is None else tuple(tokens),
        fingerprint=document.get("fingerprint"),
        learned=None if sheaf is None else read_learned(sheaf, tensors),
        seed=int(document.get("seed") or 0),
        group=document.get("group"),
    )
