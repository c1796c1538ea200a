"""Reports, figures and files from records alone: rebuilding one needs no model.

Start with `page/` (the HTML report); then `drawing/` (circuits in layers), `plots.py` (figures), `notebook.py` (tables)
and `export.py` (files for other tools). Imports `circuits` and, of `scoring`, only options, results and records.
"""
