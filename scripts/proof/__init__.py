"""The experiments of docs/preregistration-calibrated.md; `scripts/calibrated_proof.py` runs them."""
