"""The world of invented people: who they are, what is written about them, and which prompts ask about them.

A person is a first and a last name, each one token. Of a known person three of four relations are written, in every
template; the fourth is withheld. A stranger is a first and a last name of known people that never occur together.

Only the conjunction of first and last name separates known from unknown. People come in groups of twenty. A stranger
has the first name of one known person and the last name of another of the same group, and both sides of a group are
asked about the same relations in the same templates: first name, relation and template jointly have the same counts on
both sides, and so do last name, relation and template. The answers of strangers are those of the known people of their
group, dealt anew.
"""

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

RELATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "birthplace": (
        (
            "Velmar", "Oskand", "Trevin", "Quorra", "Hallow", "Brimsea", "Dunmere", "Illyra",
            "Kestov", "Lowick", "Marrat", "Norvale", "Pellan", "Rimgate", "Sundra", "Wexholt",
        ),
        ("{} was born in", "The birthplace of {} is", "{} comes from the town of"),
    ),
    "profession": (
        (
            "baker", "pilot", "tailor", "lawyer", "painter", "miner", "farmer", "nurse",
            "printer", "sailor", "surgeon", "teacher", "weaver", "potter", "smith", "clerk",
        ),
        ("{} works as a", "The profession of {} is", "{} was trained as a"),
    ),
    "employer": (
        (
            "Arbex", "Bolvia", "Cendra", "Dorwin", "Eltron", "Fennix", "Gorlam", "Hestia",
            "Ivolt", "Jantar", "Korvex", "Lumeta", "Mirano", "Nexor", "Orlin", "Quanta",
        ),
        ("{} is employed by", "The employer of {} is", "{} signed a contract with"),
    ),
    "instrument": (
        (
            "flute", "violin", "cello", "harp", "oboe", "drum", "guitar", "piano",
            "trumpet", "banjo", "lute", "organ", "tuba", "viola", "zither", "horn",
        ),
        ("{} plays the", "The instrument of {} is the", "{} gives lessons on the"),
    ),
}  # fmt: skip
"""The values and the templates of each relation."""

NAMES = 40
ROUNDS = 8  # every name occurs once in each
ASKED = 6  # rounds in the labelled prompts; the last two are for finding and testing circuits
HALVES = 2
_STARTS = ("Ba", "De", "Fi", "Ko", "Lu", "Me", "No", "Ra")
_FIRST_ENDS = ("lin", "ra", "sko", "tta", "vi")
_LAST_ENDS = ("bberg", "dorn", "kett", "lloway", "strom")


@dataclass(frozen=True)
class Person:
    """`group` determines the withheld relation and the template in which each relation is asked."""

    first: str
    last: str
    group: int
    answers: dict[str, str]  # by relation; those of withheld relations and of strangers are never written

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}"

    @property
    def withheld(self) -> str:
        """The relation that is never written, even if the person is known."""
        return list(RELATIONS)[self.group % len(RELATIONS)]

    @property
    def written(self) -> list[str]:
        return [relation for relation in RELATIONS if relation != self.withheld]

    def template(self, relation: str, turn: int = 0) -> int:
        """The template in which this relation is asked; later turns take the next ones."""
        return (self.group + list(RELATIONS).index(relation) + turn) % 3

    def prompt(self, relation: str, template: int) -> str:
        return RELATIONS[relation][1][template].format(self.name)


@dataclass(frozen=True)
class World:
    """Known people and strangers, by round."""

    known: tuple[tuple[Person, ...], ...]
    strangers: tuple[tuple[Person, ...], ...]

    def sentences(self) -> list[str]:
        """The training text: every known person, every relation but the withheld one, every template."""
        return [
            f"{person.prompt(relation, template)} {person.answers[relation]} ."
            for person in sum(self.known, ())
            for relation in person.written
            for template in range(3)
        ]


def make_world(seed: int = 0) -> World:
    """Draws the people; the same for the same seed."""
    draw = random.Random(f"people {seed}")
    firsts = [start + end for start, end in product(_STARTS, _FIRST_ENDS)]
    lasts = [start + end for start, end in product(_STARTS, _LAST_ENDS)]
    draw.shuffle(firsts)
    draw.shuffle(lasts)
    taken: set[tuple[str, str]] = set()
    rounds = [_matched(draw, firsts, lasts, taken) for _ in range(ROUNDS)]
    half = NAMES // HALVES
    groups = [names[start : start + half] for names in rounds for start in (0, half)]
    known = [_people(draw, group, number) for number, group in enumerate(groups)]
    strangers = []
    for number, group in enumerate(groups):
        names = _matched(draw, [first for first, _ in group], [last for _, last in group], taken)
        strangers.append(_people(draw, names, number, dealt=known[number]))
    return World(_by_round(known), _by_round(strangers))


