"""llama2.c in plain numpy: writes its files, runs its forward pass and its tokenizer, step by step as `run.c` does."""

import struct

import numpy as np


def write_llama2c(path, *, shared, vocabulary, heads=4, kv_heads=2, dim=16, hidden=24, layers=2, context=12):
    """Writes a random model and its tokenizer into one file; returns the float32 weights by their names in `run.c`."""
    rng = np.random.default_rng(3)
    kv = dim // heads * kv_heads
    shapes = {
        "token_embedding_table": (len(vocabulary), dim), "rms_att_weight": (layers, dim), "wq": (layers, dim, dim),
        "wk": (layers, kv, dim), "wv": (layers, kv, dim), "wo": (layers, dim, dim), "rms_ffn_weight": (layers, dim),
        "w1": (layers, hidden, dim), "w2": (layers, dim, hidden), "w3": (layers, hidden, dim),
        "rms_final_weight": (dim,), "freq_cis_real": (context, dim // heads // 2),
        "freq_cis_imag": (context, dim // heads // 2), "wcls": (len(vocabulary), dim),
    }  # fmt: skip
    weights = {name: rng.normal(scale=0.6, size=shape).astype(np.float32) for name, shape in shapes.items()}
    if shared:
        del weights["wcls"]
    sizes = (dim, hidden, layers, heads, kv_heads, len(vocabulary) * (1 if shared else -1), context)
    pieces = [struct.pack("<fi", score, len(text.encode())) + text.encode() for text, score in vocabulary]
    longest = max(len(text.encode()) for text, _ in vocabulary)
    with path.open("wb") as file:
        file.write(struct.pack("<7i", *sizes) + b"".join(w.tobytes() for w in weights.values()))
        file.write(struct.pack("<i", longest) + b"".join(pieces))
    return weights | {"heads": heads, "kv_heads": kv_heads}


def forward(weights, tokens):
    """Logits at each position, in float64, token by token with a cache of keys and values."""
    w = {
        name: np.asarray(value, dtype=np.float64)
        for name, value in weights.items()
        if name not in ("heads", "kv_heads")
    }
    heads, kv_heads = weights["heads"], weights["kv_heads"]
    layers, dim = w["rms_att_weight"].shape
    size = dim // heads
    keys, values = [[] for _ in range(layers)], [[] for _ in range(layers)]
    logits = []
    for position, token in enumerate(tokens):
        x = w["token_embedding_table"][token].copy()
        for layer in range(layers):
            read = _rmsnorm(x, w["rms_att_weight"][layer])
            q, k, v = (w[name][layer] @ read for name in ("wq", "wk", "wv"))
            for i in range(0, dim, 2):
                angle = position / 10000.0 ** ((i % size) / size)
                for vector in (q, k) if i < len(k) else (q,):
                    a, b = vector[i], vector[i + 1]
                    vector[i] = a * np.cos(angle) - b * np.sin(angle)
                    vector[i + 1] = a * np.sin(angle) + b * np.cos(angle)
            keys[layer].append(k)
            values[layer].append(v)
            out = np.zeros(dim)
            for head in range(heads):
                rows = slice(head * size, (head + 1) * size)
                group = head // (heads // kv_heads)
                group_rows = slice(group * size, (group + 1) * size)
                scores = np.array([q[rows] @ key[group_rows] / np.sqrt(size) for key in keys[layer]])
                attention = np.exp(scores - scores.max())
                attention /= attention.sum()
                out[rows] = sum(a * value[group_rows] for a, value in zip(attention, values[layer], strict=True))
            x += w["wo"][layer] @ out
            read = _rmsnorm(x, w["rms_ffn_weight"][layer])
            gate = w["w1"][layer] @ read
            x += w["w2"][layer] @ (gate / (1.0 + np.exp(-gate)) * (w["w3"][layer] @ read))
        logits.append(w.get("wcls", w["token_embedding_table"]) @ _rmsnorm(x, w["rms_final_weight"]))
    return np.array(logits)


def _rmsnorm(x, weight):
    return weight * x / np.sqrt((x * x).mean() + 1e-5)


def encode(vocabulary, text):
    """Greedy merges: start from characters (bytes for unknown ones), then merge the best pair, leftmost on ties."""
    ids = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    tokens = [1]
    for character in " " + text if text else "":
        tokens += [ids[character]] if character in ids else [byte + 3 for byte in character.encode()]
    while True:
        best, where = -1e10, None
        for i in range(len(tokens) - 1):
            merged = ids.get(vocabulary[tokens[i]][0] + vocabulary[tokens[i + 1]][0])
            if merged is not None and vocabulary[merged][1] > best:
                best, where, token = vocabulary[merged][1], i, merged
        if where is None:
            return tokens
        tokens[where : where + 2] = [token]
