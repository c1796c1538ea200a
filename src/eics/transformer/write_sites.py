"""Where writes enter the residual stream in a model's own forward pass: gradients there, and changes.

| site | what is written there | by |
|---|---|---|
| `input` | the embeddings, as they enter block 0 | |
| `a3` | what the heads of layer 3 write together, with the output bias | the output projection, or the norm after it |
| `m3` | what the MLP of layer 3 writes | the MLP, or the norm after it |

A site's output is the sum of what its nodes write, so the gradient there is the gradient by each of these writes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Kind
from eics.models.base import Model

Change = Callable[[str, Tensor], Tensor | None]
"""Given a site and what is written there, (B, T, d): what goes on in its place, or None to leave it."""


def site_of_part(name: str) -> str | None:
    """The site of a node's write, or of an output bias; None for the read-out, which writes nothing.

    >>> [site_of_part(name) for name in ("a3.h7", "a3.bias", "m3", "input", "logits")]
    ['a3', 'a3', 'm3', 'input', None]
    """
    return None if name == Kind.LOGITS else name.partition(".")[0]


@contextmanager
def at_sites(model: Model, sites: Iterable[str], change: Change) -> Iterator[None]:
    """While it is open, every pass of the model calls `change` at these sites, after any other hooks there."""
    handles: list[Any] = []
    layers = model.adapter.layers(model.module)
    try:
        for site in sites:
            if site == Kind.INPUT:
                handles.append(layers[0].register_forward_pre_hook(_entering(site, change), with_kwargs=True))
                continue
            of_layer = model.adapter.sites(layers[int(site[1:])])
            after_heads = of_layer.attention_post_norm or of_layer.out_proj
            module = of_layer.mlp_write if site.startswith("m") else after_heads
            handles.append(module.register_forward_hook(_written(site, change)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def added(model: Model, changes: Mapping[str, Tensor]) -> Iterator[None]:
    """Adds a tensor, (B, T, d), to what is written at each of these sites."""
    with at_sites(model, changes, lambda site, written: written + changes[site].to(written.dtype)):
        yield


class GradientTape:
    """The gradient of a number at the logits by what is written at some sites: one pass back through the model's code.

    The graph begins at the first of the sites; what comes before is not recorded.
    """

    def __init__(self, model: Model, sites: Iterable[str]) -> None:
        self.model, self.sites = model, tuple(sites)
        self.logits: Tensor | None = None
        self._writes: dict[str, Tensor] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the forward pass; gradients are switched on where the first site is reached."""
        with torch.no_grad(), at_sites(self.model, self.sites, self._begin):
            yield

    def by_site(self, *directions: Tensor) -> list[dict[str, Tensor]]:
        """For each direction the gradient of `sum(direction * logits)` at each site, (B, T, d), in the working dtype.

        The graph is gone afterwards.
        """
        assert self.logits is not None
        sites, writes = list(self._writes), list(self._writes.values())
        found = []
        for number, direction in enumerate(directions, start=1):
            gradients = torch.autograd.grad(
                self.logits,
                writes,
                direction.to(self.logits.dtype),
                retain_graph=number < len(directions),
                materialize_grads=True,
            )
            converted = (gradient.to(self.model.dtype) for gradient in gradients)
            found.append(dict(zip(sites, converted, strict=True)))
        self._writes, self.logits = {}, None
        return found

    def _begin(self, site: str, written: Tensor) -> Tensor | None:
        if torch.is_grad_enabled():
            self._writes[site] = written
            return None
        torch.set_grad_enabled(True)  # until `recording` ends, which restores the mode
        leaf = self._writes[site] = written.detach().requires_grad_()
        return leaf.view_as(leaf)  # torch's own counters of operations do not take a leaf


def _entering(site: str, change: Change) -> Callable[..., Any]:
    def hook(_: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        if arguments:
            changed = change(site, arguments[0])
            return ((arguments[0] if changed is None else changed), *arguments[1:]), keywords
        changed = change(site, keywords["hidden_states"])
        return arguments, keywords if changed is None else {**keywords, "hidden_states": changed}

    return hook


def _written(site: str, change: Change) -> Callable[..., Any]:
    def hook(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            changed = change(site, output[0])
            return None if changed is None else (changed, *output[1:])
        return change(site, output)

    return hook
