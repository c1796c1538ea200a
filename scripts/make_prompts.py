"""Writes the bundled fact prompts: `python scripts/make_prompts.py`.

`facts` is a reference set for the circuit of that name: the subjects of the task's discovery part (`make_tasks.py`), in
four phrasings for each relation. `facts-withheld` has the subjects of its test part, in the same phrasings.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from make_tasks import RELATIONS, Line

PHRASINGS = {
    "capital": (
        "The capital city of {} is the city of",
        "The government of {} sits in its capital, the city of",
        "The capital of {} has always been the city of",
        "If you travel to {}, its capital is the city of",
    ),
    "language": (
        "The language that people in {} speak is called",
        "People who live in {} mostly speak a language called",
        "In {}, the official language is called",
        "At school, children in {} learn to read a language called",
    ),
    "landmark": (
        "If you want to visit {}, you have to go to the city of",
        "You can see {} when you visit the city of",
        "Tourists who come to see {} travel to the city of",
        "Everyone knows that {} is in the city of",
    ),
    "author": (
        "The author of {} was the writer",
        "The book {} was written by a writer called",
        "The name of the person who wrote {} is",
        "Everyone knows that {} was written by",
    ),
}


def prompts(part: int) -> Iterator[Line]:
    """Every fact of the part in every phrasing; a subject belongs to the part that it has in the task."""
    for relation, (table, _) in RELATIONS.items():
        subjects = sorted(table)
        random.Random(relation).shuffle(subjects)
        mine = [subject for index, subject in enumerate(subjects) if (index % 3 == 2) == bool(part)]
        for subject in mine:
            for number, phrasing in enumerate(PHRASINGS[relation]):
                yield {
                    "id": f"{subject} {relation}-{number}",
                    "prompt": phrasing.format(subject),
                    "answer": " " + table[subject],
                    "subject": subject,
                    "relation": relation,
                }


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/eics/data/prompts"))
    given = parser.parse_args()
    for part, name in enumerate(("facts", "facts-withheld")):
        lines = list(prompts(part))
        random.Random(name).shuffle(lines)
        text = "\n".join(json.dumps(line) for line in lines) + "\n"
        (given.out / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
