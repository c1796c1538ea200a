"""Circuit damage: its rows, the summary and sentences computed from them, and the run folder."""

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

import eics
from eics.circuits.graph import Node
from eics.cli import main
from eics.errors import OptionError, RecordError
from eics.studies.damage.measures import chance
from eics.studies.damage.plan import choose_nodes, choose_partners
from eics.studies.damage.summary import summarize
from eics.studies.damage.words import markdown, sentences
from eics.transformer.interventions import Noise, Steer
from support.tiny_models import full_circuit, some_circuit, tiny_model, tiny_module

PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6], [2, 2, 5, 1, 4, 3]]
SMALL = {"kinds": ["noise", "patch"], "strengths": [0, 0.5], "nodes": ["a1.h2", "m2"]}


@pytest.fixture(scope="module")
def found():
    """All kinds of damage on two nodes of a small circuit, with one partner outside each."""
    model = tiny_model("llama")
    return eics.damage(model, some_circuit(model), PROMPTS, strengths=[0, 0.5, 2], nodes=["a1.h2", "m2"])


def rows_of(found, **chosen):
    return [row for row in found.rows if all(row[name] == value for name, value in chosen.items())]


def test_on_the_full_graph_every_damaged_node_ranks_first():
    """Under every kind of damage, and ranked by shares or by their changes: the circuit is the whole model."""
    model = tiny_model("gpt2")
    circuit = full_circuit(model)
    how = {"preset": "well-posed", "positions": "all", "emergence": "difference"}
    found = eics.damage(model, circuit, PROMPTS[1:3], nodes="all", strengths=[0.5], **how)
    rows = [row for row in found.rows if row["kind"] != "none"]
    assert len(rows) == 4 * 15 * 2  # kinds, nodes with parents, prompts; nothing lies outside
    assert {row["status"] for row in rows} == {"ok"}
    for ranking in ("joint", "joint_change", "propagated", "propagated_change"):
        assert {row[f"well-posed.rank_{ranking}"] for row in rows} == {1.0}
    calm = [row["well-posed.c_sh"] for row in rows_of(found, kind="none")]
    assert max(calm) < 5e-6
    assert min(row["well-posed.c_sh"] for row in rows) > 1000 * max(calm)
    rank = next(r for r in found.ranks if r.ranking == "joint")
    assert (rank.first.value, rank.reciprocal.value) == (1.0, 1.0)
    assert rank.chance_first == pytest.approx(1 / 16)  # the read-out may be blamed too


def test_rows_are_what_score_gives(found):
    """The numbers of a damaged row are those of `eics.score` with the same intervention."""
    model = tiny_model("llama")
    circuit = some_circuit(model)
    for kind, make in (("noise", Noise), ("steer", Steer)):
        for row in rows_of(found, kind=kind, strength=2.0, place="circuit"):
            alone = [
                eics.score(
                    model, circuit, PROMPTS[row["id"]], preset=preset, mode="fast", interventions=make(row["node"], 2.0)
                )
                for preset in ("paper", "well-posed")
            ]
            for preset, score in zip(("paper", "well-posed"), alone, strict=True):
                assert row[f"{preset}.c_sh"] == pytest.approx(score.c_sh, rel=1e-6)
                assert row[f"{preset}.dei"] == pytest.approx(score.dei, rel=1e-6)
            own = [term.node for term in alone[1].nodes].index(row["node"]) + 1
            assert row["well-posed.rank_joint"] == own
    for row in rows_of(found, kind="none"):
        assert row["kl"] == pytest.approx(0, abs=1e-12)
        propagated = eics.score(
            model, circuit, PROMPTS[row["id"]], preset="well-posed", mode="fast", residual="propagated"
        )
        assert row["well-posed.propagated"] == pytest.approx(propagated.c_sh, rel=1e-6)
    assert min(row["kl"] for row in rows_of(found, kind="noise", strength=2.0)) > 1e-6


