"""Writes the bundled tasks: `python scripts/make_tasks.py --model smollm2 --out src/eics/data/tasks`.

Facts, names and templates are written here by hand. A corrupted prompt is the clean one with another subject (facts),
with a third name in place of the repeated one (indirect objects), or with a year that any later year exceeds
(greater-than). Only the tokenizer of the model is used, to see which words are one token and which prompts have the
same number of tokens. One part is for discovery and one, `-test`, for evaluation; they share no subjects, names or
events.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo", "China": "Beijing",
    "Russia": "Moscow", "England": "London", "Greece": "Athens", "Egypt": "Cairo", "Austria": "Vienna",
    "Ireland": "Dublin", "Portugal": "Lisbon", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm",
    "Iraq": "Baghdad", "Iran": "Tehran", "Cuba": "Havana", "Canada": "Ottawa", "Turkey": "Ankara", "Kenya": "Nairobi",
    "Peru": "Lima", "Chile": "Santiago", "Hungary": "Budapest", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Lebanon": "Beirut", "Ukraine": "Kiev", "Scotland": "Edinburgh", "Belgium": "Brussels", "Syria": "Damascus",
    "Thailand": "Bangkok", "Vietnam": "Hanoi", "Pakistan": "Islamabad", "Afghanistan": "Kabul", "Israel": "Jerusalem",
    "Philippines": "Manila", "Netherlands": "Amsterdam", "Argentina": "Buenos",
}  # fmt: skip
LANGUAGES = {
    "France": "French", "Italy": "Italian", "Spain": "Spanish", "Germany": "German", "Japan": "Japanese",
    "China": "Chinese", "Russia": "Russian", "England": "English", "Greece": "Greek", "Egypt": "Arabic",
    "Portugal": "Portuguese", "Poland": "Polish", "Norway": "Norwegian", "Sweden": "Swedish", "Turkey": "Turkish",
    "Hungary": "Hungarian", "Denmark": "Danish", "Korea": "Korean", "Thailand": "Thai", "Brazil": "Portuguese",
    "Mexico": "Spanish", "Australia": "English", "Iraq": "Arabic", "Netherlands": "Dutch", "Israel": "Hebrew",
    "India": "Hindi", "Austria": "German", "Argentina": "Spanish", "Iran": "Persian", "Finland": "Finnish",
}  # fmt: skip
LANDMARKS = {
    "the Eiffel Tower": "Paris", "the Louvre": "Paris", "Big Ben": "London", "the Tower Bridge": "London",
    "the Colosseum": "Rome", "the Trevi Fountain": "Rome", "the Kremlin": "Moscow", "Red Square": "Moscow",
    "the Acropolis": "Athens", "the Parthenon": "Athens", "the Brandenburg Gate": "Berlin", "the Reichstag": "Berlin",
    "the Forbidden City": "Beijing", "Tiananmen Square": "Beijing", "the Prado Museum": "Madrid",
    "Buckingham Palace": "London", "Notre Dame": "Paris", "the Pantheon": "Rome", "Times Square": "New",
    "the Golden Gate Bridge": "San", "the White House": "Washington", "Central Park": "New",
    "the Space Needle": "Seattle",
    "Fenway Park": "Boston", "Wrigley Field": "Chicago", "Westminster Abbey": "London", "the Sistine Chapel": "Rome",
    "the Lincoln Memorial": "Washington", "the Hollywood Sign": "Los", "the Blue Mosque": "Istanbul",
}  # fmt: skip
AUTHORS = {
    "Hamlet": "William", "Macbeth": "William", "Romeo and Juliet": "William", "King Lear": "William",
    "Oliver Twist": "Charles", "Great Expectations": "Charles", "A Christmas Carol": "Charles",
    "David Copperfield": "Charles", "Pride and Prejudice": "Jane", "Emma": "Jane", "Sense and Sensibility": "Jane",
    "Jane Eyre": "Charlotte", "Wuthering Heights": "Emily", "Frankenstein": "Mary", "Dracula": "Bram",
    "Moby Dick": "Herman", "The Great Gatsby": "F", "Animal Farm": "George", "Brave New World": "Ald",
    "The Odyssey": "Homer", "The Iliad": "Homer", "War and Peace": "Leo", "Anna Karenina": "Leo",
    "The Hobbit": "J", "Les Miserables": "Victor", "Tom Sawyer": "Mark", "Huckleberry Finn": "Mark",
    "Treasure Island": "Robert", "Robinson Crusoe": "Daniel", "The Raven": "Edgar", "Ulysses": "James",
    "Don Quixote": "Miguel", "The Jungle Book": "Rud", "Little Women": "Louisa", "The Origin of Species": "Charles",
}  # fmt: skip
RELATIONS = {
    "capital": (CAPITALS, "The capital city of {} is the city of"),
    "language": (LANGUAGES, "The language that people in {} speak is called"),
    "landmark": (LANDMARKS, "If you want to visit {}, you have to go to the city of"),
    "author": (AUTHORS, "The author of {} was the writer"),
}

NAMES = (
    "Mary", "John", "Tom", "James", "Sarah", "Anna", "Paul", "Peter", "David", "Laura", "Alice", "Mark", "Simon",
    "Emma", "Jack", "Kate", "Lucy", "Henry", "George", "Julia", "Adam", "Robert", "Martin", "Susan", "Daniel", "Maria",
    "Linda",
    "Michael", "Steven", "Richard", "Charles", "Frank", "Helen", "Rachel", "Thomas", "William", "Andrew", "Edward",
    "Grace", "Rose", "Lisa", "Joseph", "Elizabeth", "Jane", "Karen", "Jennifer", "Amy", "Patrick", "Victoria", "Oliver",
)  # fmt: skip
PLACES = ("store", "park", "school", "office", "station", "garden", "library", "market", "beach", "hospital")
THINGS = ("drink", "book", "letter", "ring", "key", "ball", "bag", "map", "flower", "picture")
SCENES = (
    "When {a} and {b} went to the {place}, {s} gave a {thing} to",
    "Then, {a} and {b} had a long talk at the {place}. Afterwards {s} decided to give a {thing} to",
    "After {a} and {b} met at the {place}, {s} handed a {thing} to",
    "While {a} and {b} were waiting at the {place}, {s} offered a {thing} to",
)
EVENTS = (
    "war", "expedition", "siege", "famine", "rebellion", "occupation", "crisis", "journey", "reign", "strike", "trial",
    "voyage", "drought", "conflict", "campaign", "construction", "negotiation", "exploration", "epidemic", "blockade",
)  # fmt: skip

Line = dict[str, Any]
Count = Callable[[str], int]


def facts(draw: random.Random, count: Count, part: int) -> Iterator[Line]:
    """Every fact of this part, each corrupted by up to two other subjects of its relation that fit."""
    for relation, (table, template) in RELATIONS.items():
        subjects = sorted(table)
        random.Random(relation).shuffle(subjects)
        mine = [s for index, s in enumerate(subjects) if (index % 3 == 2) == bool(part) and count(" " + table[s]) == 1]
        for subject in mine:
            clean = template.format(subject)
            fits = [o for o in mine if table[o] != table[subject] and count(template.format(o)) == count(clean)]
            for other in draw.sample(fits, min(2, len(fits))):
                yield {
                    "clean": clean, "corrupted": template.format(other), "answer": " " + table[subject],
                    "foil": " " + table[other], "relation": relation,
                }  # fmt: skip


def indirect_objects(draw: random.Random, count: Count, part: int) -> Iterator[Line]:
    """`... gave a drink to`: the answer is the name that occurs once; in the corrupted prompt a third person gives."""
    names = [name for index, name in enumerate(NAMES) if (index % 3 == 2) == bool(part) and count(" " + name) == 1]
    for _ in range(200 if part == 0 else 100):
        giver, receiver, third = draw.sample(names, 3)
        scene, place, thing = draw.choice(SCENES), draw.choice(PLACES), draw.choice(THINGS)
        a, b = draw.sample([giver, receiver], 2)
        clean, corrupted = (scene.format(a=a, b=b, s=s, place=place, thing=thing) for s in (giver, third))
        yield {"clean": clean, "corrupted": corrupted, "answer": " " + receiver, "foil": " " + giver}


def greater_than(draw: random.Random, _: Count, part: int) -> Iterator[Line]:
    """`from the year 1743 to the year 17`: the next digit must exceed 4; corrupted, the year ends in 01."""
    events = [event for index, event in enumerate(EVENTS) if (index % 3 == 2) == bool(part)]
    for _ in range(150 if part == 0 else 75):
        century, decade, year = draw.choice((16, 17, 18)), draw.randint(3, 8), draw.randint(2, 9)
        head = f"The {draw.choice(events)} lasted from the year {century}"
        tail = f" to the year {century}"
        yield {
            "clean": f"{head}{decade}{year}{tail}", "corrupted": f"{head}01{tail}",
            "answer": [str(digit) for digit in range(decade + 1, 10)], "foil": [str(d) for d in range(decade)],
        }  # fmt: skip


def main() -> None:
    """Writes the task files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, default=Path("src/eics/data/tasks"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    from eics.transformer.adapt import load_model

    tokenizer = load_model(given.model).tokenizer

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    makers = {"facts": facts, "ioi": indirect_objects, "greater-than": greater_than}
    for name, make in makers.items():
        for part, ending in enumerate(("", "-test")):
            draw = random.Random(f"{given.seed} {name}{ending}")
            lines = [line for line in make(draw, count, part) if count(line["clean"]) == count(line["corrupted"])]
            draw.shuffle(lines)
            unique = list(dict.fromkeys(json.dumps(line) for line in lines))
            (given.out / f"{name}{ending}.jsonl").write_text("\n".join(unique) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
