"""Whether a run may be continued: everything that decides a number must be as it was."""

import json
from collections.abc import Mapping
from reprlib import Repr
from typing import Any

from eics.errors import RecordError

_short = Repr()
_short.maxstring = 60
_short.maxother = 60

_FINGERPRINT = "fingerprint"


def check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any], source: str) -> None:
    """Refuses to resume a run whose settings differ, and names the first that does.

    A circuit is its edges and positions, whatever its name. A model is its weights if both sides have its fingerprint,
    otherwise its name.

    >>> check_same({"dtype": "float32"}, {"dtype": "float64"}, "scores.jsonl")
    Traceback (most recent call last):
        ...
    eics.errors.RecordError: --resume must continue with the same dtype. 'scores.jsonl' has 'float32', this run \
'float64': nothing was changed; use what the file has, or another --out.
    """
    ours = json.loads(json.dumps(ours))
    weights = theirs.get(_FINGERPRINT), ours.get(_FINGERPRINT)
    have_weights = None not in weights
    for name, value in ours.items():
        recorded = theirs.get(name)
        if name == _FINGERPRINT or (name == "model" and have_weights):
            continue
        if name == "circuit" and isinstance(recorded, dict) and recorded.get("sha256") == value["sha256"]:
            continue
        if recorded != value:
            raise differs(*_leaf(name, recorded, value), source)
    if have_weights and weights[0] != weights[1]:  # last: another dtype, named above, has other weights too
        raise differs("model", f"weights {str(weights[0])[:12]}", f"weights {str(weights[1])[:12]}", source)


def _leaf(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """The first place where two trees differ: its path and both values."""
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        pairs = [(f"{name}.{key}", theirs.get(key), ours.get(key)) for key in {**theirs, **ours}]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [(f"{name}.{index}", *pair) for index, pair in enumerate(zip(theirs, ours, strict=True))]
    branches = [pair for pair in pairs if pair[1] != pair[2]]
    plain_list = isinstance(ours, list) and not any(isinstance(value, dict | list) for value in ours)
    return (name, theirs, ours) if plain_list or not branches else _leaf(*branches[0])


def differs(what: str, theirs: object, ours: object, source: str) -> RecordError:
    """The error that names what differs between a run on disk and this one."""
    return RecordError(
        f"--resume must continue with the same {what}. {source!r} has {_short.repr(theirs)}, this run "
        f"{_short.repr(ours)}: nothing was changed; use what the file has, or another --out."
    )
