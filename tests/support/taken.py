"""A tiny model that has run once: what most tests of operators start from."""

from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun

PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5]]


def taken(model, circuit, prompts=PROMPTS, readout="final_norm", tokens=None, answer=None):
    state = run(model, prompts, circuit, logits=readout != "final_norm", answer=answer)
    return TransformerRun(state, circuit, readout, tokens)
