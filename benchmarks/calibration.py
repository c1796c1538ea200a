"""Peak memory and time of learning what is usual, by the number of prompts, each in its own process. Linux only.

    python benchmarks/calibration.py                                     # 1,000, 10,000 and 100,000 prompts: minutes
    python benchmarks/calibration.py --prompts 1000,4000 --at all --keep-moments

Random token lists of 4 to 8 tokens calibrate a bundled model and circuit (`terms="sheaf"`), and the calibration is
written, read and summed up, as `eics calibrate` and `eics calibration show` do. Prints, for each number of prompts, the
resident memory once model and prompts are there, the peak beyond it, the size of the file, and the seconds of the fit
and of the rest.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import eics
from eics.models.prompts import as_prompts
from eics.studies.bench.measure import forget_peak, megabytes

SHORTEST, LONGEST = 4, 8  # tokens


def random_prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Token lists drawn with a seed, of the lengths above."""
    draw = np.random.default_rng(0)
    bounds = np.concatenate([[0], draw.integers(SHORTEST, LONGEST + 1, size=count).cumsum()]).tolist()
    tokens = draw.integers(0, vocabulary, size=bounds[-1]).tolist()
    return [tokens[start:end] for start, end in pairwise(bounds)]


def measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    """Megabytes and seconds of one calibration, measured in this process."""
    import torch

    from eics.scoring.calibration.summary import node_summaries, sheaf_sentences

    torch.set_num_threads(arguments.threads)
    model, circuit = eics.load_model(arguments.model), eics.load_circuit(arguments.circuit)
    how = {"terms": "sheaf", "batch_size": arguments.batch_size, "at": arguments.at}
    eics.calibrate(model, circuit, random_prompts(200, model.vocabulary), **how)  # whatever is imported and cached once
    prompts = as_prompts(random_prompts(count, model.vocabulary))
    if not forget_peak():
        raise SystemExit("Peak memory is read from /proc, which must be writable: this needs Linux.")
    loaded, start = megabytes("VmRSS"), time.perf_counter()
    usual = eics.calibrate(model, circuit, prompts, keep_moments=arguments.keep_moments, **how)
    fitted = time.perf_counter()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "usual.safetensors"
        eics.save_calibration(usual, path)
        size = path.stat().st_size / 1e6
        again = eics.load_calibration(path)
    assert again.learned is not None
    assert again.sha256 == usual.sha256
    node_summaries(again.learned)
    list(sheaf_sentences(again.learned))
    end = time.perf_counter()
    beyond = megabytes("VmHWM") - loaded
    return {"loaded": loaded, "beyond": beyond, "file": size, "fit": fitted - start, "rest": end - fitted}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="people-0", help="folder, hub id or name from `eics models list`")
    parser.add_argument("--circuit", default="people", help="file, or name from `eics circuit list`")
    parser.add_argument("--prompts", default="1000,10000,100000", help="how many, separated by commas")
    parser.add_argument("--at", default="answer", choices=["answer", "all"])
    parser.add_argument("--keep-moments", action="store_true")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one number, in this process
    return parser.parse_args()


def main() -> None:
    """Prints a line for each number of prompts."""
    arguments = _arguments()
    if arguments.here:
        try:
            print(json.dumps(measure(arguments, int(arguments.prompts))))
        except eics.EICSError as error:
            raise SystemExit(str(error)) from None
        return
    print(f"{arguments.model}, {arguments.circuit}, at {arguments.at}, batches of {arguments.batch_size}")
    print(f"{'prompts':>8} {'loaded MB':>10} {'beyond MB':>10} {'file MB':>8} {'fit s':>8} {'rest s':>8}")
    for count in map(int, arguments.prompts.split(",")):
        command = [sys.executable, __file__, *sys.argv[1:], "--here", "--prompts", str(count)]
        result = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if result.returncode != 0:
            raise SystemExit(result.returncode)
        found = json.loads(result.stdout)
        print(
            f"{count:>8} {found['loaded']:>10.0f} {found['beyond']:>10.0f} {found['file']:>8.1f} "
            f"{found['fit']:>8.1f} {found['rest']:>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
