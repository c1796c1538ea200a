"""The engine that exploits the structure of a transformer; `linearized/sweep.py` has the definition it must agree with.

Not `--mode fast`: this engine runs in every mode and changes no number.

Start with `engine.py`. `from_z.py`: heads carried as z; `steps.py` and `head_step.py`: how values cross a level;
`path_map.py`, `answer_position.py`, `answer_paths.py` and `kronecker_paths.py`: the macro map at the answer position.
"""
