"""The whole toy experiment: three sets of curves, their files and figures, and a summary in words.

A sentence of the summary appears only if the numbers that it quotes support it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from eics.data.files import write_text
from eics.errors import OptionError
from eics.linearized.explicit_file import save_linear
from eics.reporting.plots import save
from eics.scoring.numbers import number
from eics.studies.toy import figures
from eics.studies.toy.circuit import EDGES, FIRST_SEED, TAUS, draw
from eics.studies.toy.curves import Curves, general_point, paper_point, toy_circuit
from eics.studies.toy.protocol import NOISY, Protocol

STEPS = 3 * len(TAUS)
"""The number of calls of `tick`: one for each of three experiments at each tau."""

CIRCUIT = "toy-circuit.safetensors"
_STEMS, _ENDINGS = ("toy", "toy-general", "toy-protocol"), ("json", "pdf", "png")
FILES = (*(f"{stem}.{ending}" for stem in _STEMS for ending in _ENDINGS), CIRCUIT)
"""What `Toy.save` writes."""

_INTERVAL = 1.96  # standard errors in a 95% interval


@dataclass(frozen=True)
class Toy:
    """The results of the three experiments."""

    paper: Curves
    general: Curves
    protocol: Curves
    noisy: tuple[str, ...]

    def sentences(self) -> dict[str, list[str]]:
        """What each experiment shows, by title."""
        return {
            "The paper's numbers": list(_paper_sentences(self.paper)),
            "The same six nodes by the general code": list(_general_sentences(self.general)),
            "Additive noise on edges": list(_protocol_sentences(self.protocol, self.noisy)),
        }

    def save(self, folder: Path) -> list[Path]:
        """Writes figures and numbers; `toy.json` holds the paper's curve only."""
        folder.mkdir(parents=True, exist_ok=True)
        paper = self.paper.to_json()
        plain = {name: paper[name] for name in ("tau", "c_sh", "dei_norm", "eics", "seeds")}
        protocol = {"noisy_edges": list(self.noisy), **self.protocol.to_json()}
        written = []
        contents = (
            (plain, figures.paper_figure(self.paper)),
            (self.general.to_json(), figures.general_figure(self.general)),
            (protocol, figures.protocol_figure(self.protocol, self.noisy)),
        )
        for stem, (content, figure) in zip(_STEMS, contents, strict=True):
            numbers, *pictures = (folder / f"{stem}.{ending}" for ending in _ENDINGS)
            write_text(numbers, json.dumps(content, indent=1) + "\n")
            for path in pictures:
                save(figure, path)
            written += [numbers, *pictures]
        circuit = folder / CIRCUIT
        save_linear(toy_circuit(draw(range(FIRST_SEED, FIRST_SEED + 5)), tau=TAUS[1]), circuit)
        return [*written, circuit]


def run_toy(seeds: int = 100, noisy: Sequence[str] = NOISY, tick: Callable[[], None] = lambda: None) -> Toy:
    """Runs all three experiments for seeds 1000, 1001, ...; calls `tick` after each of `STEPS` steps."""
    if seeds < 2:
        raise OptionError.of("seeds", "a whole number >= 2", seeds)
    draws = draw(range(FIRST_SEED, FIRST_SEED + seeds))
    protocol = Protocol(draws, noisy)

    def curves(point: Callable[[float], dict[str, Tensor]]) -> Curves:
        points = []
        for tau in TAUS:
            points.append(point(tau))
            tick()
        return Curves(TAUS, {name: torch.stack([point[name] for point in points]) for name in points[0]})

    return Toy(
        paper=curves(lambda tau: paper_point(draws, tau)),
        general=curves(lambda tau: general_point(draws, tau)),
        protocol=curves(protocol.point),
        noisy=protocol.noisy,
    )


def _paper_sentences(curves: Curves) -> Iterator[str]:
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
            f"EICS does not fall at first: it rises from {number(eics[0])} at tau = 0 to {number(eics[peak])} at tau = "
            f"{curves.taus[peak]:.1f} (+{eics[peak] / eics[0] - 1:.0%}), a bump. There dEI goes from {dei[0]:.2f} to "
            f"{dei[peak]:.2f} nats ({dei[peak] / dei[0] - 1:+.0%}), and its divisor EI(J_M) from {macro[0]:.2f} to "
            f"{macro[peak]:.2f} ({macro[peak] / macro[0] - 1:+.0%}): the division makes the bump."
        )
    clipped = [tau for tau, value in zip(curves.taus, eics, strict=True) if value == 0.0]
    if clipped:
        yield f"From tau = {clipped[0]:.1f} on, every seed has dEI < 0: the score is clipped to exactly 0."


def _general_sentences(curves: Curves) -> Iterator[str]:
    """The general code: how far the branches of the script are from the true ones."""
    nodes, branches, well = (curves.mean(f"{name}.eics") for name in ("nodes", "branches", "well_posed"))
    if not any(nodes):
        dei = curves.mean("nodes.dei")
        yield (
            f"With the true macro map of the circuit and the parts of equation (3), nodes, the score is 0 at every "
            f"tau: dEI lies between {min(dei):.1f} and {max(dei):.1f} nats. The parts always carry more than the whole."
        )
    yield (
        f"With true branches, which add up to J_M as those of the script do not, it starts at {number(branches[0])} "
        f"and reaches {number(max(branches))} at tau = {curves.taus[branches.index(max(branches))]:.1f}."
    )
    joint, term = curves.mean("well_posed.c_sh"), curves.mean("well_posed.dei_norm")
    yield (
        f"The well-posed companion has C_sh = {joint[0]:.3f} at tau = 0, goes from {well[0]:.3f} to {well[-1]:.3f} and "
        f"is never clipped; its emergence term stays between {min(term):.3f} and {max(term):.3f}: C_sh does the work."
    )


def _protocol_sentences(curves: Curves, noisy: tuple[str, ...]) -> Iterator[str]:
    """Additive noise on edges: what responds to it."""
    yield _trend(f"Noise on {', '.join(noisy)}: C_sh", curves, "c_sh")
    share = curves.mean("noisy_share")
    yield (
        f"The noisy edges ({len(noisy)} of {len(EDGES)}) make up {share[0]:.0%} of the numerator without noise and "
        f"{share[-1]:.0%} at tau = {curves.taus[-1]:.1f}. Equation (2) also charges the noise in a node's write to "
        "that node's other edges."
    )
    exact, limit = curves.mean("dei_exact"), curves.mean("dei_limit")
    if max(exact) - min(exact) < 1e-9:
        yield (
            f"dEI is the same at every tau ({exact[0]:.3f} nats exact): additive noise does not change a linear "
            f"circuit's Jacobians. The small-alpha form gives {limit[0]:.1f}: alpha = 1 is far from that limit."
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
    start, end = (f"{number(mean[i])} (±{number(_INTERVAL * error[i])})" for i in (0, -1))
    return f"{what} {verb}: {start} to {end}."
