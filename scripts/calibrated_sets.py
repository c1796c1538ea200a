"""Writes the prompt sets of the calibration study: `python scripts/calibrated_sets.py --out FOLDER [--known FILE]`.

Two sets are drawn (`indirect_objects`, `greater_than`), three are made from given rows (`put_before`, `rephrased`,
`translated`), and one has each fact of `make_tasks.py` after four kinds of statement (`reasons`). Templates and
sentences are written here by hand; no model and no tokenizer is used. A row has `id`, `prompt`, `answer` with its
leading space, `group`, and what its set adds.
"""

import argparse
import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from make_prompts import PHRASINGS
from make_tasks import EVENTS, NAMES, PLACES, RELATIONS, SCENES, THINGS, Line

GIVING = (
    *SCENES,
    "{a} and {b} met at the {place}, and {s} passed a {thing} to",
    "Yesterday {a} and {b} spent the whole afternoon at the {place}. Before leaving, {s} sent a {thing} to",
    "Once {a} and {b} had arrived at the {place}, {s} lent a {thing} to",
    "{a} and {b} are old friends who often see each other at the {place}. One day, {s} brought a {thing} to",
    "It was raining when {a} and {b} came out of the {place}. To make up for the bad day, {s} presented a {thing} to",
    "Because {a} and {b} were both working at the {place} that morning, {s} was able to return a {thing} to",
    "Friends say that {a} and {b} argued at the {place} until {s} promised a {thing} to",
    "At the {place}, {a} and {b} said goodbye, and {s} threw a {thing} to",
)
OCCASIONS = (
    *EVENTS,
    "revolt", "plague", "feud", "truce", "alliance", "dispute", "pilgrimage", "uprising", "mission", "migration",
    "debate", "investigation", "partnership", "experiment", "excavation", "restoration", "regency", "crusade",
    "persecution", "inquiry", "insurrection", "invasion", "survey", "recession", "exile", "renovation", "mutiny",
    "project", "evacuation", "search",
)  # fmt: skip
LASTING = (
    "The {event} lasted from the year {start} to the year {century}",
    "The {event} began in {start} and ended in {century}",
    "According to the old records, the {event} went on from {start} until {century}",
    "Historians agree that the {event}, which started in the year {start}, was over by the year {century}",
    "It was in the year {start} that the {event} began, and it did not end until the year {century}",
    "The chronicle describes a long {event} between the years {start} and {century}",
    "In the year {start} people first heard of the {event}, and it came to an end in the year {century}",
    "Starting in {start}, the {event} continued up to the year {century}",
)

SENTENCES = (
    "The bread in the oven needs another ten minutes before it is done.",
    "A light rain fell on the roof for most of the night.",
    "The old wooden bridge was painted green last summer.",
    "Most bicycles have two wheels of the same size.",
    "Water boils more quickly when the pot is covered with a lid.",
    "The cat slept on the warm windowsill until the sun went down.",
    "There was a small hole in the left pocket of the coat.",
    "Bees visit a great many plants during a single warm day.",
    "The elevator stopped between two floors and then moved on again.",
    "A good pair of boots can last for many winters.",
    "The children built a tall tower out of wooden blocks.",
    "Fresh paint takes longer to dry when the air is damp.",
    "The train was late because of fallen leaves on the track.",
    "Someone left an umbrella under the bench near the door.",
    "Onions should be cut into thin slices before they are fried.",
    "The clock in the hall runs about five minutes fast.",
    "A strong wind blew the dry leaves across the yard.",
    "The shop on the corner sells candles, string and soap.",
    "Snow covered the fence so that only the top could be seen.",
    "The dentist asked everyone to wait a little longer.",
    "Carrots grow best in loose soil without many stones.",
    "The lamp on the desk needs a different kind of bulb.",
    "A pair of ducks swam slowly along the edge of the pond.",
    "The meeting was moved from the morning to the late afternoon.",
    "Wool keeps the body warm even when it is slightly wet.",
    "The printer ran out of paper in the middle of the job.",
    "Small waves broke against the stones along the shore.",
    "The neighbors planted a hedge between the two lawns.",
    "It takes some practice to whistle with two fingers.",
    "The soup tasted better after a little more salt was added.",
    "A thick fog made it hard to see the other side of the road.",
    "The spare keys hang on a hook behind the kitchen door.",
    "Squirrels hide nuts in the ground and forget about some of them.",
    "The carpet was rolled up and carried down to the cellar.",
    "Every seat in the waiting room was already taken.",
    "The ladder was too short to reach the upper window.",
    "Ripe pears are soft near the stem and smell sweet.",
    "The garden hose had been left in the sun for too long.",
    "A flock of birds crossed the sky just before sunset.",
    "The bus was crowded, so several passengers had to stand.",
    "Clean glasses were stacked on the shelf above the sink.",
    "The puppy carried one of the slippers under the table.",
    "Long walks are more pleasant when the weather is cool.",
    "The button came loose and rolled underneath the sofa.",
    "A thin layer of ice had formed on the puddles by dawn.",
    "The recipe calls for two eggs and a spoonful of honey.",
    "The swing in the yard creaks whenever it moves.",
    "Heavy boxes should be lifted with a straight back.",
    "The moon was bright enough to see the path through the trees.",
    "The washing machine makes a humming sound near the end.",
)
CONTEXT_SENTENCES, CONTEXT_WORDS = (6, 10), (60, 120)
ATTEMPTS = 1000