def test_baselines_are_those_of_the_models_own_logits(found):
    import torch

    model = tiny_model("llama")
    for row in rows_of(found, kind="none"):
        logits = model.module(torch.tensor([PROMPTS[row["id"]]])).logits[0, -1].detach()
        assert row["max_probability"] == pytest.approx(float(logits.softmax(0).max()), rel=1e-6)
        assert row["entropy"] == pytest.approx(
            float(torch.distributions.Categorical(logits=logits).entropy()), rel=1e-6
        )


def test_damage_outside_is_equal_damage(found):
    circuit = some_circuit(tiny_model("llama"))
    partners = found.settings["partners"]
    for node, (other,) in partners.items():
        assert Node.parse(other).kind is Node.parse(node).kind
        assert other not in circuit.order
        for kind in ("noise", "steer"):
            inside, outside = (
                [row["change_norm"] for row in rows_of(found, kind=kind, strength=0.5, node=name, like=like)]
                for name, like in ((node, None), (other, node))
            )
            assert inside == pytest.approx(outside, rel=1e-6)
    assert found.sizes["noise"] == pytest.approx(1.0, rel=1e-6)
    assert "well-posed.rank_joint" not in rows_of(found, place="outside")[0]


def test_strengths_above_one_are_for_what_has_no_end(found):
    assert {row["kind"] for row in rows_of(found, strength=2.0)} == {"noise", "steer"}
    assert not rows_of(found, strength=0.0, place="circuit")


def test_partners_are_near_in_layer_and_size():
    circuit = eics.Circuit(["input->a1.h0", "a1.h0->logits"])
    norms = {"input": 1.0, "m1": 8.0} | {f"a{layer}.h{head}": 4.0 for layer in range(3) for head in range(2)}
    norms["a1.h0"] = 8.0
    assert choose_partners(["a1.h0"], circuit, norms, 2) == {"a1.h0": ("a1.h1", "a0.h0")}
    norms["a0.h1"] = 8.0  # one layer away and as large, beside same layer and half as large: a tie, by name
    norms["a1.h1"] = 1.0
    assert choose_partners(["a1.h0"], circuit, norms, 1) == {"a1.h0": ("a0.h1",)}
    assert choose_partners(["input"], eics.Circuit(["input->m1"]), norms, 1) == {"input": ()}


def test_nodes_are_drawn_by_seed_from_those_with_parents():
    circuit = some_circuit(tiny_model("gpt2"))
    drawn = [choose_nodes(circuit, 2, seed) for seed in range(20)]
    assert drawn[0] == choose_nodes(circuit, 2, 0)
    assert len(set(drawn)) > 1
    assert {node for some in drawn for node in some} <= set(circuit.inner) - {"logits"}
    assert set(choose_nodes(circuit, "all", 0)) == set(circuit.inner) - {"logits"} == set(choose_nodes(circuit, 99, 0))


def test_a_prompt_that_cannot_be_damaged_fails_alone():
    model = tiny_model("llama")
    prompts = [*PROMPTS, [5] * 40, [1, 2, 3, 4, 5]]
    small = SMALL | {"preset": "well-posed", "off_circuit": 0}
    found = eics.damage(model, some_circuit(model), prompts, **small)
    failed = [(row["id"], row["kind"]) for row in found.rows if row["status"] == "failed"]
    assert set(failed) == {(4, "none"), (4, "noise"), (4, "patch"), (5, "patch")}
    reasons = {row["reason"] for row in found.rows if row["id"] == 5 and row["status"] == "failed"}
    assert reasons == {"no other prompt has its 5 tokens to patch from: add one, or damage the last position only"}
    last = eics.damage(model, some_circuit(model), prompts, **small, at="last")
    assert {row["id"] for row in last.rows if row["status"] == "failed"} == {4}
    listed = eics.damage(model, some_circuit(model), prompts, **small, at=[4])
    assert {row["id"] for row in listed.rows if row["status"] == "failed"} == {1, 2, 4, 5}


