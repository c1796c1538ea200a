"""Edge patching written out, a reference for `studies/discovery`: one prompt, node by node, a sum for every reader."""

import torch

from support import naive


def run_edges(model, tokens, ablated, weights, graph, state):
    """Centred logits at the last position if edge (u, reader) carries `w a_u + (1 - w) a_u'`.

    `ablated` is a dict of writes a' (T, d) by node; `weights` is (writers, readers); `state` is the clean pass, for its
    embeddings and rotations. A node with weight 0 on all its edges reads the ablated stream.
    """
    spec = model.transformer
    live = {"input": state.input[0]}
    biases = torch.zeros(spec.width, dtype=torch.float64)

    def read(column, upto):
        total = biases.clone()
        for row, name in enumerate(graph.writers[:upto]):
            weight = weights[row, column]
            total = total + weight * live[name] + (1 - weight) * ablated[name]
        return total

    for layer, block in enumerate(spec.blocks):
        attention, rotation = block.attention, state.rotations.get(layer)
        before = 1 + layer * (graph.heads + 1)
        raw = []
        for head in range(graph.heads):
            columns = [graph.columns[f"a{layer}.h{head}", port] for port in "qkv"]
            streams = [read(column, before) for column in columns]
            raw.append(naive.head(attention, head, rotation, None, *streams))
        scale = 1.0
        if attention.post_norm is not None:
            summed = sum(raw) if attention.b_o is None else sum(raw) + attention.b_o
            root = torch.sqrt((summed**2).mean(-1, keepdim=True) + attention.post_norm.eps)
            scale = attention.post_norm.weight / root
        for head in range(graph.heads):
            live[f"a{layer}.h{head}"] = raw[head] * scale
        mlp_biases = biases if attention.b_o is None else biases + attention.b_o
        if not block.parallel:
            biases = mlp_biases
        column = graph.columns[f"m{layer}", None]
        live[f"m{layer}"] = naive.mlp(block.mlp, read(column, before if block.parallel else before + graph.heads))
        biases = mlp_biases
    final = read(len(graph.readers) - 1, len(graph.writers))
    return naive.readout(spec, final, len(tokens) - 1, "logits", None)
