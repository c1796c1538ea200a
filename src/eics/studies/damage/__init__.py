"""Does the score fall when the circuit is damaged, stay put when something else is, and point at the place?"""

from eics.studies.damage.run import damage

__all__ = ["damage"]
