# %% [markdown]
# # Look at scores
#
# A notebook in percent format: open it in VS Code or with jupytext, or run it as a script. It needs no model: the
# circuit is a small linear one, given by its matrices and activations, intact on some prompts and damaged on others.

# %%
from dataclasses import replace

import numpy as np

import eics

# %% [markdown]
# ## A circuit that is damaged on half of its prompts
#
# Two heads read the input, an MLP reads both heads, and the read-out reads the MLP and the first head. On damaged
# prompts, the MLP's write is not what its parents explain.

# %%
rng = np.random.default_rng(0)
WIDTH, PROMPTS = 6, 24
edges = ["input->a0.h0", "input->a0.h1", "a0.h0->m0", "a0.h1->m0", "m0->logits", "a0.h0->logits"]
maps = {edge: rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5 for edge in edges}
damaged = np.arange(PROMPTS) % 2 == 1


def run(x: np.ndarray, damage: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what each node writes; `damage` is added to the MLP's write."""
    a0, a1 = x @ maps["input->a0.h0"].T, x @ maps["input->a0.h1"].T
    m0 = a0 @ maps["a0.h0->m0"].T + a1 @ maps["a0.h1->m0"].T + damage
    return {
        "input": x,
        "a0.h0": a0,
        "a0.h1": a1,
        "m0": m0,
        "logits": m0 @ maps["m0->logits"].T + a0 @ maps["a0.h0->logits"].T,
    }


x = rng.normal(size=(PROMPTS, WIDTH))
noise = rng.normal(size=(PROMPTS, WIDTH)) * damaged[:, None]
circuit = eics.LinearCircuit(maps, run(x, noise), batched=True)

# %% [markdown]
# ## Score it

# %%
scores = eics.score(circuit, preset="well-posed", curve=True)
scores = eics.Scores(replace(s, label="damaged" if d else "intact") for s, d in zip(scores, damaged, strict=True))
scores

# %% [markdown]
# A single result: its numbers, and the nodes that cause the inconsistency. All of it belongs to the damaged node.

# %%
scores[1]

# %%
scores[1].to_pandas()

# %% [markdown]
# ## Pictures

# %%
scores[1].plot()

# %%
scores[1].plot("edges")

# %%
scores[1].plot("curve")

# %%
scores.plot()

# %% [markdown]
# ## All results as a table and as a page

# %%
scores.to_pandas().groupby("label")[["eics", "c_sh", "emergence_ratio"]].median()

# %%
eics.report.write_report(scores, "look_at_scores.html")
