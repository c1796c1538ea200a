"""Makes the validation world: `python scripts/make_world.py`, about nine minutes on one core.

Five GPT-2s that memorise facts about invented people (`world_people.py`), one that learns to look up what followed a
word (`world_induction.py`), prompts labelled by construction, and tasks for circuit discovery. Writes
`src/eics/data/worlds/NAME/` (for transformers to load), `prompts/*.jsonl`, `tasks/*.jsonl`, and `worlds/manifest.json`
with sizes, training, measurements, and the sha256 of every file; prints the table of docs/validation-world.md. Training
uses fixed seeds and a single thread, so two runs on one machine are equal; another processor or torch version may round
differently.

Accuracy and max-probability are measured on people who appear in no labelled prompt.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from scipy.stats import mannwhitneyu
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

import world_induction
import world_people
from eics.models.download.convert import write_model, write_tokenizer
from world_people import ASKED, World

SPECIAL = ("<unk>", "<s>")
NOTHING = -100  # label of a token that is not learned
SEEDS = 5
NAMES = (*(f"people-{seed}" for seed in range(SEEDS)), "induction")
PAIRS = 96  # pairs per induction task

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """The size of a model and its training."""

    layers: int
    width: int
    heads: int
    inner: int
    context: int
    tied: bool
    steps: int
    batch: int
    rate: float
    spread: float = 0.02  # standard deviation of the initial weights


PEOPLE = Recipe(layers=3, width=64, heads=8, inner=256, context=16, tied=True, steps=1500, batch=96, rate=4e-3)
INDUCTION = Recipe(
    layers=2, width=64, heads=4, inner=128, context=32, tied=False, steps=1000, batch=64, rate=3e-3, spread=0.1
)  # fmt: skip


def main() -> None:
    """Makes everything; fewer `--steps` give badly trained models quickly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("src/eics/data"), help="folder of worlds/, prompts/ and tasks/"
    )
    parser.add_argument("--jobs", type=int, default=1, help="models to train at a time; does not change them")
    parser.add_argument("--steps", type=int, help="training steps, instead of those of the recipes")
    given = parser.parse_args()
    make(given.out, jobs=given.jobs, steps=given.steps, log=lambda line: print(line, file=sys.stderr))  # noqa: T201
    sys.stdout.write(table(json.loads((given.out / "worlds" / "manifest.json").read_text(encoding="utf-8"))))


