"""Circuit files built by hand after the descriptions of their formats."""

import json
import pickle
from pathlib import Path

import torch


def write_json(path: Path, value) -> Path:
    path.write_text(json.dumps(value))
    return path


def write_pickle(path: Path, value, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def write_torch(path: Path, value) -> Path:
    torch.save(value, path)
    return path


def all_edges(layers: int, heads: int, parallel: bool = False) -> list[str]:
    """Every edge of a model in EAP-IG's names and order."""
    before, edges = ["input"], []
    for layer in range(layers):
        attention = [f"a{layer}.h{head}" for head in range(heads)]
        edges += [f"{source}->{head}<{port}>" for source in before for head in attention for port in "qkv"]
        edges += [f"{source}->m{layer}" for source in (before if parallel else before + attention)]
        before += [*attention, f"m{layer}"]
    return edges + [f"{source}->logits" for source in before]


def eap(layers: int = 2, heads: int = 2, kept=(), score=float, **cfg) -> dict:
    edges = all_edges(layers, heads, cfg.get("parallel_attn_mlp", False))
    names = ["input"]
    for layer in range(layers):
        names += [*(f"a{layer}.h{head}" for head in range(heads)), f"m{layer}"]
    inside = {end for edge in kept for end in edge.split("<")[0].split("->")}
    return {
        "cfg": {"n_layers": layers, "n_heads": heads, "parallel_attn_mlp": False, "d_model": 8} | cfg,
        "nodes": {name: {"in_graph": name in inside} for name in [*names, "logits"]},
        "edges": {edge: {"score": score(index), "in_graph": edge in kept} for index, edge in enumerate(edges)},
    }


def tracer_node(kind: str, layer, feature: int, position: int, node_id: str) -> dict:
    return {
        "node_id": node_id,
        "feature": feature,
        "layer": str(layer),
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": node_id,
        "clerp": "",
        "influence": 0.5,
        "activation": 1.0,
    }


def neuronpedia(nodes: list[dict], links: list[tuple[str, str, float]]) -> dict:
    return {
        "metadata": {
            "slug": "x",
            "scan": "gemma",
            "transcoder_list": [],
            "prompt_tokens": ["a", "b"],
            "prompt": "a b",
            "node_threshold": 0.8,
            "schema_version": 1,
        },
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": nodes,
        "links": [{"source": source, "target": target, "weight": weight} for source, target, weight in links],
    }
