"""Norms, spectra and Gram matrices of a transformer's maps without products with vectors of length T*d.

One file for each closed form, registered with `eics.linalg.structure`.
"""