@dataclass(frozen=True)
class Wording:
    """One relation of known_1000 in four languages; `{}` is the subject, and the answer would follow the end."""

    english: str
    german: str
    french: str
    spanish: str


LANGUAGES = ("german", "french", "spanish")
WORDINGS = {
    "P17": Wording(
        "The country to which {} belongs is called",
        "{} gehört zu dem Land namens",
        "{} appartient au pays appelé",
        "{} pertenece al país llamado",
    ),
    "P19": Wording(
        "The birthplace of {} is",
        "{} wurde geboren in",
        "{} a pour lieu de naissance",
        "{} nació en",
    ),
    "P20": Wording(
        "The life of {} came to an end in the city of",
        "{} starb in der Stadt",
        "{} a fini ses jours dans la ville de",
        "{} murió en la ciudad de",
    ),
    "P27": Wording(
        "{} is a national of the country called",
        "{} hat die Staatsbürgerschaft von",
        "{} a la nationalité du pays appelé",
        "{} tiene la nacionalidad del país llamado",
    ),
    "P30": Wording(
        "On a map of the world, {} can be seen on the continent of",
        "{} liegt auf dem Kontinent",
        "{} se trouve sur le continent appelé",
        "{} se encuentra en el continente llamado",
    ),
    "P36": Wording(
        "The city that serves as the capital of {} is called",
        "Die Hauptstadt von {} heißt",
        "{} a pour capitale la ville de",
        "La capital de {} es la ciudad de",
    ),
    "P37": Wording(
        "Official documents in {} are written in",
        "Die Amtssprache in {} ist",
        "Dans le territoire nommé {}, la langue officielle est",
        "El idioma oficial en {} es el",
    ),
    "P39": Wording(
        "The office held by {} was that of a",
        "Der Titel des Amtes von {} lautet",
        "Le titre officiel que porte {} est",
        "El cargo que ocupó {} fue el de",
    ),
    "P101": Wording(
        "{} became known for contributions to the field of",
        "Das Fachgebiet von {} heißt",
        "{} a pour spécialité",
        "El campo de especialidad de {} es",
    ),
    "P103": Wording(
        "The first language that {} learned as a child was",
        "Die Muttersprache von {} ist",
        "{} a pour langue maternelle",
        "La lengua materna de {} es el",
    ),
    "P106": Wording(
        "{} made a career as a professional",
        "Der Beruf von {} lautet",
        "{} a pour profession",
        "{} ejerce la profesión de",
    ),
    "P108": Wording(
        "The company that {} works for is called",
        "{} arbeitet für das Unternehmen",
        "{} travaille pour l'entreprise",
        "{} trabaja para la empresa",
    ),
    "P127": Wording(
        "Today {} is the property of",
        "{} ist im Besitz von",
        "{} a pour propriétaire",
        "{} es propiedad de",
    ),
    "P131": Wording(
        "The territory that includes {} is called",
        "Das Gebiet, zu dem {} gehört, heißt",
        "Le territoire qui comprend {} s'appelle",
        "El territorio que incluye {} se llama",
    ),
    "P136": Wording(
        "The style that {} is usually associated with is",
        "Das Genre, mit dem man {} verbindet, ist",
        "Le genre que l'on associe à {} est",
        "El género que se asocia con {} es",
    ),
    "P140": Wording(
        "In matters of faith, {} is devoted to",
        "Die Religion von {} ist",
        "{} a pour religion",
        "La religión de {} es el",
    ),
    "P159": Wording(
        "The main office of {} can be found in the city of",
        "{} hat den Hauptsitz in der Stadt",
        "{} a son siège dans la ville de",
        "{} tiene su sede en la ciudad de",
    ),
    "P176": Wording(
        "The manufacturer that builds {} is called",
        "Der Hersteller von {} heißt",
        "Le fabricant qui produit {} s'appelle",
        "El fabricante de {} se llama",
    ),
    "P178": Wording(
        "The company that came up with {} is called",
        "Die Firma, die {} entwickelt hat, heißt",
        "L'entreprise qui a développé {} s'appelle",
        "La empresa que desarrolló {} se llama",
    ),
    "P276": Wording(
        "On a map, {} would be marked in",
        "Der Ort von {} ist",
        "Le lieu où l'on trouve {} est",
        "El lugar donde se encuentra {} es",
    ),
    "P364": Wording(
        "When {} first appeared, its language was",
        "Die Originalsprache von {} ist",
        "La version originale de l'œuvre {} est en",
        "La versión original de {} está en",
    ),
    "P407": Wording(
        "The words of {} are in a language called",
        "Der Text des Werks {} ist auf",
        "Le texte de l'œuvre {} est en",
        "El texto de la obra {} está en",
    ),
    "P413": Wording(
        "The role of {} on the team is that of a",
        "Die Position von {} in der Mannschaft ist",
        "Dans son équipe, {} joue au poste de",
        "En su equipo, {} juega en la posición de",
    ),
    "P449": Wording(
        "Viewers first saw {} on the television network",
        "Die Sendung {} lief zuerst auf dem Fernsehsender",
        "L'émission {} a été diffusée pour la première fois sur la chaîne",
        "El programa {} se emitió por primera vez en el canal",
    ),
    "P463": Wording(
        "{} counts as one of the members of the",
        "{} ist Mitglied der",
        "{} fait partie du groupe appelé",
        "{} forma parte de",
    ),
    "P495": Wording(
        "The country of origin of {} is",
        "Das Herkunftsland von {} ist",
        "{} a pour pays d'origine",
        "El país de origen de {} es",
    ),
    "P641": Wording(
        "The sport that made {} famous is",
        "Die Sportart, die {} bekannt gemacht hat, ist",
        "Le sport qui a rendu {} célèbre est",
        "El deporte que dio fama a {} es el",
    ),
    "P740": Wording(
        "The founding of {} took place in",
        "{} wurde gegründet in",
        "{} a pour lieu de fondation",
        "{} se fundó en",
    ),
    "P937": Wording(
        "The career of {} took place mainly in the city of",
        "{} arbeitete in der Stadt",
        "{} a travaillé dans la ville de",
        "{} trabajó en la ciudad de",
    ),
    "P1303": Wording(
        "The instrument that {} is known for playing is the",
        "Das Instrument, das {} spielt, heißt",
        "L'instrument dont joue {} s'appelle",
        "El instrumento que toca {} es",
    ),
    "P1412": Wording(
        "In everyday conversation, {} used a language called",
        "Im Gespräch verwendete {} die Sprache",
        "Dans la conversation, {} parlait",
        "En la conversación, {} hablaba",
    ),
}

