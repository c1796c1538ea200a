"""Reading every format from files built by hand after its description."""

import json
import sys
import types
from dataclasses import dataclass
from importlib.resources import files

import jsonschema
import networkx  # comes with torch
import pytest
import torch

import eics
from eics import Circuit, CircuitError, Edge
from eics.circuits.formats import CircuitGraph, ModelShape, read_graph, write_graph
from support.circuit_files import all_edges, eap, neuronpedia, tracer_node, write_json, write_pickle, write_torch


def names(edges) -> set[str]:
    return {str(edge) for edge in edges}


def test_own_version_1_with_extra_keys(tmp_path):
    content = {
        "format": "eics-circuit",
        "version": 1,
        "edges": ["x->y", ["y", "z"]],
        "positions": {"y": [2]},
        "about": "b",
    }
    graph = read_graph(write_json(tmp_path / "a file without an ending", content))
    assert graph.format == "eics-circuit"
    assert graph.metadata == {"about": "b"}
    assert graph.circuit() == Circuit(["x->y", "y->z"], positions={"y": [2]})


def test_own_version_2(tmp_path):
    content = {
        "format": "eics-circuit",
        "version": 2,
        "edges": ["input->a0.h1<q>", "a0.h1->logits", "input->logits"],
        "scores": {"input->logits": -3},
        "left_out": ["input->logits"],
        "shape": {"n_layers": 1, "n_heads": 2},
        "metadata": {"task": "ioi"},
    }
    graph = read_graph(write_json(tmp_path / "c", content))
    assert names(graph.kept) == {"input->a0.h1<q>", "a0.h1->logits"}
    assert graph.scores == {Edge("input", "logits"): -3.0}
    assert graph.shape == ModelShape(1, 2)
    assert graph.metadata == {"task": "ioi"}
    assert graph.circuit().scores == {}