def test_a_torn_run_is_resumed(tmp_path):
    model = tiny_model("llama")
    circuit = some_circuit(model)
    few = SMALL | {"kinds": ["noise"], "preset": "well-posed", "out": tmp_path / "run"}
    whole = eics.damage(model, circuit, PROMPTS, **few)
    check_folder(tmp_path / "run", whole)
    file = tmp_path / "run" / "damage.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == len(whole.rows) == 4 * (1 + 2 * 2)
    file.write_text("".join(lines[:9]) + lines[9][:20])
    passes = []
    handle = model.module.register_forward_hook(lambda *_: passes.append(1))
    try:
        again = eics.damage(model, circuit, PROMPTS, **few, resume=True)
        assert len(passes) == 1 + 1 + 2  # sizes, undamaged, the 11 runs that were missing
    finally:
        handle.remove()
    assert len(file.read_text().splitlines()) == 20
    by_key = [{(r["id"], r["kind"], r["node"], r["like"]): r for r in one.rows} for one in (whole, again)]
    assert by_key[0].keys() == by_key[1].keys()
    for key, row in by_key[0].items():  # batches are cut elsewhere, so sums may round differently
        other = by_key[1][key]
        assert row.keys() == other.keys()
        numbers = [name for name, value in row.items() if isinstance(value, float)]
        assert [other[name] for name in numbers] == pytest.approx([row[name] for name in numbers], rel=1e-6, abs=1e-9)
    with pytest.raises(OptionError, match="already holds a run"):
        eics.damage(model, circuit, PROMPTS, **few)
    with pytest.raises(RecordError, match=r"the same strengths.* has \[0\.5\], this run \[0\.7\]"):
        eics.damage(model, circuit, PROMPTS, **few | {"strengths": [0.7]}, resume=True)


def test_rows_that_cannot_be_read_leave_no_lock(tmp_path):
    model = tiny_model("llama")
    few = SMALL | {"kinds": ["noise"], "preset": "well-posed", "out": tmp_path / "run"}
    eics.damage(model, some_circuit(model), PROMPTS, **few)
    (tmp_path / "run" / "damage.jsonl").write_text("{}\n")
    errors = []
    for _ in range(2):
        with pytest.raises(RecordError, match="must be a row of this run") as error:
            eics.damage(model, some_circuit(model), PROMPTS, **few, resume=True)
        errors.append(error)  # and with it all that the failed call held
    assert not (tmp_path / "run" / ".lock").exists()


def test_another_tokenizer_is_another_run(tmp_path):
    class Tokenizer:
        first = 3

        def __call__(self, text, **_):
            return {"input_ids": [self.first, *(len(word) for word in text.split())]}

    model = eics.adapt(tiny_module("llama"), Tokenizer())
    few = SMALL | {"kinds": ["noise"], "preset": "well-posed", "out": tmp_path / "run"}
    eics.damage(model, some_circuit(model), ["a text", "an other"], **few)
    model.tokenizer.first = 4
    with pytest.raises(RecordError, match="the same tokens"):
        eics.damage(model, some_circuit(model), ["a text", "an other"], **few, resume=True)


@pytest.mark.parametrize("killed_after", [2, 6, 13])
def test_a_killed_run_is_resumed(tmp_path, killed_after):
    """Killed among the undamaged runs, among the damaged ones, and between a record and its row."""
    model = tiny_model("llama")
    few = SMALL | {"kinds": ["noise"], "preset": "well-posed", "batch_size": 2}
    whole = eics.damage(model, some_circuit(model), PROMPTS, **few)
    ticks = itertools.count()

    def tick(*_):
        if next(ticks) == killed_after:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        eics.damage(model, some_circuit(model), PROMPTS, **few, out=out, tick=tick)
    rows = (out / "damage.jsonl").read_text().splitlines(keepends=True)
    assert len(rows) == killed_after
    if json.loads(rows[-1])["kind"] == "none":  # its records are there, its row not yet
        (out / "damage.jsonl").write_text("".join(rows[:-1]))
    resumed = eics.damage(model, some_circuit(model), PROMPTS, **few, out=out, resume=True)
    assert len(resumed.rows) == len(whole.rows)
    in_file = [json.loads(line) for line in (out / "damage.jsonl").read_text().splitlines()]
    assert in_file == resumed.rows
    names = ("id", "kind", "strength", "node", "place", "like")
    by_key = [{tuple(row[name] for name in names): row for row in found.rows} for found in (whole, resumed)]
    assert by_key[0].keys() == by_key[1].keys()
    for key, row in by_key[0].items():
        assert by_key[1][key] == {n: pytest.approx(v, rel=1e-6, abs=1e-9) if isinstance(v, float) else v
                                  for n, v in row.items()}  # fmt: skip
    records = eics.read_records(out / "undamaged.jsonl")
    assert sorted(record.id for record in records) == [0, 1, 2, 3]


