"""The whole toy experiment: three sets of curves, their files and figures, and a summary in words."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eics.errors import OptionError
from eics.linearized.explicit_file import save_linear
from eics.studies.toy import figures, summary
from eics.studies.toy.circuit import EDGES, FIRST_SEED, TAUS, draw
from eics.studies.toy.curves import Curves, stack_curves
from eics.studies.toy.general import general_point, toy_circuit
from eics.studies.toy.paper import paper_point
from eics.studies.toy.protocol import NOISY, Protocol

STEPS = 3 * len(TAUS)
"""The number of calls of `tick`: one for each of three experiments at each tau."""

PAPER_KEYS = ("c_sh", "dei_norm", "eics")


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
            "The paper's numbers": list(summary.paper_sentences(self.paper)),
            "The same six nodes by the general code": list(summary.general_sentences(self.general)),
            "Additive noise on edges": list(summary.protocol_sentences(self.protocol, self.noisy, len(EDGES))),
        }

    def save(self, folder: Path) -> list[Path]:
        """Writes figures and numbers; `toy.json` holds the paper's curve only."""
        folder.mkdir(parents=True, exist_ok=True)
        paper = self.paper.to_json()
        plain = {name: paper[name] for name in ("tau", *PAPER_KEYS, "seeds")}
        protocol = {"noisy_edges": list(self.noisy), **self.protocol.to_json()}
        written = [folder / "toy.json", folder / "toy-general.json", folder / "toy-protocol.json"]
        for path, content in zip(written, (plain, self.general.to_json(), protocol), strict=True):
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        written += figures.save(figures.paper_figure(self.paper), folder, "toy")
        written += figures.save(figures.general_figure(self.general), folder, "toy-general")
        written += figures.save(figures.protocol_figure(self.protocol, self.noisy), folder, "toy-protocol")
        circuit = folder / "toy-circuit.safetensors"
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
        return stack_curves(TAUS, points)

    return Toy(
        paper=curves(lambda tau: paper_point(draws, tau)),
        general=curves(lambda tau: general_point(draws, tau)),
        protocol=curves(protocol.point),
        noisy=protocol.noisy,
    )
