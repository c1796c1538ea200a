"""Synthetic rows as the two stages of validation produce them, whose verdict is known in advance."""

import numpy as np

NUMBERS = (
    "log_probability", "entropy", "margin", "eics_paper", "a1_paper", "a2_paper", "dei_paper", "eics_well_posed",
    "a1_well_posed", "a2_well_posed", "dei_well_posed", "propagated", "eac", "ear", "norm_last", "norm_all",
)  # fmt: skip
SETTINGS = {
    "model": "made up", "dtype": "float64", "ensemble": [], "circuit": {"name": "none", "sha256": "0" * 64},
    "prompts": 0, "data_sha256": "0" * 64, "match": "first-token", "generate": 8, "drop_function_words": False,
    "matched": None, "group": None, "dev_share": 0.5, "coverage": 0.9, "mode": "exact", "seed": 0,
}  # fmt: skip


def made_up(labels, rng, development=None, **columns):
    """One row per prompt: noise, except for the columns given."""
    count = len(labels)
    inside = np.arange(count) % 2 == 0 if development is None else development
    values = {name: rng.normal(size=count) for name in NUMBERS} | {"length": rng.integers(5, 12, count)}
    values |= {"predicted": rng.integers(0, 30, count), "function_word": np.zeros(count, bool)} | columns
    rows = []
    for index in range(count):
        row = {name: value[index].item() for name, value in values.items()}
        row |= {"id": index, "groups": {"relation": f"r{index % 4}"}, "label": bool(labels[index]), "label_given": True}
        row |= {"split": "development" if inside[index] else "test", "dropped": None, "failed": None}
        row |= {"answer_split": False, "clipped": False, "norms": rng.normal(size=3), "final": rng.normal(size=4)}
        rows.append(row | {"eics_paper_by_alpha": [row["eics_paper"]] * 17})
    return rows