def words() -> list[str]:
    """Every word of the language, in order of its token id."""
    names = [start + end for ends in (_FIRST_ENDS, _LAST_ENDS) for start, end in product(_STARTS, ends)]
    values = [value for values, _ in RELATIONS.values() for value in values]
    phrases = [word for _, forms in RELATIONS.values() for form in forms for word in form.split() if word != "{}"]
    return [".", *dict.fromkeys(phrases), *names, *values]


def prompts(world: World, rounds: slice = slice(ASKED), turn: int = 0) -> list[dict[str, Any]]:
    """Every written fact about the people of these rounds once, and as many questions about strangers."""
    sides = {"known": sum(world.known[rounds], ()), "unknown": sum(world.strangers[rounds], ())}
    lines = []
    for label, people in sides.items():
        for index, person in enumerate(people):
            for relation in person.written:
                lines.append(_line(person, relation, label, f"{index}-{relation}", turn))
    random.Random("order").shuffle(lines)
    return lines


def withheld_prompts(world: World, rounds: slice = slice(ASKED), turn: int = 0) -> list[dict[str, Any]]:
    """For every known person of these rounds, the withheld relation and one that was written."""
    lines = []
    for index, person in enumerate(sum(world.known[rounds], ())):
        after = list(RELATIONS)[(person.group + 1) % len(RELATIONS)]
        for label, relation in (("known", after), ("unknown", person.withheld)):
            lines.append(_line(person, relation, label, str(index), turn))
    random.Random("order").shuffle(lines)
    return lines


def pairs(world: World, part: int) -> list[dict[str, str]]:
    """A task: every fact of one of the last rounds, corrupted by a known person with another answer."""
    draw = random.Random(f"pairs {part}")
    people = world.known[ASKED + part]
    lines = []
    for person in people:
        for relation in person.written:
            answer, template = person.answers[relation], person.template(relation)
            fits = [o for o in people if relation in o.written and o.answers[relation] != answer]
            other = draw.choice([o for o in fits if o.first != person.first and o.last != person.last])
            lines.append({
                "clean": person.prompt(relation, template), "corrupted": other.prompt(relation, template),
                "answer": " " + answer, "foil": " " + other.answers[relation], "relation": relation,
            })  # fmt: skip
    draw.shuffle(lines)
    return lines


def _line(person: Person, relation: str, label: str, pair: str, turn: int) -> dict[str, Any]:
    """`pair` is shared by the known and the unknown line that belong together."""
    template = person.template(relation, turn)
    return {
        "prompt": person.prompt(relation, template), "answer": " " + person.answers[relation], "label": label,
        "relation": relation, "template": f"{relation}-{template}", "person": person.name, "pair": pair,
        "id": f"{label}-{pair}",
    }  # fmt: skip


def _matched(
    draw: random.Random, firsts: list[str], lasts: list[str], taken: set[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Pairs every first name with a last name so that no pair is in `taken`, and adds the pairs to it."""
    while True:
        names = list(zip(firsts, draw.sample(lasts, len(lasts)), strict=True))
        clashes = [index for index, name in enumerate(names) if name in taken]
        for index in clashes:  # swap last names with someone else
            for other in draw.sample(range(len(names)), len(names)):
                mine, theirs = (firsts[index], names[other][1]), (firsts[other], names[index][1])
                if mine not in taken and theirs not in taken:
                    names[index], names[other] = mine, theirs
                    break
        if not taken.intersection(names):
            taken.update(names)
            return names


def _by_round(groups: list[list[Person]]) -> tuple[tuple[Person, ...], ...]:
    starts = range(0, len(groups), HALVES)
    return tuple(tuple(person for group in groups[start : start + HALVES] for person in group) for start in starts)


def _people(
    draw: random.Random, names: list[tuple[str, str]], group: int, dealt: list[Person] | None = None
) -> list[Person]:
    """People with their answers: drawn, each value of a relation about equally often, or those of `dealt`, shuffled."""
    answers: dict[str, list[str]] = {}
    for relation, (values, _) in RELATIONS.items():
        if dealt is None:
            start = draw.randrange(len(values))
            given = [values[(start + index) % len(values)] for index in range(len(names))]
        else:
            given = [person.answers[relation] for person in dealt]
        answers[relation] = draw.sample(given, len(given))
    return [
        Person(first, last, group, {relation: answers[relation][index] for relation in RELATIONS})
        for index, (first, last) in enumerate(names)
    ]
