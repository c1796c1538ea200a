"""A small valid file of every format, for `hostile` to damage."""

from dataclasses import replace

import torch

import eics
from eics.circuits.formats import CircuitGraph
from eics.circuits.formats.files import WRITERS
from eics.scoring.result import failed
from support.circuit_files import eap, neuronpedia, tracer_node
from support.report_records import detailed_scores, make_circuit, make_scores

OWN = {
    "format": "eics-circuit",
    "version": 2,
    "edges": ["input->a0.h1<q>", "a0.h1->m1", "m1->logits", ["input", "logits"]],
    "scores": {"input->logits": -3, "a0.h1->m1": 0.5},
    "left_out": ["input->logits"],
    "positions": {"m1": [2, 3]},
    "shape": {"n_layers": 2, "n_heads": 2},
    "nodes": {"m1": {"score": 1.0}},
    "metadata": {"task": "ioi"},
}
NODES = [
    tracer_node("embedding", "E", 0, 0, "E_5_0"),
    tracer_node("cross layer transcoder", 0, 77, 1, "0_77_1"),
    tracer_node("mlp reconstruction error", 1, -1, 1, "1_-1_1"),
    tracer_node("logit", 4, 12, 1, "4_12_1"),
]
LINKS = [("E_5_0", "0_77_1", 1.0), ("0_77_1", "4_12_1", -2.0), ("1_-1_1", "4_12_1", 0.5)]
JSON_CIRCUITS = [
    OWN,
    eap(1, 2, kept=("input->a0.h1<q>", "a0.h1->logits")),
    neuronpedia(NODES, LINKS),
    [["tok_embeds", "a0.h1.q"], ["a0.h1", "m3"], ["m3", "resid_post"], ["a0.h1.q", "a0.h1"]],
]
GRAPH = CircuitGraph.of(eics.Circuit(["input->a0.h1<q>", "a0.h1->logits"], scores={eics.Edge("a0.h1", "logits"): -2.0}))
TABLE_CIRCUITS = [
    b"source,target,port,score,in_graph,share\ninput,a0.h1,q,0.5,true,7\na0.h1,logits,,-1e-3,false,\n",
    b"edge\tscore\tin_graph\ninput->a0.h1<q>\t0.5\tTrue\na0.h1->logits\t-0.001\tFalse\n",
    b"From;To;Port;Weight\r\ninput;a0.h1;q;0.5\r\na0.h1;logits;;-0.001\r\n",
]
GRAPHML_CIRCUITS = [WRITERS["graphml"].write(GRAPH)[0].encode()]


def head(index: int) -> tuple:
    return (None, None, index)


PICKLED_CIRCUITS = [
    {
        ("blocks.1.hook_q_input", head(2), "blocks.0.attn.hook_result", head(3)): True,
        ("blocks.1.attn.hook_q", head(2), "blocks.1.hook_q_input", head(2)): True,
        ("blocks.1.attn.hook_result", head(2), "blocks.1.attn.hook_q", head(2)): True,
        ("blocks.1.hook_resid_post", (None,), "blocks.1.attn.hook_result", head(2)): True,
    },
    [[["blocks.1.hook_mlp_in", [None], "blocks.0.attn.hook_result", [None, None, 3]], 0.25]],
    [["hook_embed", "blocks.0.hook_q_input[1]"], ["blocks.0.attn.hook_result[1]", "blocks.1.hook_mlp_in"]],
    {"A0.0.Q": torch.ones(1), "A0.0.K": torch.ones(1), "A0.0.V": torch.ones(1), "MLP 0": torch.arange(2.0),
     "Resid End": torch.arange(3.0)},
    {"ioi": {"EAP": {**{f"blocks.0.hook_{port}_input": torch.ones(2, 1) for port in "qkv"},
                     "blocks.0.hook_mlp_in": torch.ones(3), "blocks.0.hook_resid_post": torch.ones(4)}}},
    {"cfg": {"n_layers": 1, "n_heads": 1, "parallel_attn_mlp": False, "d_model": 4},
     "src_nodes": ["input", "a0.h0", "m0"],
     "dst_nodes": ["a0.h0<q>", "a0.h0<k>", "a0.h0<v>", "m0", "logits"], "edges_scores": torch.ones(3, 5),
     "edges_in_graph": torch.ones(3, 5, dtype=torch.bool).triu(), "nodes_in_graph": torch.ones(3, dtype=torch.bool),
     "nodes_scores": torch.ones(3), "neurons_in_graph": torch.ones(3, 4, dtype=torch.bool)},
    {"input_string": "a b", "adjacency_matrix": torch.ones(9, 9).tril(-1), "cfg": {"n_layers": 2},
     "active_features": torch.tensor([[0, 0, 70], [0, 1, 71], [1, 1, 72]]), "selected_features": torch.tensor([1, 2]),
     "activation_values": torch.ones(3), "input_tokens": torch.tensor([4, 5]), "logit_targets": torch.tensor([3]),
     "logit_probabilities": torch.ones(1), "vocab_size": 10, "scan_name": "gemma"},
]  # fmt: skip
ODD_TENSORS = (
    torch.zeros(0), torch.tensor(1.0), torch.tensor(float("nan")), torch.full((3,), float("inf")), torch.zeros(3, 0),
    torch.ones(9, 9, dtype=torch.complex64), torch.ones(3, dtype=torch.bool), torch.ones(2, 3, 4, 5),
    -torch.ones(3).long(),
    torch.full((2,), 2**62), torch.ones(3).half(), torch.ones(3).to_sparse(), torch.ones(1).expand(1000),
    torch.full((3, 3), 2**40), torch.ones(2, 2).bfloat16(),
)  # fmt: skip


SMALL = make_circuit(layers=1, heads=1)
SCORES = [
    replace(score, curve={name: column[:3] for name, column in score.curve.items()}, token_ids=[1, 2, 3, 4, 5])
    for score in [*make_scores(SMALL, 2, ("well-posed",)), *detailed_scores(1)]
]
RECORDS = [score.to_record() for score in SCORES[:2]] + [failed("x", "too long").to_record()]
DETAILED_RECORDS = [SCORES[2].to_record()]
