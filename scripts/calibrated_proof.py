"""Runs the experiments of docs/preregistration-calibrated.md: `python scripts/calibrated_proof.py NAME --known FILE`.

Each writes its numbers to `docs/validation/calibrated/NAME.json`, and `report` makes the tables and figures of
docs/validation-calibrated.md from them. `all` runs everything: about an hour on two cores. SmolLM2 and Gemma come
from `eics models fetch`; ROME's known_1000 is given by path.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eics.data.files import write_text
from proof import damage, explored, labels, reasons, report, unlike, weights

OUT = Path("docs/validation/calibrated")
EXPERIMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "facts": damage.facts,
    "ioi": damage.ioi,
    "greater-than": damage.greater,
    "second-model": damage.second_model,
    "unlike": unlike.unlike,
    "reasons": reasons.other_reasons,
    "labels": labels.labels,
    "weights": weights.weights,
    "circuits": damage.circuits,
    "explored": explored.explored,
}


def main() -> None:
    """Runs the named experiments one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all", "report"])
    parser.add_argument("--known", type=Path, help="ROME's known_1000 as JSON lines: prompt, answer, subject, relation")
    given = parser.parse_args()
    names = list(EXPERIMENTS) if "all" in given.names else [name for name in given.names if name != "report"]
    if set(names) - {"ioi", "greater-than", "reasons"} and given.known is None:
        parser.error("--known FILE must be given: these experiments run on ROME's known_1000")
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        started = time.monotonic()
        result = EXPERIMENTS[name](given.known)
        write_text(OUT / f"{name}.json", json.dumps(result, indent=1) + "\n")
        sys.stderr.write(f"{name}: {time.monotonic() - started:.0f} s\n")
    if {"all", "report"} & set(given.names):
        report.write(OUT)


if __name__ == "__main__":
    main()
