"""Peak resident memory of scoring beyond the loaded model, each mode in its own process. Linux only.

    eics models fetch smollm2
    python benchmarks/memory.py                                  # fast, limit, lanczos, exact; exact takes minutes
    python benchmarks/memory.py --modes fast,lanczos --tokens 128

A circuit of 20 nodes spread over the depth of the model is scored on one prompt. Prints, for each mode, the resident
memory once the model is loaded and has run once (weights, Python, torch), the peak while scoring, their difference, and
the time.
"""

import argparse
import json
import subprocess
import sys
import time

import eics
from eics.models.base import Model
from eics.studies.bench.measure import forget_peak, megabytes


def chain_of_layers(model: Model, nodes: int) -> eics.Circuit:
    """Input, evenly spread heads and MLPs, read-out; each node reads the input and the three nodes before it."""
    blocks = model.transformer.blocks
    sites = [name for i, block in enumerate(blocks) for name in (f"a{i}.h{i % block.attention.heads}", f"m{i}")]
    inner = nodes - 2
    if not 1 <= inner <= len(sites):
        raise SystemExit(f"--nodes must be 3 to {len(sites) + 2} for this model. Got {nodes}.")
    order = ["input", *(sites[index * len(sites) // inner] for index in range(inner)), "logits"]
    before = {target: {"input", *order[max(0, i - 3) : i]} for i, target in enumerate(order) if i}
    return eics.Circuit((source, target) for target, sources in before.items() for source in sorted(sources))


def measure(arguments: argparse.Namespace, mode: str) -> dict[str, float]:
    """Megabytes and seconds of one mode, measured in this process."""
    import torch

    torch.set_num_threads(arguments.threads)
    model = eics.load_model(arguments.model)
    circuit = chain_of_layers(model, arguments.nodes)
    stream = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.vocabulary, (arguments.tokens,), generator=stream).tolist()
    with torch.no_grad():
        model.module(torch.tensor([tokens]))  # makes weights that are mapped from disk resident
    if not forget_peak():  # of loading
        raise SystemExit("Peak memory is read from /proc, which must be writable: this needs Linux.")
    loaded = megabytes("VmRSS")
    start = time.perf_counter()
    score = eics.score(model, circuit, tokens, mode=mode, preset=arguments.preset)
    seconds = time.perf_counter() - start
    if score.status == "failed":
        raise SystemExit(f"{mode}: {score.reason}")
    peak = megabytes("VmHWM")
    return {"nodes": len(circuit.nodes), "loaded": loaded, "peak": peak, "beyond": peak - loaded, "seconds": seconds}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="folder, hub id or name from `eics models list`")
    parser.add_argument("--modes", default="fast,limit,lanczos,exact", help="separated by commas")
    parser.add_argument("--preset", default="paper", choices=["paper", "well-posed"])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one mode, in this process
    return parser.parse_args()


def main() -> None:
    """Prints a line for each mode."""
    arguments = _arguments()
    if arguments.here:
        try:
            print(json.dumps(measure(arguments, arguments.modes)))
        except eics.EICSError as error:
            raise SystemExit(str(error)) from None
        return
    print(f"{arguments.model}, {arguments.nodes} nodes, {arguments.tokens} tokens, preset {arguments.preset}; MB")
    print(f"{'mode':<8} {'loaded':>8} {'peak':>8} {'beyond':>8} {'seconds':>8}")
    for mode in arguments.modes.split(","):
        command = [sys.executable, __file__, *sys.argv[1:], "--here", "--modes", mode]
        result = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if result.returncode != 0:
            raise SystemExit(result.returncode)
        measured = json.loads(result.stdout)
        numbers = " ".join(f"{measured[name]:8.0f}" for name in ("loaded", "peak", "beyond", "seconds"))
        print(f"{mode:<8} {numbers}", flush=True)


if __name__ == "__main__":
    main()
