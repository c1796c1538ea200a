"""The figures of the toy."""

from typing import Any

from eics.reporting.plots import COLOURS, panels
from eics.scoring.formula import discounted
from eics.studies.toy.curves import Curves

BLUE, ORANGE, GREEN, PURPLE = COLOURS
GREY = "#666666"
_BAND = 1.96  # standard errors: a 95% interval of the mean
_TAU = r"Noise scale $\tau$"


def paper_figure(curves: Curves) -> Any:
    """The paper's figure: EICS and its two factors over tau."""
    figure, (axes,) = panels(6.2, 4.2)
    _line(axes, curves, "eics", "EICS", BLUE, "-o")
    # As in the paper: computed from the mean C_sh, not averaged over seeds.
    consistency = [discounted(1.0, c_sh) for c_sh in curves.mean("c_sh")]
    axes.plot(curves.taus, consistency, "--s", color=ORANGE, label=r"$1/(1+C_{\mathrm{sh}})$", markersize=4)
    _line(axes, curves, "dei_norm", r"$\widetilde{\Delta \mathrm{EI}}_G$", GREEN, ":^")
    _finish(axes, "Toy sanity check: the paper's own numbers", "Score (unitless)")
    return figure


def general_figure(curves: Curves) -> Any:
    """The same nodes by the general code: score, C_sh and dEI in three configurations."""
    figure, axes = panels(13.5, 4.0, columns=3)
    styles = {"nodes": (GREY, "-."), "branches": (BLUE, "-o"), "well_posed": (ORANGE, "--s")}
    labels = {"nodes": "paper, parts = nodes", "branches": "paper, parts = branches", "well_posed": "well-posed"}
    for name, (colour, style) in styles.items():
        _line(axes[0], curves, f"{name}.eics", labels[name], colour, style)
        _line(axes[2], curves, f"{name}.dei", labels[name], colour, style)
        if name != "nodes":  # its C_sh is that of branches
            label = "paper (edge residual)" if name == "branches" else "well-posed (joint residual)"
            _line(axes[1], curves, f"{name}.c_sh", label, colour, style)
    axes[2].axhline(0.0, color=GREY, linewidth=0.8)
    _finish(axes[0], "EICS by the general code", "EICS")
    _finish(axes[1], "Sheaf inconsistency", r"$C_{\mathrm{sh}}$")
    _finish(axes[2], "Emergence, signed", r"$\Delta \mathrm{EI}$ (nats)")
    return figure


def protocol_figure(curves: Curves, noisy: tuple[str, ...]) -> Any:
    """Additive noise on chosen edges: what responds to it and what does not."""
    figure, axes = panels(11.5, 8.0, rows=2, columns=2)
    _line(axes[0], curves, "c_sh", r"$C_{\mathrm{sh}}$", BLUE, "-o")
    shown = ", ".join(noisy) if len(noisy) <= 2 else f"{len(noisy)} noisy edges"
    _line(axes[0], curves, "noisy_share", f"share of {shown}", ORANGE, "--s")
    _finish(axes[0], "Sheaf term and its attribution", "unitless")
    _line(axes[1], curves, "dei_exact", r"exact, $\alpha=1$", BLUE, "-o")
    _line(axes[1], curves, "dei_limit", r"limit (small-$\alpha$ form), $\alpha=1$", ORANGE, "--s")
    axes[1].set_yscale("log")
    _finish(axes[1], r"$\Delta$EI (parts = branches)", "nats (log scale)")
    _line(axes[2], curves, "eics", r"$\alpha=1$", BLUE, "-o")
    _line(axes[2], curves, "eics_alpha_of_tau", r"$\alpha=1/(1+\tau^2)$", ORANGE, "--s")
    _finish(axes[2], "EICS (parts = branches)", "EICS")
    _line(axes[3], curves, "ear", "EAR (B2), left axis", PURPLE, "-o")
    axes[3].set_ylim(bottom=0.0)
    twin = axes[3].twinx()
    _line(twin, curves, "eac", "EAC (B1), right axis", GREEN, "--s")
    reach = 1.5 * max(abs(m) + _BAND * e for m, e in zip(curves.mean("eac"), curves.stderr("eac"), strict=True))
    twin.set_ylim(-reach, reach)
    twin.set_ylabel("correlation")
    twin.legend(frameon=False, fontsize=9, loc="lower right")
    _finish(axes[3], "Baselines", "residual norm")
    return figure


def _line(axes: Any, curves: Curves, name: str, label: str, colour: str, style: str) -> None:
    mean, error = curves.mean(name), curves.stderr(name)
    axes.plot(curves.taus, mean, style, color=colour, label=label, markersize=4)
    low = [m - _BAND * e for m, e in zip(mean, error, strict=True)]
    high = [m + _BAND * e for m, e in zip(mean, error, strict=True)]
    axes.fill_between(curves.taus, low, high, color=colour, alpha=0.2, linewidth=0)


def _finish(axes: Any, title: str, quantity: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(_TAU)
    axes.set_ylabel(quantity)
    axes.grid(visible=True, linewidth=0.5, alpha=0.5)
    axes.legend(frameon=False, fontsize=9)