STATEMENTS = {
    "capital": "The capital of {} is {}.",
    "language": "The main language of {} is {}.",
    "landmark": "Visitors find {} in {}.",
    "author": "{} is a work by {}.",
}
# The tables have the first token or word of some answers; a statement has the whole of it.
WHOLE = {
    "capital": {"Buenos": "Buenos Aires"},
    "language": {},
    "landmark": {"New": "New York", "San": "San Francisco", "Los": "Los Angeles"},
    "author": {
        "William": "William Shakespeare", "Charles": "Charles Dickens", "Jane": "Jane Austen",
        "Charlotte": "Charlotte Bronte", "Emily": "Emily Bronte", "Mary": "Mary Shelley", "Bram": "Bram Stoker",
        "Herman": "Herman Melville", "F": "F. Scott Fitzgerald", "George": "George Orwell", "Ald": "Aldous Huxley",
        "Homer": "Homer", "Leo": "Leo Tolstoy", "J": "J. R. R. Tolkien", "Victor": "Victor Hugo", "Mark": "Mark Twain",
        "Robert": "Robert Louis Stevenson", "Daniel": "Daniel Defoe", "Edgar": "Edgar Allan Poe",
        "James": "James Joyce", "Miguel": "Miguel de Cervantes", "Rud": "Rudyard Kipling",
        "Louisa": "Louisa May Alcott",
    },
}  # fmt: skip
NAMESAKES = {"The Origin of Species": "Charles Darwin"}
# What would not be wrong enough to be the claim of a `swap`.
ALSO_TRUE = {
    ("Finland", "Swedish"), ("India", "English"), ("Israel", "Arabic"), ("Israel", "English"), ("Scotland", "London"),
    ("the Pantheon", "Paris"),
}  # fmt: skip