def check_folder(folder, found):
    """All files exist and agree."""
    assert {path.name for path in folder.iterdir()} == {
        "settings.json", "damage.jsonl", "undamaged.jsonl", "damage.parquet", "summary.json", "damage.md",
        "dose-response.png", "auroc.png",
    }  # fmt: skip
    import pyarrow.parquet as pq

    rows = pq.read_table(folder / "damage.parquet").to_pylist()
    assert [row["well-posed.c_sh"] for row in rows] == [row["well-posed.c_sh"] for row in found.rows]
    assert len(eics.read_records(folder / "undamaged.jsonl")) == len(PROMPTS)
    assert json.loads((folder / "summary.json").read_text())["prompts"] == 4
    assert (folder / "damage.md").read_text() == found.to_markdown()
    assert "4 prompts are too few for a verdict" in found.to_markdown()


def test_the_same_call_gives_the_same_rows():
    model = tiny_model("llama")
    one, two = (eics.damage(model, some_circuit(model), PROMPTS[:2], **SMALL, off_circuit=0) for _ in range(2))
    assert one.rows == two.rows


def made_rows(effect, outside, prompts=30, nodes=3, seed=0):
    """Synthetic rows with a known effect on C_sh."""
    draw = np.random.default_rng(seed)
    rows = []

    def row(prompt, kind, strength, node, place, like, c_sh, rank):
        ranks = {} if rank is None else {"well-posed.rank_joint": rank, "well-posed.nodes": 10}
        return {
            "id": prompt, "kind": kind, "strength": strength, "node": node, "place": place, "like": like,
            "status": "ok", "reason": None, "change_norm": 1.0, "well-posed.c_sh": float(c_sh), **ranks,
        }  # fmt: skip

    for prompt in range(prompts):
        base = draw.normal()
        rows.append(row(prompt, "none", 0.0, "", "none", None, base, None))
        for strength, node in itertools.product((0.5, 1.0), range(nodes)):
            noise = 0.1 * draw.normal(size=2)
            rank = 1.0 if effect else float(draw.integers(1, 11))
            inside = base + strength * effect + noise[0]
            rows.append(row(prompt, "noise", strength, f"m{node}", "circuit", None, inside, rank))
            other = base + strength * outside + noise[1]
            rows.append(row(prompt, "noise", strength, f"m{node + 5}", "outside", f"m{node}", other, None))
    return rows


SETTINGS = {
    "configurations": {"well-posed": {}}, "circuit": {"name": "made"}, "kinds": ["noise"], "damage_seed": 0,
    "strengths": [0.5, 1.0],
    "partners": {f"m{n}": [f"m{n + 5}"] for n in range(3)},
}  # fmt: skip


def test_curves_are_the_formulas_written_out():
    rows = made_rows(1.0, 0.2)
    found = summarize(rows, SETTINGS)
    calm = {row["id"]: row["well-posed.c_sh"] for row in rows if row["kind"] == "none"}
    some = [row for row in rows if row["place"] == "circuit" and row["strength"] == 1.0]
    outside = [row for row in rows if row["place"] == "outside" and row["strength"] == 1.0]
    (point,) = [p for p in found.curve("well-posed.c_sh", "noise", "circuit") if p.strength == 1.0]
    change = np.mean([row["well-posed.c_sh"] - calm[row["id"]] for row in some])
    assert point.change.value == pytest.approx(change)
    less = np.mean([row["well-posed.c_sh"] - calm[row["id"]] for row in outside])
    assert point.difference.value == pytest.approx(change - less)
    wins = [row["well-posed.c_sh"] > other for row in some for other in calm.values()]
    assert point.auroc.value == pytest.approx(np.mean(wins))
    assert point.paired.value == pytest.approx(np.mean([row["well-posed.c_sh"] > calm[row["id"]] for row in some]))
    for interval in (point.change, point.auroc, point.difference):
        assert interval.low < interval.value < interval.high
    assert point.change.low > 0.9
    assert point.change.high < 1.1