def test_own_files_fit_the_schema(tmp_path):
    schema = json.loads((files("eics.circuits.formats") / "eics-circuit.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema).validate
    edges = (Edge("input", "a0.h1", "q"), Edge("a0.h1", "logits"))
    full = CircuitGraph(
        edges,
        scores={edges[0]: 1.5},
        kept=frozenset(edges[:1]),
        shape=ModelShape(1, 2, False, 4),
        positions={"a0.h1": (3,)},
        node_attributes={"a0.h1": {"score": float("nan")}},
        edge_attributes={edges[1]: {"share": 0.5}},
        metadata={"task": "ioi"},
    )
    for graph, version in ((CircuitGraph(edges), 1), (full, 2)):
        write_graph(graph, tmp_path / "c.json")
        content = json.loads((tmp_path / "c.json").read_text())
        assert content["version"] == version
        check(content)
    for name in (files("eics.data") / "circuits").iterdir():
        check(json.loads(name.read_text()))
    for bad in ({"edges": ["x"]}, {"scores": {"x->y": "1"}}, {"shape": {"n_layers": 0, "n_heads": 1}}, {"version": 3}):
        with pytest.raises(jsonschema.ValidationError):
            check({"format": "eics-circuit", "version": 2, "edges": ["x->y"]} | bad)


KEPT = ("input->a0.h1<q>", "a0.h1->a1.h0<v>", "a1.h0->logits")


def test_eap_json(tmp_path):
    graph = read_graph(write_json(tmp_path / "c", eap(kept=KEPT, score=lambda index: index / 8)))
    assert graph.format == "eap-json"
    assert graph.shape == ModelShape(2, 2, False, 8)
    assert names(graph.kept) == set(KEPT)
    assert [str(edge) for edge in graph.edges] == all_edges(2, 2)
    assert graph.scores[Edge("input", "a0.h0", "k")] == 1 / 8
    assert graph.circuit().scores[Edge("a1.h0", "logits")] == graph.scores[Edge("a1.h0", "logits")]


def test_eap_json_extra_keys_come_back(tmp_path):
    content = eap(kept=KEPT, device="cpu") | {"faithfulness": 0.9}
    content["nodes"]["a0.h1"] |= {"score": float("nan"), "neurons": [True] * 8}
    content["edges"][KEPT[0]]["eics_share"] = 0.25
    graph = read_graph(write_json(tmp_path / "c", content))
    write_graph(graph, tmp_path / "d", "eap-json")
    assert json.dumps(json.loads((tmp_path / "d").read_text())) == json.dumps(content)


def their_reader(content) -> dict[str, bool]:
    """What EAP-IG's own `from_json` needs of a file, after its description: a graph from cfg, then look-ups."""
    cfg = content["cfg"]
    edges = dict.fromkeys(all_edges(cfg["n_layers"], cfg["n_heads"], cfg["parallel_attn_mlp"]))
    nodes = {end for edge in edges for end in edge.split("<")[0].split("->")}
    assert isinstance(cfg["d_model"], int)
    assert all(node in nodes and isinstance(entry["in_graph"], bool) for node, entry in content["nodes"].items())
    return {
        name: (edges[name], float(entry["score"]), entry["in_graph"])[2] for name, entry in content["edges"].items()
    }


def test_eap_json_from_a_circuit_without_ports(tmp_path):
    circuit = Circuit(["input->a0.h1", "a0.h1->m1", "m1->logits"], positions={"m1": [2]})
    notes = write_graph(CircuitGraph.of(circuit), tmp_path / "c.json", "eap-json")
    flags = their_reader(json.loads((tmp_path / "c.json").read_text()))
    assert set(flags) == {f"input->a0.h1<{port}>" for port in "qkv"} | {"a0.h1->m1", "m1->logits"}
    assert any("written three times" in note for note in notes)
    assert any("smallest" in note for note in notes)
    again = read_graph(tmp_path / "c.json")
    assert again.circuit().positions == {"m1": (2,)}
    assert again.scores == {}
    with pytest.raises(CircuitError, match=r"nodes of a transformer\. Got 'x'"):
        write_graph(CircuitGraph.of(Circuit(["x->y"])), tmp_path / "d.json", "eap-json")


@pytest.mark.parametrize("parallel", [False, True])
def test_eap_pt(tmp_path, parallel):
    sources = ["input", "a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1"]
    targets = [f"a{layer}.h{h}<{port}>" if h < 2 else f"m{layer}" for layer in (0, 1) for port, h in
               [*((p, h) for p in "qkv" for h in (0, 1)), ("", 2)]] + ["logits"]  # fmt: skip
    scores = torch.arange(7 * 15, dtype=torch.float32).view(7, 15)
    flags = torch.zeros(7, 15, dtype=torch.bool)
    flags[0, targets.index("a0.h1<k>")] = flags[2, targets.index("logits")] = True
    value = {
        "cfg": {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": parallel, "d_model": 4},
        "src_nodes": sources,
        "dst_nodes": targets,
        "edges_scores": scores,
        "edges_in_graph": flags,
        "nodes_in_graph": torch.tensor([True, False, True, False, False, False, False]),
        "nodes_scores": torch.full((7,), 0.5),
        "neurons_in_graph": torch.ones(7, 4, dtype=torch.bool),
    }
    graph = read_graph(write_torch(tmp_path / "c", value))
    assert graph.format == "eap-pt"
    assert names(graph.kept) == {"input->a0.h1<k>", "a0.h1->logits"}
    assert names(graph.edges) == set(all_edges(2, 2, parallel))
    assert graph.scores[Edge("m0", "a1.h1", "v")] == scores[3, targets.index("a1.h1<v>")]
    assert graph.node_attributes["a0.h1"] == {"in_graph": True, "score": 0.5, "neurons": [True] * 4}
    flags[5, 0] = True
    with pytest.raises(CircuitError, match=r"keeps a1\.h1->a0\.h0<q>"):
        read_graph(write_torch(tmp_path / "c", value))
    with pytest.raises(CircuitError, match=r"tensor edges_scores of shape \(7, 15\). Got \(7, 14\)"):
        read_graph(write_torch(tmp_path / "c", value | {"edges_scores": scores[:, :14].clone()}))


def test_edge_pruning(tmp_path):
    pairs = [["tok_embeds", "a0.h1.q"], ["pos_embeds", "a0.h1.q"], ["a0.h1", "m3"], ["m3", "resid_post"],
             ["a0.h1.q", "a0.h1"]]  # fmt: skip
    graph = read_graph(write_json(tmp_path / "edges.json", pairs))
    assert graph.format == "edge-pruning"
    assert graph.circuit() == Circuit(["input->a0.h1<q>", "a0.h1->m3", "m3->logits"])
    assert any("1 edges were merged" in note for note in graph.notes)
    for pair, says in ((["a0.h1", "foo"], "Item 5 names 'foo'"), (["a0.h1", "m3"], "Item 5 gives a0.h1 to m3 again"),
                       (["a0.h1"], "Item 5 is"), (["a0.h1.k", "m1"], "Item 5 leaves a0.h1.k")):  # fmt: skip
        with pytest.raises(CircuitError, match=says):
            read_graph(write_json(tmp_path / "edges.json", [*pairs, pair]))


def head(index: int) -> tuple:
    return (None, None, index)


ACDC = {
    ("blocks.1.hook_q_input", head(2), "blocks.0.attn.hook_result", head(3)): True,
    ("blocks.1.attn.hook_q", head(2), "blocks.1.hook_q_input", head(2)): True,
    ("blocks.1.attn.hook_result", head(2), "blocks.1.attn.hook_q", head(2)): True,
    ("blocks.1.hook_k_input", head(2), "hook_pos_embed", (None,)): True,
    ("blocks.1.attn.hook_k", head(2), "blocks.1.hook_k_input", head(2)): False,
    ("blocks.0.hook_v_input", head(3), "hook_embed", (None,)): True,
    ("blocks.0.hook_v_input", head(3), "hook_pos_embed", (None,)): False,
    ("blocks.0.hook_mlp_in", (None,), "blocks.0.attn.hook_result", head(3)): False,
    ("blocks.1.hook_resid_mid", (None,), "blocks.1.attn.hook_result", head(2)): True,
    ("blocks.1.hook_mlp_out", (None,), "blocks.1.hook_resid_mid", (None,)): True,
    ("blocks.1.hook_resid_post", (None,), "blocks.1.hook_mlp_out", (None,)): True,
    ("blocks.1.hook_resid_post", (None,), "blocks.0.hook_resid_pre", (None,)): False,
}
IN_ACDC = {"a0.h3->a1.h2<q>", "input->a0.h3<v>", "a1.h2->m1", "m1->logits"}


@pytest.mark.parametrize("legacy", [False, True])
def test_acdc_flags(tmp_path, legacy):
    torch.save(ACDC, tmp_path / "c", _use_new_zipfile_serialization=not legacy)
    graph = read_graph(tmp_path / "c")
    assert graph.format == "acdc-pth"
    assert names(graph.kept) == IN_ACDC
    assert names(graph.edges) == IN_ACDC | {"input->a1.h2<k>", "a0.h3->m0", "input->logits"}
    assert any("contracted" in note for note in graph.notes)
    assert any("cuts off" in note for note in graph.notes)


class TorchIndex:
    """Like ACDC's class, of which a pickle holds the state."""

    def __init__(self, entries):
        self.as_index = tuple(slice(None) if entry is None else entry for entry in entries)
        self.hashable_tuple = tuple(entries)


@pytest.fixture
def foreign(monkeypatch):
    """Pretends that a class lives in another package while it is pickled."""

    def put(cls, module):
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            name = ".".join(parts[:i])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setattr(sys.modules[module], cls.__name__, cls, raising=False)
        monkeypatch.setattr(cls, "__module__", module)
        return cls

    return put


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_acdc_effects(tmp_path, foreign, protocol):
    index = foreign(TorchIndex, "acdc.TLACDCEdge")
    listed = [
        ((child, index(at), parent, index(origin)), None if "mlp" in parent else 0.25)
        for (child, at, parent, origin), flag in ACDC.items()
        if flag and not child.endswith("hook_result") and "k_input" not in child
    ]
    graph = read_graph(write_pickle(tmp_path / "c", listed, protocol))
    assert graph.format == "acdc-edges"
    assert graph.kept is None
    assert names(graph.edges) == IN_ACDC
    assert graph.scores == {edge: 0.25 for edge in graph.edges if edge.source != "m1"}


def test_acdc_refuses_hooks_outside_the_graph(tmp_path):
    good = ("blocks.1.hook_q_input", head(2), "blocks.0.attn.hook_result", head(3))
    for key, says in (
        (("blocks.1.hook_scale", head(2), *good[2:]), "hook_scale"),
        (("blocks.1.hook_q_input", (None,), *good[2:]), "which head it means by blocks.1.hook_q_input"),
        (("blocks.0.hook_resid_post", (None,), "blocks.0.hook_mlp_out", (None,)), "after the last layer"),
        (("blocks.1.hook_mlp_in", (None,), "blocks.1.hook_q_input", head(0)), "leave a node where it writes"),
    ):
        with pytest.raises(CircuitError, match=says):
            read_graph(write_torch(tmp_path / "c", {good: True, key: True}))


def test_interpbench(tmp_path):
    pairs = [
        ("hook_embed", "blocks.0.hook_q_input[1]"),
        ("blocks.0.hook_q_input[1]", "blocks.0.attn.hook_q[1]"),
        ("blocks.0.attn.hook_result[1]", "blocks.1.hook_mlp_in"),
        ("hook_embed", "blocks.1.attn.hook_result[:, :, 0]"),
        ("blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"),
    ]
    graph = read_graph(write_pickle(tmp_path / "edges.pkl", pairs))
    assert graph.format == "interpbench"
    assert graph.circuit() == Circuit(["input->a0.h1<q>", "a0.h1->m1", "input->a1.h0", "m1->logits"])
    with pytest.raises(CircuitError, match="Item 5"):
        read_graph(write_pickle(tmp_path / "edges.pkl", [*pairs, 3]))


def auto_circuit_scores(positions: int | None = None, parallel: bool = False) -> dict[str, torch.Tensor]:
    """Two layers of two heads, with sources Resid Start, A0.0, A0.1, MLP 0, A1.0, A1.1, MLP 1."""
    sizes = {"blocks.1.hook_resid_post": (7,)}
    for layer, before in ((0, 1), (1, 4)):
        sizes |= {f"blocks.{layer}.hook_{port}_input": (2, before) for port in "qkv"}
        sizes[f"blocks.{layer}.hook_mlp_in"] = (before if parallel else before + 2,)
    lead = () if positions is None else (positions,)
    return {
        name: torch.arange(float(torch.Size(lead + size).numel())).view(lead + size) for name, size in sizes.items()
    }


@pytest.mark.parametrize("write", [write_pickle, write_torch])
@pytest.mark.parametrize("parallel", [False, True])
def test_auto_circuit(tmp_path, write, parallel):
    scores = auto_circuit_scores(parallel=parallel)
    graph = read_graph(write(tmp_path / "c", {"ioi": {"EAP": scores}}))
    assert graph.format == "auto-circuit"
    assert graph.shape == ModelShape(2, 2, parallel)
    assert names(graph.edges) == set(all_edges(2, 2, parallel))
    assert graph.scores[Edge("m0", "a1.h1", "k")] == scores["blocks.1.hook_k_input"][1, 3]
    assert graph.scores[Edge("a1.h1", "logits")] == 5
    with pytest.raises(CircuitError, match="It holds EAP, ACDC"):
        read_graph(write(tmp_path / "c", {"ioi": {"EAP": scores, "ACDC": scores}}))
    scores["blocks.1.hook_q_input"] = torch.zeros(2, 5)
    with pytest.raises(CircuitError, match=r"must score 4 sources of blocks\.1\.hook_q_input"):
        read_graph(write(tmp_path / "c", scores))


def test_auto_circuit_by_position_and_by_its_own_names(tmp_path):
    by_position = auto_circuit_scores(positions=3)
    graph = read_graph(write_torch(tmp_path / "c", by_position))
    assert graph.scores[Edge("m0", "a1.h1", "k")] == by_position["blocks.1.hook_k_input"][:, 1, 3].sum()
    assert any("added up" in note for note in graph.notes)
    own = {f"A0.{h}.{port}": torch.ones(1) for h in (0, 1) for port in "QKV"}
    own |= {"MLP 0": torch.arange(3.0), "Resid End": torch.arange(4.0)}
    graph = read_graph(write_torch(tmp_path / "c", own))
    assert names(graph.edges) == set(all_edges(1, 2))
    assert graph.scores[Edge("m0", "logits")] == 3


def features() -> list[dict]:
    return [
        tracer_node("embedding", "E", 0, 0, "E_5_0"),
        tracer_node("cross layer transcoder", 0, 77, 1, "0_77_1"),
        tracer_node("cross layer transcoder", 2, 9, 1, "2_9_1"),
        tracer_node("mlp reconstruction error", 1, -1, 1, "1_-1_1"),
        tracer_node("logit", 4, 12, 1, "4_12_1"),
    ]


LINKS = [("E_5_0", "0_77_1", 1.0), ("0_77_1", "2_9_1", -2.0), ("1_-1_1", "2_9_1", 0.5), ("2_9_1", "4_12_1", 3.0)]


def test_neuronpedia(tmp_path):
    more = tracer_node("cross layer transcoder", 2, 8, 0, "2_8_0")
    content = neuronpedia([*features(), more], [*LINKS, ("0_77_1", "2_8_0", 0.75)])
    graph = read_graph(write_json(tmp_path / "c", content))
    assert graph.format == "neuronpedia"
    assert graph.scores == {
        Edge("input", "m0"): 1.0, Edge("m0", "m2"): 2.75, Edge("m1", "m2"): 0.5, Edge("m2", "logits"): 3.0
    }  # fmt: skip
    assert [node["feature"] for node in graph.node_attributes["m2"]["nodes"]] == [9, 8]
    assert graph.metadata["metadata"]["prompt"] == "a b"
    assert any("1 edges were merged" in note for note in graph.notes)
    write_graph(graph, tmp_path / "d", "neuronpedia")
    again = json.loads((tmp_path / "d").read_text())
    assert again["metadata"] == content["metadata"]
    for key, order in (("nodes", "node_id"), ("links", "weight")):
        assert sorted(again[key], key=lambda entry: entry[order]) == sorted(
            content[key], key=lambda entry: entry[order]
        )


def test_older_neuronpedia_ids_of_error_nodes(tmp_path):
    """The error of layer 2 and feature 2 of layer 0, both at position 1, share the id 0_2_1."""
    nodes = [
        tracer_node("embedding", "E", 0, 0, "E_5_0"),
        tracer_node("cross layer transcoder", 0, 2, 1, "0_2_1"),
        tracer_node("mlp reconstruction error", 2, -1, 1, "0_2_1"),
        tracer_node("cross layer transcoder", 1, 3, 1, "1_3_1"),
        tracer_node("cross layer transcoder", 3, 4, 1, "3_4_1"),
        tracer_node("logit", 5, 12, 1, "5_12_1"),
    ]
    links = [
        ("E_5_0", "0_2_1", 1.0),  # no link ends in an error node: the feature
        ("0_2_1", "1_3_1", 2.0),  # layer 2 is not before layer 1: the feature
        ("0_2_1", "3_4_1", 4.0),  # twice: the feature, then the error
        ("0_2_1", "3_4_1", 8.0),
        ("0_2_1", "5_12_1", 16.0),  # could be either
    ]
    graph = read_graph(write_json(tmp_path / "c", neuronpedia(nodes, links)))
    assert graph.scores == {
        Edge("input", "m0"): 1.0, Edge("m0", "m1"): 2.0, Edge("m0", "m3"): 4.0, Edge("m2", "m3"): 8.0,
        Edge("m0", "logits"): 16.0,
    }  # fmt: skip
    assert [note for note in graph.notes if "1 links leave an id" in note and "links[4]" in note]


@dataclass
class HookedTransformerConfig:
    n_layers: int
    dtype: torch.dtype


@dataclass
class LogitTarget:
    token_str: str
    vocab_idx: int


@pytest.mark.parametrize("targets", ["list", "tensor"])
def test_circuit_tracer_pt(tmp_path, foreign, targets):
    """Two layers, two tokens: 2 selected features (of 3), 4 errors, 2 tokens and 1 logit make 9 nodes."""
    foreign(HookedTransformerConfig, "transformer_lens.HookedTransformerConfig")
    foreign(LogitTarget, "circuit_tracer.attribution.targets")
    matrix = torch.zeros(9, 9)
    matrix[0, 6] = -1.0  # token 0 to the feature of layer 0
    matrix[1, 0] = 2.0  # layer 0 to layer 1
    matrix[1, 3] = -0.5  # error of layer 0 at position 1 to layer 1
    matrix[8, 1] = 3.0  # layer 1 to the logit
    matrix[8, 5] = 0.25  # error of layer 1 at position 1 to the logit
    value = {
        "input_string": "a b",
        "adjacency_matrix": matrix,
        "cfg": HookedTransformerConfig(2, torch.float32),
        "active_features": torch.tensor([[0, 0, 70], [0, 1, 71], [1, 1, 72]]),
        "selected_features": torch.tensor([1, 2]),
        "activation_values": torch.ones(3),
        "input_tokens": torch.tensor([4, 5]),
        "logit_targets": [LogitTarget("x", 3)] if targets == "list" else torch.tensor([3]),
        "logit_probabilities": torch.ones(1),
        "vocab_size": 10,
        "scan_name": "gemma",
    }
    graph = read_graph(write_torch(tmp_path / "c", value))
    assert graph.format == "circuit-tracer-pt"
    assert graph.scores == {
        Edge("input", "m0"): 1.0, Edge("m0", "m1"): 2.5, Edge("m1", "logits"): 3.25
    }  # fmt: skip
    assert graph.node_attributes["m0"] == {"features": [{"ctx_idx": 1, "feature": 71}]}
    with pytest.raises(CircuitError, match="square matrix over 2 features"):
        read_graph(write_torch(tmp_path / "c", value | {"adjacency_matrix": torch.zeros(8, 8)}))
    with pytest.raises(CircuitError, match="among its 3 active ones"):
        read_graph(write_torch(tmp_path / "c", value | {"selected_features": torch.tensor([1, 7])}))


@pytest.mark.parametrize(
    "text",
    [
        "source,target,port,score,in_graph,share\ninput,a0.h1,q,0.5,true,7\na0.h1,logits,,-1e-3,false,\n",
        "From;To;Port;Weight;Kept;share\r\ninput;a0.h1;q;0.5;1;7\r\na0.h1;logits;;-0.001;0;\r\n",
        "edge\tscore\tin_graph\tshare\ninput->a0.h1<q>\t0.5\tTrue\t7\na0.h1->logits\t-0.001\tFalse\t\n",
        "\ufeffsource,target,port,score,in_graph,share\n\ninput, a0.h1 ,q,0.5,true,7\na0.h1,logits,,-0.001,false,\n",
    ],
)
def test_csv(tmp_path, text):
    (tmp_path / "c").write_text(text, encoding="utf-8", newline="")
    graph = read_graph(tmp_path / "c")
    first, second = Edge("input", "a0.h1", "q"), Edge("a0.h1", "logits")
    assert graph.format == "csv"
    assert graph.edges == (first, second)
    assert graph.scores == {first: 0.5, second: -0.001}
    assert graph.kept == {first}
    assert graph.edge_attributes == {first: {"share": 7}}


def test_csv_names_the_line(tmp_path):
    for row, says in (
        ("a0.h1,logits,x,true", "Line 3 has 'x'"),
        ("a0.h1,logits,1", "Line 3 has 3"),
        ("a0.h1,logits,1,maybe", "Line 3 has 'maybe'"),
        ("a0.h1,logits,1,", "Edge a0.h1->logits has none"),
        ("a0.h1,logits,nan,true", "finite"),
        ("input,a0.h1,1,true", "must be given once"),
        ('a0.h1,"logits,1,true', "must be CSV"),
    ):
        (tmp_path / "c").write_text(f"source,target,score,in_graph\ninput,a0.h1,0.5,true\n{row}\n")
        with pytest.raises(CircuitError, match=says):
            read_graph(tmp_path / "c")


def test_graphml_by_another_tool(tmp_path):
    graph = networkx.MultiDiGraph()
    graph.add_edge("input", "a0.h1", port="q", weight=0.5)
    graph.add_edge("input", "a0.h1", port="k", weight=-0.25)
    graph.add_edge("a0.h1", "logits", weight=2.0, share=3)
    networkx.write_graphml(graph, tmp_path / "c")
    read = read_graph(tmp_path / "c")
    assert read.format == "graphml"
    assert names(read.edges) == {"input->a0.h1<q>", "input->a0.h1<k>", "a0.h1->logits"}
    assert read.scores[Edge("input", "a0.h1", "k")] == -0.25
    assert read.edge_attributes == {Edge("a0.h1", "logits"): {"share": 3}}
    write_graph(read, tmp_path / "d.graphml")
    theirs = networkx.read_graphml(tmp_path / "d.graphml")
    assert sorted((u, v, d.get("port"), d["score"]) for u, v, d in theirs.edges(data=True)) == sorted(
        (u, v, d.get("port"), d["weight"]) for u, v, d in graph.edges(data=True)
    )


def test_dot(tmp_path):
    graph = CircuitGraph.of(Circuit(['in"put->a0.h1<q>', "a0.h1->lo\\g"], scores={Edge("a0.h1", "lo\\g"): -2.0}))
    write_graph(graph, tmp_path / "c.dot")
    text = (tmp_path / "c.dot").read_text()
    assert r'"in\"put" -> "a0.h1" [label="q"];' in text
    assert r'"a0.h1" -> "lo\\g" [score="-2.0", penwidth=4.00];' in text


def test_a_mib_folder(tmp_path):
    folder = tmp_path / "ioi_gpt2"
    folder.mkdir()
    with pytest.raises(CircuitError, match="It has none"):
        read_graph(folder)
    write_json(folder / "importances.json", eap(kept=KEPT))
    assert names(read_graph(folder).kept) == set(KEPT)
    assert read_graph(folder).metadata["file"] == "importances.json"
    write_json(folder / "0.01.json", eap(kept=KEPT))
    with pytest.raises(CircuitError, match=r"several circuits: 0.01.json, importances.json. Name one"):
        eics.load_circuit(folder)
    assert names(eics.load_circuit(folder / "0.01.json").edges) == set(KEPT)


def test_scores_of_a_circuit():
    edge = Edge("x", "y")
    assert Circuit([edge], scores={edge: 1}).scores == {edge: 1.0}
    assert Circuit([edge], scores={edge: 1}) == Circuit([edge])
    for scores, says in (
        ({Edge("x", "z"): 1.0}, "x->z: not an edge"),
        ({edge: float("inf")}, "finite"),
        ({edge: "1"}, "finite number"),
    ):
        with pytest.raises(CircuitError, match=says):
            Circuit([edge], scores=scores)
