"""The engine that exploits how a transformer is made; `linearized/sweep.py` has the definition that it must agree with.

Start with `engine.py`. `from_z.py`: heads carried as z; `steps.py` and `head_step.py`: how values cross a level;
`path_map.py`, `answer_position.py`, `answer_paths.py` and `kronecker_paths.py`: the macro map at the answer position.
"""