def test_intervals_cover_the_truth():
    """In nearly all of 60 synthetic runs, the 95% interval includes the true change."""
    held = 0
    for seed in range(60):
        found = summarize(made_rows(0.3, 0.0, prompts=25, nodes=2, seed=seed), SETTINGS)
        interval = found.curve("well-posed.c_sh", "noise", "circuit")[-1].change
        held += interval.low <= 0.3 <= interval.high
    assert 50 <= held <= 60


@pytest.mark.parametrize(
    ("effect", "outside", "says"),
    [
        (1.0, 0.0, "rises with damage to the circuit and stays put under equal damage outside"),
        (1.0, 0.3, "rises with damage to the circuit and moves less under equal damage outside"),
        (1.0, -0.5, "rises with damage to the circuit and moves the other way under equal damage outside"),
        (1.0, 1.0, "rises with damage to the circuit, but no evidence that by more than under equal damage outside"),
        (-1.0, 0.0, "falls with damage to the circuit, the wrong way"),
        (0.0, 0.0, "no evidence that it rises with damage to the circuit"),
    ],
)
def test_words_follow_the_numbers(effect, outside, says):
    found = summarize(made_rows(effect, outside), SETTINGS)
    said = sentences(found)
    assert f"C_sh, well-posed: {says} (noise)." in said
    points = [sentence for sentence in said if sentence.startswith("Damaged node by share of the joint residual")]
    expected = "points at the damaged node under noise; first in noise 100%" if effect else "no evidence that it points"
    assert expected in points[0]
    assert "by chance 10%" in points[0]
    assert all(sentence in markdown(found) for sentence in said)


def test_few_prompts_say_nothing():
    said = sentences(summarize(made_rows(1.0, 0.0, prompts=9), SETTINGS))
    assert said[-1] == "9 prompts are too few for a verdict: at least 10 are needed."
    assert len(said) == 2


@pytest.mark.parametrize(("total", "ours"), [(1, 1), (4, 1), (5, 2), (5, 5), (6, 3)])
def test_chance_is_the_mean_over_all_orders(total, ours):
    ranks = [min(order[:ours]) + 1 for order in itertools.permutations(range(total))]
    expected = np.mean([1 / rank for rank in ranks]), np.mean([rank == 1 for rank in ranks])
    assert chance(total, ours) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kinds": ["melt"]}, "'kinds' option must be some of noise, ablate, patch, steer"),
        ({"kinds": []}, "'kinds' option"),
        ({"strengths": [-1]}, "'strengths' option must be finite numbers >= 0"),
        ({"strengths": [0]}, "'strengths' option must be above 0"),
        ({"strengths": [3], "kinds": ["noise", "ablate"]}, "for ablate one of them at most 1"),
        ({"nodes": 0}, "'nodes' option must be a whole number >= 1"),
        ({"nodes": "some"}, "'nodes' option"),
        ({"nodes": ["a0.h0"]}, "nodes of the circuit that write"),
        ({"nodes": ["logits"]}, "nodes of the circuit that write"),
        ({"off_circuit": -1}, "'off_circuit' option"),
        ({"at": "first"}, "'at' option must be 'all', 'last' or a list"),
        ({"vector": [1.0, 2.0]}, "24 numbers, the model's width"),
        ({"alpha": "auto"}, "damaged runs must not choose their own units"),
        ({"preset": "best"}, "'preset' option must be one of paper, well-posed, both"),
        ({"readout": "tokens"}, "'readout' option"),
        ({"mood": 1}, "Unknown option 'mood'"),
        ({"resume": True}, "--resume needs --out DIR"),
        ({"ids": ["a", "a", "b", "c"]}, "an id of its own. Got 'a' twice"),
    ],
)
def test_what_cannot_be_is_refused(options, says):
    model = tiny_model("llama")
    with pytest.raises(OptionError, match=says.replace("(", "\\(")):
        eics.damage(model, some_circuit(model), PROMPTS, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    module = tiny_module("llama")
    module.save_pretrained(folder / "model")
    edges = [str(edge) for edge in some_circuit(tiny_model("llama")).edges]
    (folder / "circuit.json").write_text(json.dumps({"format": "eics-circuit", "version": 2, "edges": edges}))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in PROMPTS))
    (folder / "vector.json").write_text(json.dumps([1.0] * 24))
    (folder / "short.json").write_text(json.dumps([1.0] * 3))
    (folder / "wrong.json").write_text('{"up": 1}')
    return folder


