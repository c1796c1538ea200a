"""Discovery in a model with a known circuit: a two-layer attention-only model trained to look up what followed a token.
Previous-token heads in layer 0 feed the keys of induction heads in layer 1 (Olsson et al. 2022)."""

import pytest
import torch
import transformers

from eics.studies.discovery.eap import How, attribute
from eics.studies.discovery.faithfulness import faithfulness
from eics.studies.discovery.select import select
from eics.studies.discovery.task import Pair, Task
from eics.transformer.adapt import adapt

WORDS, SHOWN, ASKED, HEADS = 24, 10, 8, 4
QUESTIONS = torch.arange(SHOWN, SHOWN + 2 * ASKED, 2)


def sequences(count, draw):
    """Ten different tokens, then pairs: one of them and the token that followed it."""
    shown = torch.rand(count, WORDS, generator=draw).argsort(dim=1)[:, :SHOWN]
    at = torch.randint(0, SHOWN - 1, (count, ASKED), generator=draw)
    pairs = torch.stack([shown.gather(1, at), shown.gather(1, at + 1)], dim=2).flatten(1)
    return torch.cat([shown, pairs], dim=1)


@pytest.fixture(scope="module")
def trained():
    """The model after about 500 steps; its MLPs are zero and not trained."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, max_position_embeddings=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, intermediate_size=4, tie_word_embeddings=False, initializer_range=0.1,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config)
    for layer in module.model.layers:
        for parameter in layer.mlp.parameters():
            parameter.data.zero_()
            parameter.requires_grad_(requires_grad=False)
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=4e-3, weight_decay=0.0, betas=(0.9, 0.98))
    draw = torch.Generator().manual_seed(0)
    for _ in range(1500):
        tokens = sequences(64, draw)
        logits = module(tokens).logits[:, QUESTIONS]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, QUESTIONS + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    assert loss.item() < 0.05, "the model must learn the task"
    return adapt(module.eval())


def attention(model, tokens):
    """Attention patterns by layer, (B, H, T, T)."""
    model.module.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model.module(tokens, output_attentions=True).attentions
    finally:
        model.module.set_attn_implementation("sdpa")


def lookups(count):
    """Prompts that end with a token to look up; in the corrupted prompt it has swapped places with another one."""
    draw = torch.Generator().manual_seed(1)
    pairs = []
    for tokens in sequences(count, draw).tolist():
        clean = tokens[: SHOWN + 1]
        position = clean.index(clean[-1])
        answer = clean[position + 1]
        others = [p for p in range(SHOWN - 1) if abs(p - position) > 1]
        other = others[int(torch.randint(len(others), (1,), generator=draw))]
        corrupted = list(clean)
        corrupted[position], corrupted[other] = clean[other], clean[position]
        pairs.append(Pair(tuple(clean), tuple(corrupted), (answer,), (clean[other + 1],)))
    return Task("lookups", tuple(pairs))


def test_discovery_finds_the_known_heads(trained):
    tokens = sequences(32, torch.Generator().manual_seed(2))
    first, second = attention(trained, tokens)
    previous = first[:, :, 1:SHOWN].diagonal(dim1=2, dim2=3).mean(dim=(0, 2))  # weight on the token before
    followers = torch.stack([(row[:SHOWN] == row[SHOWN]).nonzero()[0, 0] + 1 for row in tokens])
    induction = second[torch.arange(32), :, SHOWN, followers].mean(dim=0)  # weight on what followed
    assert float(previous.max()) > 0.6
    assert float(induction.max()) > 0.6

    attribution = attribute(trained, lookups(24), How(steps=5))
    assert attribution.clean > 3 > attribution.ablated
    keys = torch.tensor([[attribution[f"a0.h{u}->a1.h{v}<k>"] for u in range(HEADS)] for v in range(HEADS)])
    queries = torch.tensor([[attribution[f"a0.h{u}->a1.h{v}<q>"] for u in range(HEADS)] for v in range(HEADS)])
    # previous-token heads feed keys, and the strongest of them feeds the induction heads most
    assert int(keys.abs().sum(dim=0).argmax()) == int(previous.argmax())
    assert float(keys.abs().sum()) > float(queries.abs().sum())
    circuit, _ = select(attribution, 30, "greedy")
    assert f"a0.h{int(previous.argmax())}" in circuit.order
    assert all(f"a1.h{head}" in circuit.order for head in range(HEADS) if induction[head] > 0.6)
    assert all(abs(score) < 1e-6 for edge, score in attribution.edges() if "m" in (edge.source[0], edge.target[0]))

    curve = faithfulness(trained, lookups(24), {"circuit": circuit})
    assert curve.points[0].faithfulness.value > 0.7
