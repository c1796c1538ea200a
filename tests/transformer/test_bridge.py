"""TransformerLens' real TransformerBridge around tiny random models."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens.model_bridge import TransformerBridge

import eics
from eics.errors import ModelError
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model, tiny_module

TOKENS = [[3, 5, 7, 9, 11], [4, 8, 2]]


@pytest.fixture
def boot(tmp_path):
    """Boots a bridge offline: config and tokenizer from a folder, weights from a loaded model."""
    words = {name: i for i, name in enumerate(["<unk>", "<s>", *"abcdefgh"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="<s>", pad_token="<s>"
    )
    tokenizer.save_pretrained(tmp_path)

    def boot(family):
        module = tiny_module(family)
        module.config.architectures = [type(module).__name__]
        module.config.save_pretrained(tmp_path)
        return TransformerBridge.boot_transformers(str(tmp_path), hf_model=module, device="cpu", dtype=torch.float64)

    return boot


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bridge_scores_as_its_model_does(boot, family):
    model, bridge = tiny_model(family), boot(family)
    for circuit in (some_circuit(model), full_circuit(model)):
        direct = eics.score(model, circuit, TOKENS, mode="fast")
        through = eics.score(bridge, circuit, TOKENS, mode="fast")
        for ours, theirs in zip(direct, through, strict=True):
            # A bridge computes norms in the model's dtype, transformers in float32.
            assert theirs.c_sh == pytest.approx(ours.c_sh, rel=1e-5)
            assert theirs.dei == pytest.approx(ours.dei, rel=1e-5)
            assert theirs.forward_passes == 1


def test_text_goes_through_the_tokenizer_of_the_bridge(boot):
    """TransformerLens makes its tokenizers prepend a BOS token."""
    circuit, bridge = some_circuit(tiny_model("gpt2")), boot("gpt2")
    tokens = bridge.to_tokens("a b c")[0].tolist()
    assert tokens == [1, 2, 3, 4]
    score = eics.score(bridge, circuit, "a b c", mode="fast")
    assert score.c_sh == pytest.approx(eics.score(tiny_model("gpt2"), circuit, tokens, mode="fast").c_sh, rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_hooks_of_the_bridge_are_in_force(boot, family):
    """Damage to an MLP's write through a hook point becomes that MLP's residual."""
    bridge, circuit = boot(family), full_circuit(tiny_model(family))
    model = eics.adapt(bridge)  # before the damage, which would make the adapter's check fail
    options = {"linearization": "frozen", "residual": "joint", "metric": "relative", "mode": "fast"}

    def damage(write, hook):
        return write + 0.5

    with bridge.hooks(fwd_hooks=[("blocks.1.mlp.hook_out", damage)]):
        damaged = eics.score(model, circuit, TOKENS[0], **options)
    assert damaged.nodes[0].node == "m1"
    assert damaged.nodes[0].share > 0.99
    assert eics.score(model, circuit, TOKENS[0], **options).c_sh < 1e-4


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_processed_weights_are_refused(boot, family):
    unprocessed = boot(family)
    unprocessed.enable_compatibility_mode(no_processing=True)
    eics.adapt(unprocessed)
    processed = boot(family)
    processed.enable_compatibility_mode()
    with pytest.raises(ModelError, match=r"model's own weights.*no_processing=True"):
        eics.adapt(processed)
