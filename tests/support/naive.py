"""A node's function written out in plain torch, one prompt and one head at a time: what autograd differentiates."""

import torch


def norm(spec, x):
    c = x - x.mean(-1, keepdim=True) if spec.centred else x
    y = c / torch.sqrt((c * c).mean(-1, keepdim=True) + spec.eps) * spec.weight
    return y if spec.bias is None else y + spec.bias


def turn(vectors, rotation):
    if rotation is None:
        return vectors
    cos, sin = (part[0].to(vectors.dtype) for part in rotation)
    half = cos.shape[-1] // 2
    rows = []
    for t, row in enumerate(vectors):
        a, b, rest = row[:half], row[half : 2 * half], row[2 * half :]
        c1, c2, s1, s2 = cos[t, :half], cos[t, half:], sin[t, :half], sin[t, half:]
        rows.append(torch.cat([a * c1 - b * s1, b * c2 + a * s2, rest]))
    return torch.stack(rows)


def head(spec, number, rotation, post, x_q, x_k, x_v):
    """What a head writes when its queries, keys and values come from three streams of (T, d)."""
    group = number // (spec.w_q.shape[0] // spec.w_k.shape[0])

    def project(x, weight, bias, index):
        y = norm(spec.norm, x) @ weight[index].T
        return y if bias is None else y + bias[index]

    q, k = project(x_q, spec.w_q, spec.b_q, number), project(x_k, spec.w_k, spec.b_k, group)
    v = project(x_v, spec.w_v, spec.b_v, group)
    q = turn(q if spec.q_norm is None else norm(spec.q_norm, q), rotation)
    k = turn(k if spec.k_norm is None else norm(spec.k_norm, k), rotation)
    rows = []
    for t in range(len(q)):
        first = 0 if spec.window is None else max(0, t - spec.window + 1)
        scores = spec.scale * (k[first : t + 1] @ q[t])
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        weights = torch.exp(scores - scores.max())
        rows.append((weights / weights.sum()) @ v[first : t + 1])
    out = torch.stack(rows) @ spec.w_o[number].T
    return out if post is None else out * post


def mlp(spec, x):
    n = norm(spec.norm, x)

    def affine(y, weight, bias):
        return y @ weight.T if bias is None else y @ weight.T + bias

    hidden = affine(n, spec.w_in, spec.b_in)
    if spec.w_gate is None:
        hidden = spec.activation(hidden)
    else:
        hidden = spec.activation(affine(n, spec.w_gate, spec.b_gate)) * hidden
    out = affine(hidden, spec.w_out, spec.b_out)
    return out if spec.post_norm is None else norm(spec.post_norm, out)


def readout(spec, x, position, kind, tokens):
    y = norm(spec.final_norm, x[position])
    if kind == "final_norm":
        return y
    logits = spec.unembed @ y
    if spec.unembed_bias is not None:
        logits = logits + spec.unembed_bias
    if spec.logit_softcap is not None:
        logits = spec.logit_softcap * torch.tanh(logits / spec.logit_softcap)
    centred = logits - logits.mean()
    return centred if tokens is None else centred[list(tokens)]
