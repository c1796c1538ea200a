"""The scores that are compared, each a number for each prompt.

No direction is assumed: whether high means correct is decided on the development split. Quantities that only rank
prompts as another one does have no row of their own: C_sh goes with A1 = 1 / (1 + C_sh), the well-posed r with
A2 = r / (1 + r), the probability with its logarithm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eics.studies.validation.store import Row

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

REFERENCE = "log_probability"
"""Max-probability: what every score is compared with."""


@dataclass(frozen=True)
class Kind:
    """A score: its column, what to call it, its family, and what it needs where it can be missing."""

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
    """All that the comparison needs of the prompts.

    Attributes:
        ids: of the prompts that count.
        labels: whether each is correct.
        development: which split it is in.
        groups: of the key that was asked for, None where none was.
        values: by column name, (n,).
        missing: why a column is not there.
        norms: log norm of each node at the answer position, (n, nodes).
        final: the final state, (n, d).
        predicted: the predicted token.
        alpha: the one chosen, once it is.
    """

    ids: list[str | int]
    labels: Flags
    development: Flags
    groups: list[str] | None
    values: dict[str, Numbers]
    norms: Numbers
    final: Numbers
    predicted: list[int]
    by_alpha: Numbers
    missing: dict[str, str] = field(default_factory=dict)
    alpha: float | None = None

    @property
    def test(self) -> Flags:
        """The other split."""
        return ~self.development


def gather(rows: Sequence[Row], group: str | None) -> Columns:
    """From rows that were scored and are in a split; what some prompt lacks is left out, with the reason."""
    plain = [kind.name for kind in KINDS if not kind.name.endswith(("_fitted", "_alpha"))]
    values, missing = {}, {}
    for name in plain:
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
        values=values,
        norms=np.array([row["norms"] for row in rows], dtype=float),
        final=np.array([row["final"] for row in rows], dtype=float),
        predicted=[int(row["predicted"]) for row in rows],
        by_alpha=np.array([row["eics_paper_by_alpha"] for row in rows], dtype=float),
        missing=missing,
    )