def mentions(text: str, words: str) -> bool:
    """Whether the words occur in the text, in any case; a single letter only in its own."""
    words = words.strip()
    return words in text or (len(words) > 1 and words.casefold() in text.casefold())


def _turns(draw: random.Random, *parts: Sequence) -> Iterator[tuple]:
    """All combinations in random order, over and over, so that every part comes equally often."""
    while True:
        yield from draw.sample(whole := list(itertools.product(*parts)), len(whole))


def indirect_objects(count: int = 1200, seed: int = 0) -> list[Line]:
    """`... John gave a drink to`: the answer and group is the one of two people who was named once."""
    draw = random.Random(f"{seed} indirect objects")
    rows: dict[str, Line] = {}
    for receiver, template in _turns(draw, NAMES, range(len(GIVING))):
        if len(rows) == count:
            break
        giver = draw.choice([name for name in NAMES if name != receiver])
        a, b = draw.sample([giver, receiver], 2)
        prompt = GIVING[template].format(a=a, b=b, s=giver, place=draw.choice(PLACES), thing=draw.choice(THINGS))
        rows.setdefault(prompt, {
            "id": f"indirect-object-{len(rows)}", "prompt": prompt, "answer": " " + receiver, "group": receiver,
            "template": template,
        })  # fmt: skip
    return list(rows.values())


def greater_than(count: int = 1200, seed: int = 0) -> list[Line]:
    """`... from the year 1743 to the year 17`: the next digit must exceed 4; `answers` has all that do."""
    draw = random.Random(f"{seed} greater than")
    rows: dict[str, Line] = {}
    for event, template in _turns(draw, OCCASIONS, range(len(LASTING))):
        if len(rows) == count:
            break
        century, decade, year = draw.randint(11, 18), draw.randint(3, 8), draw.randint(2, 9)
        prompt = LASTING[template].format(event=event, start=f"{century}{decade}{year}", century=century)
        answers = [str(digit) for digit in range(decade + 1, 10)]
        rows.setdefault(prompt, {
            "id": f"greater-than-{len(rows)}", "prompt": prompt, "answer": draw.choice(answers), "group": event,
            "template": template, "answers": answers,
        })  # fmt: skip
    return list(rows.values())


def _changed(row: Line, ending: str, **fields: object) -> Line:
    """The row under an id with this ending; one without a group gets its subject as the group."""
    group = row.get("group", row.get("subject", row["id"]))
    return {**row, "group": group, **fields, "id": f"{row['id']}/{ending}"}


def _opening(draw: random.Random, kind: str, sentences: Sequence[str]) -> str:
    """One sentence, or six to ten of them that have 60 to 120 words together."""
    if kind == "sentence":
        return draw.choice(sentences)
    least, most = CONTEXT_WORDS
    while True:
        text = " ".join(draw.sample(sentences, draw.randint(*CONTEXT_SENTENCES)))
        if least <= len(text.split()) <= most:
            return text


def put_before(rows: Iterable[Line], kind: str, seed: int = 0) -> list[Line]:
    """The rows with an unrelated sentence (`sentence`) or paragraph (`context`) before the prompt.

    What is put before a prompt depends on the row's id and the seed alone, and mentions neither its answer nor its
    subject. Only a prompt that would be the same as an earlier one is drawn again.
    """
    if kind not in ("sentence", "context"):
        raise ValueError(f"kind is {kind!r}, not 'sentence' or 'context'")
    made: dict[str, Line] = {}
    for row in rows:
        draw = random.Random(f"{seed} {kind} {row['id']}")
        answer = row.get("answer") or []
        avoid = [*([answer] if isinstance(answer, str) else answer), *filter(None, [row.get("subject")])]
        sentences = [sentence for sentence in SENTENCES if not any(mentions(sentence, words) for words in avoid)]
        for _ in range(ATTEMPTS):
            prompt = f"{_opening(draw, kind, sentences)} {row['prompt']}"
            if prompt not in made:
                break
        else:
            raise ValueError(f"too many rows have the prompt {row['prompt']!r}")
        made[prompt] = _changed(row, kind, prompt=prompt)
    return list(made.values())


