"""What discovery costs: `python benchmarks/discovery.py --shape llama-1b --device cuda --tokens 128,512,2048`.

Scores every edge of a model with random weights by EAP and EAP-IG, one pair, and prints the time over that of a plain
forward pass and the memory beyond the model, both measured in this run. On the CPU memory is not measured.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from eics.studies.discovery.eap import How, attribute
from eics.studies.discovery.task import Pair, Task
from eics.transformer.adapt import adapt

SHAPES = {
    "gpt2": lambda: transformers.GPT2Config(n_positions=4096),
    "llama-1b": lambda: transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128_256, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "tiny": lambda: transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
    ),
}  # fmt: skip


def timed(function: Callable[[], object], device: str, repeats: int) -> float:
    """Median seconds, after one warm-up."""
    times = []
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """One row for each length and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", default="16,128")
    parser.add_argument("--memory", type=float, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    with torch.device(given.device):
        module = transformers.AutoModelForCausalLM.from_config(SHAPES[given.shape](), dtype=torch.float32)
    model = adapt(module.eval())
    blocks = model.transformer.blocks
    print(f"{given.shape}: {len(blocks)} layers of {blocks[0].attention.heads} heads, width {model.transformer.width}")
    print(f"{'tokens':>7} {'method':>8} {'forward ms':>11} {'forward-equivalents':>20} {'MB beyond the model':>20}")
    for length in map(int, given.tokens.split(",")):
        draw = torch.Generator().manual_seed(length)
        clean, corrupted = (torch.randint(0, model.vocabulary, (length,), generator=draw).tolist() for _ in range(2))
        task = Task("random", (Pair(tuple(clean), tuple(corrupted), (1,), (2,)),))
        ids = torch.tensor([clean], device=given.device)
        with torch.no_grad():
            forward = timed(lambda ids=ids: module(ids, logits_to_keep=1), given.device, given.repeats)
        for how in (How(method="eap"), How(method="eap-ig", steps=5)):
            before = torch.cuda.memory_allocated() if given.device == "cuda" else 0
            if given.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            cost = timed(
                lambda how=how, task=task: attribute(model, task, how, memory=given.memory), given.device, given.repeats
            )
            peak = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:.0f}" if given.device == "cuda" else ""
            row = f"{length:>7} {how.method:>8} {1e3 * forward:>11.1f} {cost / forward:>20.1f} {peak:>20}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
