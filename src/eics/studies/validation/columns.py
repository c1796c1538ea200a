"""The scores that are compared, one number per prompt each.

No direction is assumed: whether a high value means correct is decided on the development split. A quantity that ranks
prompts like another one has no column of its own: C_sh ranks like A1 = 1 / (1 + C_sh), the well-posed r like
A2 = r / (1 + r), a probability like its logarithm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eics.studies.run_folder import Row
from eics.studies.statistics import Flags, Numbers

REFERENCE = "log_probability"
"""Max-probability: the score that every other one is compared with."""


@dataclass(frozen=True)
class Kind:
    """A score: its column, title and family, a description, and what it requires if it can be missing."""

    name: str
    title: str
    family: str
    about: str
    needs: str = ""


EICS, BASELINE, OUTPUT, SUSPECT = "EICS", "baseline on edges", "output", "self-deception"

KINDS = (
    Kind("eics_paper", "EICS paper (alpha 1)", EICS, "dEI_norm / (1 + C_sh) as the paper prints it"),
    Kind("eics_paper_alpha", "EICS paper (alpha of dev)", EICS, "the same, alpha chosen on the development split"),
    Kind("a1_paper", "A1 paper", EICS, "1 / (1 + C_sh), edge residuals; ranks as C_sh does"),
    Kind("a2_paper", "A2 paper", EICS, "dEI_norm at alpha 1"),
    Kind("dei_paper", "signed dEI paper", EICS, "dEI before it is clipped at 0"),
    Kind("eics_well_posed", "EICS well-posed", EICS, "(r / (1 + r)) / (1 + C_sh) in relative units"),
    Kind("a1_well_posed", "A1 well-posed", EICS, "1 / (1 + C_sh), joint relative residuals; ranks as C_sh does"),
    Kind("a2_well_posed", "A2 well-posed", EICS, "r / (1 + r); ranks as the emergence ratio r does"),
    Kind("dei_well_posed", "signed dEI well-posed", EICS, "dEI in relative units"),
    Kind(
        "propagated", "propagated C_sh", EICS, "error at the sinks of the frozen circuit run by itself, relative units"
    ),
    Kind("eac", "EAC", BASELINE, "mean correlation of a_u and a_v", "an edge between stalks of one length"),
    Kind("ear", "EAR", BASELINE, "mean residual of edge maps fitted on dev, at the answer position"),
    Kind(REFERENCE, "max-probability", OUTPUT, "log-probability of the predicted token"),
    Kind("entropy", "entropy", OUTPUT, "of the next token"),
    Kind("margin", "margin", OUTPUT, "probability of the first choice less that of the second"),
    Kind("ensemble_variance", "ensemble variance", OUTPUT, "of the predicted token's probability", "--ensemble"),
    Kind("ensemble_information", "ensemble information", OUTPUT, "entropy of the mean less mean entropy", "--ensemble"),
    Kind("ensemble_disagreement", "ensemble disagreement", OUTPUT, "members with another first choice", "--ensemble"),
    Kind("conformal_lac", "conformal set LAC", OUTPUT, "size, calibrated on dev", "answers"),
    Kind("conformal_aps", "conformal set APS", OUTPUT, "size, calibrated on dev", "answers"),
    Kind("length", "prompt length", SUSPECT, "tokens"),
    Kind("norm_last", "norms at the answer", SUSPECT, "mean log norm of the circuit's writes there"),
    Kind("norm_all", "norms at all positions", SUSPECT, "mean log norm of the circuit's writes"),
    Kind("norms_fitted", "norms fitted", SUSPECT, "logistic regression on each node's log norm, fitted on dev"),
    Kind("function_word", "function word", SUSPECT, "whether the answer or the predicted token is one"),
    Kind("token_fitted", "predicted token", SUSPECT, "share correct among dev prompts with that prediction"),
    Kind("group_fitted", "group", SUSPECT, "share correct among dev prompts of that group", "--matched or --group"),
    Kind("probe_fitted", "linear probe", SUSPECT, "ridge logistic regression on the final state, fitted on dev"),
)
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Columns:
    """Everything the comparison needs to know about the prompts.

    Attributes:
        ids: of the prompts that count.
        labels: whether the model's answer is correct.
        development: whether the prompt is in the development split.
        groups: each prompt's group, or None if no field was chosen to group by.
        clustered: whether groups are kept whole, by the split and by resampling.
        values: (n,) for each column name.
        norms: log norm of each node at the answer position, (n, nodes).
        final: the final residual stream at the answer position, (n, d).
        predicted: the predicted token.
        by_alpha: the paper's score at each alpha of the grid, (n, alphas).
        missing: for each column that is left out, why.
        alpha: the alpha chosen on the development split, once it is chosen.
    """

    ids: list[str | int]
    labels: Flags
    development: Flags
    groups: list[str] | None
    clustered: bool
    values: dict[str, Numbers]
    norms: Numbers
    final: Numbers
    predicted: list[int]
    by_alpha: Numbers
    missing: dict[str, str] = field(default_factory=dict)
    alpha: float | None = None

    @property
    def test(self) -> Flags:
        return ~self.development

    @property
    def clusters(self) -> list[str] | None:
        """The groups, if they must be kept whole."""
        return self.groups if self.clustered else None

    @property
    def test_clusters(self) -> list[str] | None:
        """The clusters of the test prompts."""
        if self.clusters is None:
            return None
        return [self.clusters[index] for index in np.flatnonzero(self.test).tolist()]


def gather(rows: Sequence[Row], group: str | None, *, clustered: bool = False) -> Columns:
    """Columns from rows that are scored and split; a column that some prompt lacks is left out, with the reason."""
    values, missing = {}, {}
    for name in (kind.name for kind in KINDS if not kind.name.endswith(("_fitted", "_alpha"))):
        column = np.array([np.nan if row.get(name) is None else float(row[name]) for row in rows])
        lacking = int((~np.isfinite(column)).sum())
        if lacking == 0:
            values[name] = column
        elif lacking == len(rows):
            missing[name] = f"needs {BY_NAME[name].needs}" if BY_NAME[name].needs else "not finite on any prompt"
        else:
            missing[name] = f"has no value on {lacking} of {len(rows)} prompts"
    return Columns(
        ids=[row["id"] for row in rows],
        labels=np.array([bool(row["label"]) for row in rows]),
        development=np.array([row["split"] == "development" for row in rows]),
        groups=None if group is None else [row["groups"][group] for row in rows],
        clustered=clustered,
        values=values,
        norms=np.array([row["norms"] for row in rows], dtype=float),
        final=np.array([row["final"] for row in rows], dtype=float),
        predicted=[int(row["predicted"]) for row in rows],
        by_alpha=np.array([row["eics_paper_by_alpha"] for row in rows], dtype=float),
        missing=missing,
    )
