"""Sweeps that carry a head's z in place of its write: the `TransformerEngine`, and the steps that it is made of."""
