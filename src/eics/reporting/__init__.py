"""Results to look at, from records alone: no model is needed to rebuild a picture.

Start with `page/` (the HTML report), `drawing/` (circuits in layers), `plots.py` (figures), `notebook.py` (tables) and
`export.py` (files for other tools). Imports `circuits` and, of `scoring`, only options, results and records.
"""
