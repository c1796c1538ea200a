"""A cut circuit says where it comes from, and nothing that was said of the whole."""

import pytest

import eics
from eics.circuits.cuts import cut, prune
from eics.circuits.formats import CircuitGraph, read_graph, write_graph
from eics.circuits.graph import Edge
from eics.circuits.load import bundled_circuits, load_graph
from eics.circuits.provenance import cut_sentence

BUNDLED = [name for name in bundled_circuits() if load_graph(name).scores]
CUTS = [({"top_edges": 5}, "top 5 edges"), ({"share": 0.1}, "top 10% of all edges")]


def speaks_of_the_whole(metadata):
    return {"faithfulness", "command", "selection", "edges_asked_for", "about", "sha256", "name"} & metadata.keys()


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize(("limit", "words"), CUTS)
def test_a_cut_circuit_has_its_own_provenance(name, limit, words):
    whole = load_graph(name)
    part = cut(whole, **limit)
    assert speaks_of_the_whole(whole.metadata)
    assert not speaks_of_the_whole(part.metadata)
    origin, steps = part.metadata["cut"]["from"], part.metadata["cut"]["steps"]
    assert (origin["sha256"], origin["edges"]) == (whole.circuit().sha256, len(whole.kept_edges))
    assert origin["faithfulness"] == whole.metadata["faithfulness"]
    assert steps == [words]
    assert part.metadata["model"] == whole.metadata["model"]  # how the scores were made still holds
    assert part.sha256 == part.circuit().sha256 != origin["sha256"]


def test_cutting_and_pruning_are_steps_of_one_cut():
    whole = load_graph("people")
    part, dropped = prune(cut(whole, top_edges=12))
    assert dropped.edges
    assert part.metadata["cut"]["steps"] == ["top 12 edges", "pruned to paths from a source to a sink"]
    assert part.metadata["cut"]["from"]["sha256"] == whole.sha256
    assert cut_sentence(part.metadata) == (
        f"Cut from a circuit of {len(whole.kept_edges)} edges: top 12 edges; pruned to paths from a source to a sink."
    )


def test_what_is_said_of_a_cut_circuit_is_lost_with_the_next_cut():
    first = cut(load_graph("people"), top_edges=20)
    first.metadata["faithfulness"] = {"corrupted": {"value": 0.4}}
    second = cut(first, top_edges=10)
    origin = second.metadata["cut"]["from"]
    assert (origin["sha256"], origin["edges"]) == (first.sha256, 20)
    assert origin["faithfulness"] == {"corrupted": {"value": 0.4}}
    assert origin["cut"]["steps"] == ["top 20 edges"]


def test_a_cut_that_keeps_everything_changes_nothing():
    whole = load_graph("people")
    assert cut(whole, share=1.0).metadata == whole.metadata
    assert eics.load_circuit("people", share=1.0).label() == eics.load_circuit("people").label()


def test_a_graph_that_keeps_nothing_has_no_hash():
    edges = (Edge("input", "m0"), Edge("m0", "logits"))
    graph = CircuitGraph(edges, dict.fromkeys(edges, 1.0), frozenset())
    assert cut(graph, top_edges=1).metadata["cut"]["from"] == {"edges": 0}


@pytest.mark.parametrize("ending", [".json", ".graphml", ".csv"])
def test_a_file_of_a_cut_circuit_keeps_its_provenance(tmp_path, ending):
    part = cut(load_graph("people"), top_edges=12)
    write_graph(part.only_kept(), tmp_path / f"part{ending}")
    metadata = read_graph(tmp_path / f"part{ending}").metadata
    assert not speaks_of_the_whole(metadata)
    if ending != ".csv":  # a table has no place for metadata, and says so
        assert metadata["cut"] == part.metadata["cut"]


def test_records_name_the_cut():
    whole, part = eics.load_circuit("people"), eics.load_circuit("people", top_edges=12)
    assert part.label()["name"] == "people, top 12 edges, pruned to paths from a source to a sink"
    assert part.label()["sha256"] != whole.label()["sha256"]
    assert eics.load_circuit("people", min_score=0.5, signed=True).name.startswith("people, score >= 0.5")
    assert eics.load_circuit("people", min_score=0.5).name.startswith("people, |score| >= 0.5")


def test_pruning_a_circuit_changes_its_name_only_if_it_drops_something():
    edges = ["input->m0", "m0->logits", "m0->m1"]
    assert prune(eics.Circuit(edges, name="mine"))[0].name == "mine, pruned to paths from a source to a sink"
    assert prune(eics.Circuit(edges[:2], name="mine"))[0].name == "mine"
    assert prune(eics.Circuit(edges))[0].name is None
