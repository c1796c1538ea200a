"""What discovery costs: `python benchmarks/discovery.py --shape llama-1b --device cuda --tokens 128,512,2048`.

Scores every edge of a model with random weights by EAP and EAP-IG on one pair. Prints the time as a multiple of a plain
forward pass and, on a GPU, the memory beyond the model, both measured in this run.
"""

import argparse
from statistics import median

import torch

from eics.errors import EICSError
from eics.studies.bench.measure import peak_memory, timed
from eics.studies.bench.shapes import SHAPES, gpt2, llama, random_model
from eics.studies.discovery.eap import How, attribute
from eics.studies.discovery.task import Pair, Task

_SHAPES = {
    "gpt2": gpt2(768, 12, 12, 50257, 4096),  # with room for long prompts
    "llama-1b": SHAPES["llama-1b"],
    "tiny": llama(64, 128, 2, 4, 4, 100, tied=False),
}


def main() -> None:
    """Prints a line for each length and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=_SHAPES, default="gpt2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", default="16,128")
    parser.add_argument("--memory", type=float, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    model = random_model(_SHAPES[given.shape], name=given.shape, device=given.device)
    device, blocks = model.device, model.transformer.blocks
    print(f"{given.shape}: {len(blocks)} layers of {blocks[0].attention.heads} heads, width {model.transformer.width}")
    print(f"{'tokens':>7} {'method':>8} {'forward ms':>11} {'forward-equivalents':>20} {'MB beyond the model':>20}")
    for length in map(int, given.tokens.split(",")):
        draw = torch.Generator().manual_seed(length)
        clean, corrupted = (torch.randint(0, model.vocabulary, (length,), generator=draw).tolist() for _ in range(2))
        task = Task("random", (Pair(tuple(clean), tuple(corrupted), (1,), (2,)),))
        ids = torch.tensor([clean], device=device)

        @torch.no_grad()
        def forward(ids: torch.Tensor = ids) -> None:
            model.module(ids, logits_to_keep=1)

        forward()  # warm-up
        unit = median(timed(forward, device) for _ in range(given.repeats))
        for how in (How(method="eap"), How(method="eap-ig", steps=5)):

            def work(how: How = how, task: Task = task) -> None:
                attribute(model, task, how, memory=given.memory)

            memory, _ = peak_memory(work, device)
            cost = median(timed(work, device) for _ in range(given.repeats)) / unit
            shown = f"{memory:.0f}" if device.type == "cuda" else ""
            print(f"{length:>7} {how.method:>8} {1e3 * unit:>11.1f} {cost:>20.1f} {shown:>20}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except EICSError as error:
        raise SystemExit(str(error)) from None