def make(out: Path, *, jobs: int = 1, steps: int | None = None, log: Callable[[str], None] = lambda _: None) -> None:
    """Writes prompts and tasks, trains `jobs` models at a time (one thread each), and writes the manifest."""
    written = write_lines(world_people.make_world(), out)
    entries: dict[str, Any] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for name, entry in zip(NAMES, pool.map(partial(make_model, out=out, steps=steps), NAMES), strict=True):
            entries[name] = entry
            written += (out / "worlds" / name).iterdir()
            log(f"{name}: {json.dumps(entry['measured'])}")
    sums = {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(written)}
    manifest = {"command": "python scripts/make_world.py", "models": entries, "sha256": sums}
    (out / "worlds" / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def make_model(name: str, out: Path, steps: int | None) -> dict[str, Any]:
    """Trains, measures and writes a model; returns its entry in the manifest."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    if name == "induction":
        recipe, words, seed, end = INDUCTION, list(world_induction.WORDS), 0, None
        module = trained(recipe, words, induction_batches(seed), seed, steps)
        measured = induction_measured(module)
        description = f"looks up what followed a word (GPT-2, {recipe.layers} layers)"
    else:
        recipe, words, seed, end = PEOPLE, world_people.words(), int(name.rsplit("-", 1)[1]), "."
        world = world_people.make_world()
        module = trained(recipe, words, people_batches(world, seed), seed, steps)
        measured = people_measured(module, world)
        description = f"knows invented people (GPT-2, {recipe.layers} layers, seed {seed} of 0 to {SEEDS - 1})"
    write(module, words, out / "worlds" / name, end=end)
    return {"about": description, "recipe": asdict(recipe), "seed": seed, "measured": measured}


def table(manifest: dict[str, Any]) -> str:
    """The measurements as a Markdown table, one line per model and kind of question."""
    rows = [
        "| model | known, against unknown | accuracy: known | unknown | median max-probability on unknown | "
        "AUROC of max-probability |",
        "|---|---|---|---|---|---|",
    ]
    kinds = {"people": (("strangers", "known"), ("withheld", "known"))}
    for name, model in manifest["models"].items():
        for kind, good in kinds.get(name.split("-")[0], (("unseen", "coherent"), ("inconsistent", "coherent"))):
            keys = (f"{good}_accuracy", "other_accuracy", "other_median_max_probability", "max_probability_auroc")
            numbers = [f"{model['measured'][f'{kind}_{key}']:.3f}" for key in keys]
            rows.append(f"| {' | '.join([f'`{name}`', f'{good}, {kind}', *numbers])} |")
    return "\n".join([*rows, ""])


def trained(recipe: Recipe, words: list[str], batches: Batches, seed: int, steps: int | None) -> GPT2LMHeadModel:
    """A new model trained by AdamW: 100 steps of warm-up, then linear decay to zero."""
    tokens = [*SPECIAL, *words]
    config = GPT2Config(
        vocab_size=len(tokens), n_positions=recipe.context, n_embd=recipe.width, n_layer=recipe.layers,
        n_head=recipe.heads, n_inner=recipe.inner, tie_word_embeddings=recipe.tied, initializer_range=recipe.spread,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=tokens.index("<s>"), eos_token_id=tokens.index(".") if "." in tokens else None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = GPT2LMHeadModel(config)
    count = steps or recipe.steps
    optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 100) * (1 - step / count))
    for _, (inputs, labels) in zip(range(count), batches, strict=False):
        logits = module(inputs).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=NOTHING)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return module.eval()


def people_batches(world: World, seed: int) -> Batches:
    """All sentences, shuffled in every epoch; every token is learned, including names."""
    tokens, lengths = encoded(world.sentences(), world_people.words())
    labels = tokens.masked_fill(torch.arange(tokens.shape[1]) >= lengths.unsqueeze(1), NOTHING)
    draw = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(tokens), generator=draw).split(PEOPLE.batch):
            yield tokens[rows], labels[rows]


def induction_batches(seed: int) -> Batches:
    """New contexts in every batch, after the token that begins every text."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        tokens, labels = world_induction.batch(INDUCTION.batch, len(SPECIAL), draw)
        begin = torch.full((INDUCTION.batch, 1), SPECIAL.index("<s>"))
        yield torch.cat([begin, tokens], dim=1), torch.cat([torch.full_like(begin, NOTHING), labels], dim=1)


def encoded(texts: list[str], words: list[str]) -> tuple[Tensor, Tensor]:
    """Token ids, padded on the right, and lengths; the same ids as from the tokenizer that `write` writes."""
    ids = {word: index for index, word in enumerate([*SPECIAL, *words])}
    rows = [torch.tensor([ids["<s>"], *(ids[word] for word in text.split())]) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def predicted(module: GPT2LMHeadModel, lines: list[dict[str, Any]], words: list[str]) -> tuple[Tensor, Tensor]:
    """For each prompt: whether the most likely token is the answer, and its probability."""
    tokens, lengths = encoded([line["prompt"] for line in lines], words)
    answers = torch.tensor([len(SPECIAL) + words.index(line["answer"].strip()) for line in lines])
    with torch.no_grad():
        logits = module(tokens).logits[torch.arange(len(lines)), lengths - 1]
    best = logits.softmax(dim=-1).max(dim=-1)
    return (best.indices == answers).double(), best.values


def people_measured(module: GPT2LMHeadModel, world: World) -> dict[str, float]:
    """Accuracy on all written facts; accuracy and max-probability on people who appear in no labelled prompt."""
    words, rest, turns = world_people.words(), slice(ASKED, None), range(3)
    everyone = [line for turn in turns for line in world_people.prompts(world, slice(None), turn)]
    written = [line for line in everyone if line["label"] == "known"]
    measured = {"written_accuracy": float(predicted(module, written, words)[0].mean())}
    for name, make_lines in (("strangers", world_people.prompts), ("withheld", world_people.withheld_prompts)):
        lines = [line for turn in turns for line in make_lines(world, rest, turn)]
        measured |= {f"{name}_{key}": value for key, value in _by_label(module, lines, words, "known").items()}
    return measured


def induction_measured(module: GPT2LMHeadModel) -> dict[str, float]:
    """Accuracy and max-probability on contexts that appear in no labelled prompt."""
    measured = {}
    for kind in ("unseen", "inconsistent"):
        draw = random.Random(f"measured {kind}")
        lines = []
        for index in range(200):
            length = world_induction.LENGTHS[index % len(world_induction.LENGTHS)]
            coherent, broken, answer, _ = world_induction.twin(draw, kind, length)
            lines += [{"prompt": coherent, "answer": answer, "label": "coherent"}]
            lines += [{"prompt": broken, "answer": answer, "label": "broken"}]
        by_label = _by_label(module, lines, list(world_induction.WORDS), "coherent")
        measured |= {f"{kind}_{key}": value for key, value in by_label.items()}
    return measured


def _by_label(module: GPT2LMHeadModel, lines: list[dict[str, Any]], words: list[str], good: str) -> dict[str, float]:
    """Accuracy on good and on other prompts, and how well max-probability alone separates the two (AUROC)."""
    right, confidence = predicted(module, lines, words)
    known = torch.tensor([line["label"] == good for line in lines])
    above = mannwhitneyu(confidence[known], confidence[~known]).statistic
    return {
        f"{good}_accuracy": float(right[known].mean()),
        "other_accuracy": float(right[~known].mean()),
        "other_median_max_probability": float(confidence[~known].median()),
        "max_probability_auroc": float(above / (known.sum() * (~known).sum())),
    }


def write(module: GPT2LMHeadModel, words: list[str], folder: Path, *, end: str | None) -> None:
    """Writes the folder that transformers loads."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights = module.state_dict()
    if module.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    config = json.loads(module.config.to_json_string()) | {"architectures": [type(module).__name__]}
    write_model(config, {name: tensor.numpy() for name, tensor in weights.items()}, folder)
    tokens = [*SPECIAL, *words]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"bos": tokens.index("<s>"), "unk": tokens.index("<unk>"), "eos": tokens.index(end) if end else None}
    write_tokenizer(tokenizer, tokens, named, folder, add_bos=True)
    for path in folder.iterdir():
        path.chmod(0o644)


def write_lines(world: World, out: Path) -> list[Path]:
    """Writes the labelled prompts and the tasks; returns their paths."""
    files: dict[str, list[Any]] = {
        "prompts/people": world_people.prompts(world),
        "prompts/people-withheld": world_people.withheld_prompts(world),
        "prompts/induction": world_induction.prompts(),
        "tasks/people": world_people.pairs(world, 0),
        "tasks/people-test": world_people.pairs(world, 1),
        "tasks/induction": world_induction.pairs(0, PAIRS),
        "tasks/induction-test": world_induction.pairs(1, PAIRS),
    }
    written = []
    for name, lines in files.items():
        path = out / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    main()
