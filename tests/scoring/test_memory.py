"""Memory held while scoring, in bytes of live tensors: chunks stay under the bound, and nothing outlives its prompt."""

import gc

import pytest
import torch

import eics
from eics import Circuit, LinearCircuit
from eics.linalg.memory import memory_limit
from eics.linalg.operators import Dense
from eics.linalg.spectrum import exact, exact_at
from eics.scoring.emergence import emergence_spectra
from eics.scoring.options import PAPER
from support.live_bytes import LiveBytes
from support.taken import taken
from support.tiny_models import some_circuit, tiny_model

LENGTH = 6
EDGES = ["input->a0.h1", "input->m0", "a0.h1->a1.h2", "m0->a1.h2", "a0.h1->m1", "a1.h2->m2", "m1->m2", "m2->logits"]


def linearized(prompts, linearization="jacobian"):
    model = tiny_model("llama")
    rows = [[(7 * row + 3 * place) % 61 for place in range(LENGTH)] for row in range(prompts)]
    return taken(model, Circuit(EDGES), rows).linearize(linearization)


@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_a_prompts_maps_end_with_it(linearization):
    """What is made for one prompt of a circuit, or in float64, is not kept by the circuit that it came from."""
    whole = linearized(6, linearization)

    def sweep():
        for index in range(whole.batch):
            macro = whole.prompt(index).engine().macro_map()
            exact(macro)
            macro.rmv(torch.ones(1, macro.rows, 1, dtype=torch.float64))
        whole.engine().macro_map().prompt(0).double().dense()

    sweep()  # whatever depends on weights alone is cached with the model
    gc.collect()
    with LiveBytes() as live:
        sweep()
        gc.collect()
        assert live.now == 0
    assert live.peak > 0


@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_exact_mode_prompt_by_prompt_holds_one_prompts_matrices(linearization):
    """Eight prompts take hardly more than two at a bound that holds one prompt's matrices."""
    peaks = []
    for prompts in (2, 8):
        circuit = linearized(prompts, linearization)
        with memory_limit(0.05):
            emergence_spectra(circuit.engine(), PAPER)  # fills the caches of weights
            gc.collect()
            with LiveBytes() as live:
                emergence_spectra(circuit.engine(), PAPER)
        peaks.append(live.peak)
    assert peaks[1] < 1.5 * peaks[0]


def test_a_dense_form_in_chunks_holds_one_chunk():
    """A product through 400 numbers: whole, the images of all 60 unit vectors at once; in chunks, ten at a time."""
    draw = torch.Generator().manual_seed(0)
    inner, outer = (torch.randn(1, n, m, generator=draw, dtype=torch.float64) for n, m in ((400, 60), (60, 400)))
    product = Dense(outer) @ Dense(inner)
    peaks, forms = [], []
    for megabytes in (64, 0.005):
        with memory_limit(megabytes), LiveBytes() as live:
            forms.append(product.dense())
        peaks.append(live.peak)
    torch.testing.assert_close(*forms)
    result, images = forms[0].nbytes, 400 * 60 * 8
    assert peaks[0] >= images + result
    assert peaks[1] < images / 4 + 3 * result  # what is returned, and its chunks before they are joined


def test_gram_matrices_in_chunks_hold_less_than_the_matrix():
    """64 x 40,000 numbers are 20 MB; their Gram matrix is 32 KB, and only a few chunks of 1 MB stand beside it."""
    draw = torch.Generator().manual_seed(0)
    wide = torch.randn(64, 40_000, generator=draw, dtype=torch.float64)
    hidden = LinearCircuit({"x->y": wide}, {"x": torch.ones(40_000), "y": torch.ones(64)})
    operator = hidden.linearize("jacobian").engine().macro_map()  # by products: nothing is known of its structure
    with memory_limit(1), LiveBytes() as live:
        chunked = exact_at(operator, 1.0, "cholesky").ei(1.0).value
    assert live.peak < 4 * (1 << 20)
    truth = 0.5 * torch.logdet(torch.eye(64, dtype=torch.float64) + wide @ wide.T)
    torch.testing.assert_close(chunked[0], truth)


def test_a_score_in_chunks_holds_less_and_says_the_same():
    model = tiny_model("gemma3")
    prompts = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5]]
    circuit = some_circuit(model)
    eics.score(model, circuit, prompts)
    peaks, scores = [], []
    for megabytes in (256, 0.2):
        with LiveBytes() as live:
            scores.append(eics.score(model, circuit, prompts, memory=megabytes))
        peaks.append(live.peak)
    assert peaks[1] < 0.5 * peaks[0]
    for whole, cut in zip(*scores, strict=True):
        assert whole.dei == pytest.approx(cut.dei, rel=1e-9)