def command(place, *more):
    about = ["--model", place / "model", "--circuit", place / "circuit.json", "--prompts", place / "prompts.jsonl"]
    return CliRunner().invoke(main, ["damage", *map(str, [*about, "--dtype", "float64", *more])])


def test_from_the_command_line(place, tmp_path):
    small = ["--kind", "steer", "--strengths", "0,0.5", "--nodes", "m2", "--out", tmp_path / "run"]
    small += ["--preset", "well-posed"]
    result = command(place, *small, "--vector", place / "vector.json", "--at", "last")
    assert result.exit_code == 0, result.output
    assert "4 prompts are too few" in " ".join(result.output.split())
    model = tiny_model("llama")
    same = eics.damage(
        model, some_circuit(model), PROMPTS, kinds=["steer"], strengths=[0.5], nodes=["m2"],
        at="last", vector=[1.0] * 24,
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "damage.jsonl").read_text().splitlines()]
    assert [row["well-posed.c_sh"] for row in rows] == pytest.approx(
        [row["well-posed.c_sh"] for row in same.rows], rel=1e-6
    )
    quiet = command(place, *small, "--vector", place / "vector.json", "--at", "last", "--resume", "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")
    few = ["--kind", "ablate", "--nodes", 1, "--limit", 2, "--strengths", "1", "--off-circuit", 0]
    limited = command(place, *few, "--out", tmp_path / "two", "--preset", "well-posed", "--quiet")
    assert limited.exit_code == 0, limited.output
    assert len((tmp_path / "two" / "damage.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--strengths", "0,much"], "'strengths' option must be numbers separated by commas. Got '0,much'"),
        (["--at", "first"], "'at' option must be all, last or whole numbers"),
        (["--nodes", "0"], "'nodes' option must be a whole number >= 1"),
        (["--nodes", "m2,nobody"], "nodes of the circuit that write"),
        (["--kind", "melt"], "'kinds' option must be some of"),
        (["--vector", "short.json"], "24 numbers, the model's width"),
        (["--vector", "wrong.json"], "a JSON list of numbers"),
        (["--vector", "nowhere.json"], "must be a readable JSON file"),
        (["--out", "circuit.json"], "'out' option must be a folder"),
    ],
)
def test_bad_input_is_one_line(place, tmp_path, more, says):
    paths = [place / word if word.endswith(".json") else word for word in more]
    result = command(place, "--out", tmp_path / "run", *paths)
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"kinds": None}, "'kinds' option must be some of"),
        ({"strengths": 5}, "'strengths' option must be a list of finite numbers"),
        ({"nodes": 1.5}, "'nodes' option must be a whole number"),
        ({"vector": "x"}, "'vector' option must be a list of finite numbers"),
        ({"batch_size": 0}, "'batch_size' option must be a whole number >= 1"),
        ({"batch_size": "8"}, "'batch_size' option must be a whole number >= 1"),
        ({"out": 5}, "output folder must be given as text or a path"),
        ({"out": "/dev/null/folder"}, "must be in a folder that exists and can be written: Not a directory"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_by_name(option, says):
    model = tiny_model("llama")
    with pytest.raises(OptionError, match=says):
        eics.damage(model, some_circuit(model), PROMPTS, **SMALL | option)
