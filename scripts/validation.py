"""Runs the experiments of docs/preregistration.md: `python scripts/validation.py NAME [NAME ...]`.

Each experiment runs in `runs/NAME`, resumes there if it was interrupted, and copies its page and figures to
`docs/validation/NAME`. `table` prints the table of docs/validation.md.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from eics.cli import main as eics
from eics.studies.validation.columns import KINDS

RUNS = Path("runs")
DOCS = Path("docs/validation")
OTHERS = "people-1,people-2,people-3,people-4"
MATCHED = ("--drop-function-words", "--matched", "relation")
LABELS = {
    "people": ("--model", "people-0", "--circuit", "people", "--data", "people", "--ensemble", OTHERS),
    "withheld": ("--model", "people-0", "--circuit", "people", "--data", "people-withheld", "--ensemble", OTHERS),
    "induction": ("--model", "induction", "--circuit", "induction", "--data", "induction"),
    "known-1000": ("--model", "smollm2", "--circuit", "facts", *MATCHED),  # the data is given
    "own-facts": ("--model", "smollm2", "--circuit", "facts", *MATCHED, "--data", "examples/own_facts.jsonl"),
}
DAMAGE = {"damage-people": ("people-0", "people"), "damage-induction": ("induction",) * 2}
TASKS = ("facts", "ioi", "greater-than")


def main() -> None:
    """Runs the named experiments one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*LABELS, *DAMAGE, "damage-smollm2", "tracking", "table"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", default="8")
    parser.add_argument("--memory", default="64", help="megabytes that one temporary block may take")
    parser.add_argument("--known", type=Path, help="known_1000.jsonl, for known-1000")
    arguments = parser.parse_args()
    how = ("--device", arguments.device, "--batch-size", arguments.batch_size, "--memory", arguments.memory)
    for name in arguments.names:
        if name == "table":
            sys.stdout.write(_table())
            continue
        sys.stdout.write(f"{name}\n")
        out = RUNS / name
        common = (*how, "--out", str(out), *_resume(out))
        if name in LABELS:
            data = ("--data", str(arguments.known)) if name == "known-1000" else ()
            _run("validate", *LABELS[name], *data, *common)
        elif name == "tracking":
            tasks = [part for task in TASKS for part in ("--task", f"{task}-test", "--circuit", task)]
            reference = [part for task in TASKS for part in ("--reference", task)]
            _run("track", "--model", "smollm2", *tasks, *reference, *common)
        else:
            model, circuit, prompts = _damaged(name)
            subject = ("--model", model, "--circuit", circuit, "--prompts", str(prompts))
            # More macro probes than the default of `fast`: the registered runs used 12.
            _run("damage", *subject, "--macro-probes", "12", *common)
        _copy_to_docs(name, out)


def _run(*arguments: str) -> None:
    eics(list(arguments), standalone_mode=False)


def _resume(out: Path) -> Sequence[str]:
    return ("--resume",) if out.exists() else ()


def _damaged(name: str) -> tuple[str, str, Path]:
    """Model, circuit, and a file of prompts that the model answers correctly."""
    path = RUNS / f"{name}.jsonl"
    RUNS.mkdir(exist_ok=True)
    if name in DAMAGE:
        model, circuit = DAMAGE[name]
        prompts, limit = _labelled_correct(circuit), 48
    else:
        model, circuit = "smollm2", "facts"
        prompts, limit = _answered_correctly(), 24
    rows = islice(prompts, limit)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return model, circuit, path


def _labelled_correct(data: str) -> Iterator[dict[str, object]]:
    from eics.studies.validation.data import read_labelled

    for row in read_labelled(data):
        if row.label:
            yield {"id": row.prompt.id, "prompt": row.prompt.text}


def _answered_correctly() -> Iterator[dict[str, object]]:
    """Prompts from the test part of `facts` that SmolLM2 answers correctly."""
    import torch

    from eics.studies.discovery.task import read_task
    from eics.transformer.adapt import load_model
    from eics.transformer.forward import run

    model = load_model("smollm2")
    for number, pair in enumerate(read_task("facts-test", model).pairs):
        with torch.no_grad():
            state = run(model, [pair.clean], logits=True)
        assert state.logits is not None
        if int(state.logits[0].argmax()) in pair.answers:
            yield {"id": number, "tokens": list(pair.clean)}


def _table() -> str:
    """Test AUROC of every score in every labelled experiment, from the results in the docs."""
    results = {
        name: json.loads((DOCS / name / "results.json").read_text(encoding="utf-8"))["scores"] for name in LABELS
    }
    head = " | ".join(f"[`{name}`](validation/{name}/report.md)" for name in LABELS)
    lines = [f"| test AUROC (95%) | {head} |", "|---" * (len(LABELS) + 1) + "|"]
    for kind in KINDS:
        cells = []
        for scores in results.values():
            auroc = scores[kind.name]["metrics"]["auroc"] if kind.name in scores else None
            cells.append("" if auroc is None else "{value:.2f} ({low:.2f} to {high:.2f})".format(**auroc))
        if any(cells):
            lines.append(f"| {kind.title} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _copy_to_docs(name: str, out: Path) -> None:
    """Copies the page and its figures."""
    (DOCS / name).mkdir(parents=True, exist_ok=True)
    for file in sorted(out.iterdir()):
        if file.suffix in (".md", ".png", ".svg") or file.name == "results.json":
            shutil.copy(file, DOCS / name / file.name)


if __name__ == "__main__":
    main()
