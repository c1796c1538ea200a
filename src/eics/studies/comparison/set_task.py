"""A comparison of two sets of prompts to be made: what was given, checked before anything runs."""

from dataclasses import dataclass
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.models.base import Model
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.file import as_calibration
from eics.scoring.checks import check_flag, check_whole, interventions_by_prompt
from eics.scoring.job import fingerprint_of, requested
from eics.scoring.options import CALIBRATED, Options
from eics.studies.comparison.set_input import PromptSet, check_names, check_sets, is_paired
from eics.studies.run_folder import digest
from eics.transformer.adapt import adapt

_OF_THE_SHEAF = ("readout", "linearization")  # options of a calibration that are taken over


@dataclass(frozen=True)
class Comparison:
    """What `compare_prompt_sets` was asked for, checked."""

    model: Model
    circuit: Circuit
    a: PromptSet
    b: PromptSet
    calibration: Calibration | None
    options: Options
    paired: bool
    batch_size: int
    resamples: int
    interventions: Any

    @property
    def fits(self) -> bool:
        """Whether a calibration is fitted on A."""
        return self.calibration is None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the numbers of a prompt."""
        model, given = self.model, self.calibration
        settings = {
            "study": "compare-prompts",
            "model": model.name,
            "fingerprint": fingerprint_of(model),
            "dtype": str(model.transformer.unembed.dtype).removeprefix("torch."),
            "circuit": self.circuit.label(),
            "calibration": None if given is None else given.sha256,
            "seed": self.options.seed,
        }
        for one in (self.a, self.b):
            ids = [prompt.id for prompt in one.prompts]
            settings[f"prompts_{one.key}"] = digest([ids, one.tokens])
            settings[f"groups_{one.key}"] = None if one.groups is None else digest(one.groups)
        if self.interventions is not None:
            settings["interventions"] = self._identities()
        return settings

    def _identities(self) -> str:
        """A digest of B's interventions, with the vectors that they write."""
        on = interventions_by_prompt(self.model, self.circuit, self.b.prompts, self.interventions)
        records = {id: requested(self.model, self.options, interventions=own) for id, own in on.items()}
        return digest([[id, record.get("interventions")] for id, record in records.items()])


def checked(
    model: Any,
    circuit: Circuit,
    prompts: tuple[Any, Any],
    groups: tuple[Any, Any],
    names: Any,
    *,
    calibration: Any,
    level: float,
    seed: int,
    memory: float | None,
    paired: bool | None,
    batch_size: int,
    resamples: int,
    interventions: Any,
    allow_changed_weights: bool,
) -> Comparison:
    """The task; an error says what cannot be."""
    called, adapted = check_names(names), adapt(model)
    adapted.check_circuit(circuit)
    options = CALIBRATED.with_(terms="sheaf", level=level, seed=seed, memory=memory)
    circuit.carrying(options.linearization)  # refuses a circuit of which nothing remains
    changed_weights = check_flag("allow_changed_weights", allow_changed_weights)
    if calibration is not None:
        calibration = as_calibration(calibration)
        options = _fitting(calibration, options, circuit)
        calibration.check_model(adapted, allow_changed_weights=changed_weights)
    a, b = (
        PromptSet.of(key, name, adapted, own, group)
        for key, name, own, group in zip("ab", called, prompts, groups, strict=True)
    )
    check_sets(a, b, fits=calibration is None, changed=interventions is not None)
    return Comparison(
        adapted,
        circuit,
        a,
        b,
        calibration,
        options,
        is_paired(a, b, None if paired is None else check_flag("paired", paired)),
        check_whole("batch_size", batch_size, least=1),
        check_whole("resamples", resamples, least=1),
        interventions,
    )


def _fitting(calibration: Calibration, options: Options, circuit: Circuit) -> Options:
    """The options with those of the calibration that its sheaf depends on; refuses one without a sheaf, or of another
    circuit."""
    if calibration.learned is None:
        raise OptionError(
            "Sets of prompts are compared with a calibration that has a learned sheaf: make one with `eics calibrate` "
            "in its default preset, or give none, and one is fitted on set A."
        )
    options = options.with_(**{name: calibration.options[name] for name in _OF_THE_SHEAF})
    return calibration.fit(options, circuit.label(), calibration.answer, calibration.tokens)
