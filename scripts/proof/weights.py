"""Item 7: changed weights, to which the monitor is blind by construction."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eics.circuits.graph import Kind, Node
from eics.linalg.probes import generator
from eics.models.base import Model
from eics.studies.detection.fitted import Fitted
from eics.studies.detection.observations import Observations, observe
from eics.studies.detection.summary import Resamples, Verdicts, localisation
from proof.common import SEED, TEST, loaded, observed, progress, read_known

STRENGTHS = (0.2, 1.0)
PROMPTS = 24


def weights(known: Path) -> dict[str, Any]:
    """Gaussian noise on the output weights of one node at a time, `strength` times as large as they are."""
    model, circuit = loaded("smollm2", "facts")
    reference, test = observed(model, circuit, read_known(known), "known").split(TEST, SEED)
    ways = ("calibrated", "activations", "recomputed")
    fitted, test = Fitted.of(model, circuit, reference, SEED, ways), test.some(PROMPTS, SEED)
    result: dict[str, Any] = {}
    for strength in STRENGTHS:
        parts = []
        with progress(f"noise of {strength:g}", len(fitted.targets)) as tick:
            for name in fitted.targets:
                with changed_weights(model, name, strength):
                    parts.append(observe(model, circuit, test.tokens, batch_size=PROMPTS))
                tick(1)
        runs = Observations.cat(parts)
        node = np.repeat([fitted.nodes.index(name) for name in fitted.targets], len(test))
        prompt = np.tile(np.arange(len(test)), len(fitted.targets))
        result[f"{strength:g}"] = {
            way: localisation(
                Verdicts.of(fitted.judge(runs, way)),
                Verdicts.of(fitted.judge(test.runs, way)),
                node,
                prompt,
                Resamples(test.groups),
            )
            for way in ways
        }
    return result


@contextmanager
def changed_weights(model: Model, name: str, strength: float) -> Iterator[None]:
    """Noise on what a node writes through: the columns of the output projection that are a head's, or an MLP's."""
    node = Node.parse(name)
    sites = model.adapter.sites(model.adapter.layers(model.module)[node.layer])
    if node.kind is Kind.HEAD:
        size = model.transformer.blocks[node.layer].attention.head_width
        weight = sites.out_proj.weight[:, node.head * size : (node.head + 1) * size]
    else:
        weight = sites.mlp_write.down_proj.weight
    before = weight.detach().clone()
    drawn = torch.randn(before.shape, generator=generator(SEED, f"weights:{name}"), dtype=torch.float64)
    try:
        with torch.no_grad():
            weight.add_((strength * before.double().square().mean().sqrt() * drawn).to(weight))
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)
