"""Does the score fall when the circuit is damaged, hold under equal damage elsewhere, and point at the damaged node?

`plan.py` chooses what is damaged, `batches.py` runs it, `measures.py` turns each run into a row, `summary.py` turns
rows into curves with intervals, `words.py` into sentences. Start with `run.py`.
"""

from eics.studies.damage.run import damage

__all__ = ["damage"]
