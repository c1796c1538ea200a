"""A circuit at one forward state: activations, and the linear maps between them.

Start with `circuit.py` (`Stalk`, `Entry`, `LinearizedCircuit`), then `sweep.py`: `PlainEngine` is the definition of
every number that follows. `paths.py` has the macro map J_M, `positions.py` the masks, `explicit.py` circuits given by
their matrices. Nothing here knows what a head is. Imports `linalg` and `circuits`.
"""
