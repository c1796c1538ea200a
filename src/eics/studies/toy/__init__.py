"""The paper's six-node sanity check: its own numbers, the same nodes by the general code, and its noise protocol."""
