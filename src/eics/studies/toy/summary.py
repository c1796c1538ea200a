"""What the curves show, in words. A sentence appears only if the numbers that it quotes support it."""

from collections.abc import Iterator
from itertools import pairwise

from eics.studies.toy.curves import Curves

_INTERVAL = 1.96  # standard errors in a 95% interval


def paper_sentences(curves: Curves) -> Iterator[str]:
    """The paper's own curve: its start, its bump, its end."""
    eics, c_sh, parts, macro = (curves.mean(name) for name in ("eics", "c_sh", "ei_parts", "ei_macro"))
    yield _trend("C_sh", curves, "c_sh")
    if c_sh[0] > 0.01:
        yield (
            f"At tau = 0 nothing is disturbed, yet C_sh is {c_sh[0]:.3f}, not 0: n3 and n6 each sum two parents, and "
            "no single edge explains a sum. Equation (2) calls a perfect circuit inconsistent."
        )
    peak = max(range(len(eics)), key=eics.__getitem__)
    if 0 < peak < len(eics) - 1 and eics[peak] > eics[0]:
        dei = [whole - sum_of_parts for whole, sum_of_parts in zip(macro, parts, strict=True)]
        yield (
            f"EICS does not fall at first: it rises from {eics[0]:.4f} at tau = 0 to {eics[peak]:.4f} at tau = "
            f"{curves.taus[peak]:.1f} (+{eics[peak] / eics[0] - 1:.0%}), a bump. There dEI goes from {dei[0]:.2f} to "
            f"{dei[peak]:.2f} nats ({dei[peak] / dei[0] - 1:+.0%}), and its divisor EI(J_M) from {macro[0]:.2f} to "
            f"{macro[peak]:.2f} ({macro[peak] / macro[0] - 1:+.0%}): the division makes the bump."
        )
    clipped = [tau for tau, value in zip(curves.taus, eics, strict=True) if value == 0.0]
    if clipped:
        yield f"From tau = {clipped[0]:.1f} on, every seed has dEI < 0: the score is clipped to exactly 0."


def general_sentences(curves: Curves) -> Iterator[str]:
    """The general code: how far the branches of the script are from the true ones."""
    nodes, branches, well = (curves.mean(f"{name}.eics") for name in ("nodes", "branches", "well_posed"))
    if not any(nodes):
        dei = curves.mean("nodes.dei")
        yield (
            f"With the true macro map of the circuit and the parts of equation (3), nodes, the score is 0 at every "
            f"tau: dEI lies between {min(dei):.1f} and {max(dei):.1f} nats. The parts always carry more than the whole."
        )
    yield (
        f"With true branches, which add up to J_M as those of the script do not, it starts at {branches[0]:.4f} "
        f"and reaches {max(branches):.4f} at tau = {curves.taus[branches.index(max(branches))]:.1f}."
    )
    joint, term = curves.mean("well_posed.c_sh"), curves.mean("well_posed.dei_norm")
    yield (
        f"The well-posed companion has C_sh = {joint[0]:.3f} at tau = 0, goes from {well[0]:.3f} to {well[-1]:.3f} and "
        f"is never clipped; its emergence term stays between {min(term):.3f} and {max(term):.3f}: C_sh does the work."
    )


def protocol_sentences(curves: Curves, noisy: tuple[str, ...], edges: int) -> Iterator[str]:
    """Additive noise on edges: what responds to it."""
    yield _trend(f"Noise on {', '.join(noisy)}: C_sh", curves, "c_sh")
    share = curves.mean("noisy_share")
    yield (
        f"The noisy edges ({len(noisy)} of {edges}) make up {share[0]:.0%} of the numerator without noise and "
        f"{share[-1]:.0%} at tau = {curves.taus[-1]:.1f}. Equation (2) also charges the noise in a node's write to "
        "that node's other edges."
    )
    exact, fast = curves.mean("dei_exact"), curves.mean("dei_fast")
    if max(exact) - min(exact) < 1e-9:
        yield (
            f"dEI is the same at every tau ({exact[0]:.3f} nats exact): additive noise does not change a linear "
            f"circuit's Jacobians. The fast form gives {fast[0]:.1f}: alpha = 1 is far from its small-alpha limit."
        )
    yield _trend("EICS at alpha = 1", curves, "eics")
    yield _trend("EICS at alpha = 1/(1 + tau^2), the paper's signal over noise,", curves, "eics_alpha_of_tau")
    rising = curves.mean("eics_alpha_of_tau")
    if rising[-1] > rising[0]:
        yield (
            "This contradicts the paper's argument (smaller EI terms, so smaller EICS): the EI of the parts falls "
            "faster than that of the macro map, so dEI_norm grows."
        )
    yield f"{_trend('EAR', curves, 'ear')} {_trend('EAC', curves, 'eac')}"


def _trend(what: str, curves: Curves, name: str) -> str:
    """How a curve moves from its first to its last point, with 95% intervals; seeds are paired."""
    mean, error = curves.mean(name), curves.stderr(name)
    moved = curves.values[name][-1] - curves.values[name][0]
    steps = [b - a for a, b in pairwise(mean)]
    up = float(moved.mean()) > 0
    if abs(float(moved.mean())) <= _INTERVAL * float(moved.std()) / len(moved) ** 0.5:
        verb = "does not move beyond its error"
    elif all((step > 0) == up for step in steps):
        verb = "rises at every step" if up else "falls at every step"
    else:
        verb = "rises, but not at every step" if up else "falls, but not at every step"
    start, end = (f"{mean[i]:.4f} (±{_INTERVAL * error[i]:.4f})" for i in (0, -1))
    return f"{what} {verb}: {start} to {end}."