def rephrased(rows: Iterable[Line]) -> list[Line]:
    """The rows of known_1000 in a template that is not in its file; rows of rare relations are left out."""
    return [
        _changed(row, "rephrased", prompt=WORDINGS[row["relation"]].english.format(row["subject"]))
        for row in rows
        if row["relation"] in WORDINGS
    ]


def translated(rows: Iterable[Line]) -> list[Line]:
    """The rows of known_1000 in German, French or Spanish, by a hash of the id; without answers."""
    made = []
    for row in rows:
        if row["relation"] not in WORDINGS:
            continue
        language = LANGUAGES[int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % len(LANGUAGES)]
        prompt = getattr(WORDINGS[row["relation"]], language).format(row["subject"])
        made.append(_changed(row, "translated", prompt=prompt, answer=None, language=language))
    return made


def statement(relation: str, subject: str, source: str | None = None) -> str:
    """The sentence that gives this subject the answer of the source, by default its own."""
    source = source or subject
    answer = RELATIONS[relation][0][source]
    return STATEMENTS[relation].format(subject, NAMESAKES.get(source, WHOLE[relation].get(answer, answer)))


def _others(relation: str, subject: str, question: str) -> list[str]:
    """The subjects that can stand before this question: of another answer, and neither gives the other away."""
    table = RELATIONS[relation][0]
    answer = table[subject]
    return [
        other
        for other in sorted(table)
        if table[other] != answer
        and (subject, table[other]) not in ALSO_TRUE
        and not any(mentions(question, words) for words in (other, table[other]))
        and not any(mentions(statement(relation, other), words) for words in (subject, answer))
        and not mentions(statement(relation, subject, other), answer)
        and not mentions(other, table[other])
    ]


def reasons(seed: int = 0) -> list[Line]:
    """Every fact in every phrasing: alone, after another fact, after itself, and after a false claim about it.

    `plain` is the question; `recall` has a true statement of another subject before it, so that the answer must still
    be recalled; `copy` the true statement of this subject; and `swap` this subject with the answer of the other one
    (`said`). `answer` is always the true one. Recall and swap of one question have the same other subject.
    """
    rows = []
    for relation, (table, _) in RELATIONS.items():
        for subject, (number, phrasing) in itertools.product(table, enumerate(PHRASINGS[relation])):
            question, name = phrasing.format(subject), f"{subject} {relation}-{number}"
            if mentions(question, table[subject]):
                continue
            other = random.Random(f"{seed} reasons {name}").choice(_others(relation, subject, question))
            before = {
                "plain": "",
                "recall": statement(relation, other) + " ",
                "copy": statement(relation, subject) + " ",
                "swap": statement(relation, subject, other) + " ",
            }
            for form, text in before.items():
                row = {
                    "id": f"{name}/{form}", "prompt": text + question, "answer": " " + table[subject],
                    "group": subject, "form": form, "subject": subject, "relation": relation, "phrasing": number,
                }  # fmt: skip
                rows.append(row | ({"said": " " + table[other]} if form == "swap" else {}))
    return rows


def main() -> None:
    """Writes every set as a file of JSON lines; those made from known_1000 only where it is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--known", type=Path, help="known_1000 as JSON lines (id, prompt, answer, subject, relation)")
    given = parser.parse_args()
    sets = {"indirect-objects": indirect_objects(), "greater-than": greater_than(), "reasons": reasons()}
    if given.known:
        known = [json.loads(line) for line in given.known.read_text(encoding="utf-8").splitlines() if line.strip()]
        sets |= {f"known-{kind}": put_before(known, kind) for kind in ("sentence", "context")}
        sets |= {"known-rephrased": rephrased(known), "known-translated": translated(known)}
    given.out.mkdir(parents=True, exist_ok=True)
    for name, rows in sets.items():
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
        (given.out / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
