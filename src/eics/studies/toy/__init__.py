"""The paper's six-node sanity check: its own numbers, the general code beside them, and its noise protocol."""
