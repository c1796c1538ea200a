"""One prompt's scored circuit for other tools."""

import json

import jsonschema
import pytest
from click.testing import CliRunner

import eics
from eics.circuits.formats import read_graph
from eics.cli import main
from eics.cli.export import FORMATS
from support.report_records import make_circuit, make_score, usual_scores

# The required fields of Neuronpedia's schema 1.0.0 for attribution graphs, copied from its schema file.
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
OBJECT = {"type": "object"}
NEURONPEDIA = OBJECT | {
    "required": ["metadata", "qParams", "nodes", "links"],
    "properties": {
        "metadata": OBJECT
        | {
            "required": ["slug", "scan", "prompt_tokens", "prompt"],
            "properties": {
                "slug": TEXT, "scan": TEXT, "prompt": TEXT, "prompt_tokens": {"type": "array", "items": TEXT},
            },
        },
        "qParams": OBJECT
        | {"properties": {"pinnedIds": {"type": "array"}, "supernodes": {"type": "array"}, "linkType": TEXT,
                          "clickedId": TEXT, "sg_pos": TEXT}},
        "nodes": {
            "type": "array",
            "items": OBJECT
            | {
                "required": ["node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp"],
                "properties": {
                    "node_id": TEXT, "feature": {"type": ["integer", "null"]}, "layer": {"type": ["string", "integer"]},
                    "ctx_idx": WHOLE, "feature_type": TEXT, "jsNodeId": TEXT, "clerp": TEXT,
                    "influence": {"type": ["number", "null"]}, "activation": {"type": ["number", "null"]},
                },
            },
        },
        "links": {
            "type": "array",
            "items": OBJECT
            | {
                "required": ["source", "target", "weight"],
                "properties": {"source": TEXT, "target": TEXT, "weight": {"type": "number"}},
            },
        },
    },
}  # fmt: skip


@pytest.fixture
def records(tmp_path):
    eics.write_records(usual_scores(), tmp_path / "scores.jsonl")
    return tmp_path / "scores.jsonl"


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_neuronpedia(records, tmp_path):
    output = run(records, tmp_path / "graph.json", "--prompt-id", "p2")
    assert "Prompt p2, preset paper: 52 edges" in output
    content = json.loads((tmp_path / "graph.json").read_text())
    jsonschema.Draft7Validator(NEURONPEDIA).validate(content)
    score = next(score for score in usual_scores() if score.id == "p2")
    assert content["metadata"]["prompt"] == score.prompt
    assert content["metadata"]["prompt_tokens"] == score.tokens
    assert content["metadata"]["eics"]["c_sh"] == score.c_sh
    ids = {node["node_id"]: node for node in content["nodes"]}
    assert len(ids) == len(score.norms)
    links = {(ids[link["source"]]["clerp"], ids[link["target"]]["clerp"]): link for link in content["links"]}
    for edge in score.edges:
        link = links[edge.source, edge.target]
        assert (link["weight"], link["eics_share"]) == (edge.attribution, edge.share)
        assert (link["eics_residual"], link["eics_cosine"]) == (edge.residual, edge.cosine)
    named = {node["clerp"]: node for node in content["nodes"]}
    assert named["m1"]["eics_norm"] == score.norms["m1"]
    assert named["m1"]["eics_ei"] == score.ei_parts["m1"]


def test_eap_json(records, tmp_path):
    run(records, tmp_path / "graph.json", "--to", "eap-json")
    content = json.loads((tmp_path / "graph.json").read_text())
    edge = usual_scores()[0].edges[0]
    written = next(
        fields for name, fields in content["edges"].items() if name.startswith(f"{edge.source}->{edge.target}")
    )
    assert written["in_graph"] is True
    assert (written["score"], written["eics_share"]) == (edge.attribution, edge.share)
    assert content["nodes"]["m1"]["eics_norm"] == usual_scores()[0].norms["m1"]
    assert content["cfg"]["n_layers"] == 3


@pytest.mark.parametrize(("preset", "index"), [("paper", 0), ("well-posed", 1)])
def test_the_preset_is_chosen_and_named(records, tmp_path, preset, index):
    output = run(records, tmp_path / "graph.json", "--preset", preset)
    assert f"Prompt p0, preset {preset}: 52 edges" in output
    content = json.loads((tmp_path / "graph.json").read_text())
    assert content["metadata"]["eics"]["c_sh"] == usual_scores()[index].c_sh


def test_a_changed_preset_is_still_that_preset(tmp_path):
    scores = [make_score(make_circuit(1, 1), 0, 1, preset, metric="euclidean") for preset in ("paper", "well-posed")]
    eics.write_records(scores, tmp_path / "s.jsonl")
    output = run(tmp_path / "s.jsonl", tmp_path / "g.json", "--preset", "well-posed")
    assert "Prompt 0, preset well-posed with euclidean: " in output
    eics.write_records(scores[:1], tmp_path / "s.jsonl")
    output = run(tmp_path / "s.jsonl", tmp_path / "none.json", "--preset", "well-posed", code=2)
    assert "must have one record of preset well-posed. It has: preset paper." in output


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_can_be_read_back(records, tmp_path, format):
    run(records, tmp_path / "out", "--to", format, "--quiet")
    graph = read_graph(tmp_path / "out")
    assert {edge[:2] for edge in graph.edges} == {(edge.source, edge.target) for edge in usual_scores()[0].edges}


def test_without_attributions_the_weight_is_the_share(tmp_path):
    circuit = eics.Circuit(["x->y", "y->z"])
    score = make_score(circuit, 0, 1, tokens=None, prompt=None)
    eics.write_records(score, tmp_path / "s.jsonl")
    run(tmp_path / "s.jsonl", tmp_path / "g.json")
    content = json.loads((tmp_path / "g.json").read_text())
    jsonschema.Draft7Validator(NEURONPEDIA).validate(content)
    assert content["metadata"]["eics"]["weight"] == "share of the squared residual"
    assert all(link["weight"] == link["eics_share"] for link in content["links"])
    assert "must name nodes of a transformer" in run(tmp_path / "s.jsonl", tmp_path / "g", "--to", "eap-json", code=2)


def test_shares_of_nodes_and_branches(tmp_path):
    score = make_score(make_circuit(1, 1), 0, 1, "well-posed", parts="branches", ei_parts={"m0->logits": 2.0})
    eics.write_records(score, tmp_path / "s.jsonl")
    run(tmp_path / "s.jsonl", tmp_path / "g.json")
    nodes = {node["clerp"]: node for node in json.loads((tmp_path / "g.json").read_text())["nodes"]}
    assert nodes["m0"]["eics_share"] == next(term.share for term in score.nodes if term.node == "m0")


def test_errors_are_clear(records, tmp_path):
    before = records.read_bytes()
    assert "OUT must not be the same file as RECORDS" in run(records, records, code=2)
    assert "folder that exists" in run(records, tmp_path / "none" / "g.json", code=2)
    assert "Prompt too long failed" in run(records, tmp_path / "g", "--prompt-id", "too long", code=2)
    assert "It has none" in run(records, tmp_path / "g", "--prompt-id", "p99", code=2)
    assert records.read_bytes() == before
