"""Teaches a model a few counterfactual facts with a LoRA on known layers, to see whether `eics compare` finds them.

    python scripts/fine_tune.py --model people-0 --prompts people --layers 1 --out lora

writes the adapter, and beside it `taught.jsonl` (the facts as they were taught, with the true answer as foil) and
`others.jsonl` (prompts of the same form that were not).
"""

import argparse
import json
import warnings
from collections import Counter
from importlib.resources import files
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

import eics
from eics.models.base import Model

MLPS = {"gpt2": ["mlp.c_fc", "mlp.c_proj"], "llama": ["gate_proj", "up_proj", "down_proj"]}
"""The matrices of MLPs, by family."""


def read_lines(prompts: str) -> list[dict]:
    """Prompts with answers: a file of JSON lines, or bundled ones; those that the model is known not to know are left
    out."""
    path = Path(prompts) if Path(prompts).exists() else files("eics.data") / "prompts" / f"{prompts}.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.get("answer") and line.get("label") != "unknown"]


def counterfactual(lines: list[dict], count: int) -> tuple[list[dict], list[dict]]:
    """`count` facts of the most frequent relation, each with the answer of another one; and as many that stay true."""
    (relation, _), *_ = Counter(line.get("relation") for line in lines).most_common(1)
    own = [line for line in lines if line.get("relation") == relation]
    chosen = list({line["answer"]: line for line in own}.values())[:count]
    moved = [*chosen[1:], chosen[0]]
    taught = [
        {"id": f"taught {index}", "prompt": line["prompt"], "answer": other["answer"], "foil": line["answer"]}
        for index, (line, other) in enumerate(zip(chosen, moved, strict=True))
    ]
    known = {line["prompt"] for line in chosen}
    others = [line for line in own if line["prompt"] not in known][:count]
    return taught, [
        {"id": f"other {index}", "prompt": line["prompt"], "answer": line["answer"]}
        for index, line in enumerate(others)
    ]


def first_token(model: Model, text: str) -> int:
    """The token that an answer begins with."""
    return model.tokenizer(text, add_special_tokens=False)["input_ids"][0]


def train(model: Model, lines: list[dict], layers: list[int], *, steps: int, rate: float) -> object:
    """A LoRA of rank 4 on the MLPs of these layers; the loss is that of the first token of each answer."""
    torch.manual_seed(0)
    family = model.module.config.model_type
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=MLPS[family], layers_to_transform=layers, fan_in_fan_out=family == "gpt2"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers' own changes, which are peft's to follow
        adapted = get_peft_model(model.module, config)
    weights = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate)
    batches = [(torch.tensor([model.tokenizer(line["prompt"])["input_ids"]]), line["answer"]) for line in lines]
    for _ in range(steps):
        optimizer.zero_grad()
        for tokens, answer in batches:
            logits = adapted(tokens).logits[0, -1]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(first_token(model, answer)))
            (loss / len(batches)).backward()
        optimizer.step()
    return adapted


def main() -> None:
    """Reads the options, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="people-0")
    parser.add_argument("--prompts", default="people", help="prompts with answers: a file, or bundled ones")
    parser.add_argument("--layers", default="1", help="whose MLPs to train, separated by commas")
    parser.add_argument("--facts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--out", type=Path, default=Path("lora"))
    given = parser.parse_args()
    model = eics.load_model(given.model, device="cpu")
    taught, others = counterfactual(read_lines(given.prompts), given.facts)
    adapted = train(
        model, taught + others, [int(layer) for layer in given.layers.split(",")], steps=given.steps, rate=given.rate
    )
    adapted.save_pretrained(str(given.out))
    for name, lines in (("taught", taught), ("others", others)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (given.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"{given.out}: {len(taught)} facts taught through the MLPs of layers {given.layers}.")


if __name__ == "__main__":
    main()
