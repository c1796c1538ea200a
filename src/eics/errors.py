"""Errors that a user's input can cause: one line that says what must hold, what came and what to do."""


class EICSError(ValueError):
    """Base class of all errors below."""


class CircuitError(EICSError):
    """The circuit is not a directed acyclic graph of well-named nodes, or does not fit its model or maps."""


class OptionError(EICSError):
    """An option is outside its range."""

    @classmethod
    def of(cls, name: str, must: str, value: object) -> "OptionError":
        """The standard message for an option out of range.

        >>> print(OptionError.of("alpha", "a number > 0, or 'auto'", -1))
        The 'alpha' option must be a number > 0, or 'auto'. Got -1 instead.
        """
        return cls(f"The {name!r} option must be {must}. Got {value!r} instead.")


class RecordError(EICSError):
    """A record, or a file of records, cannot be read."""


class ModelError(EICSError):
    """The model cannot be loaded or adapted, or its adapter does not describe it."""


class PromptError(EICSError):
    """This prompt cannot be scored; others in the same batch can."""
