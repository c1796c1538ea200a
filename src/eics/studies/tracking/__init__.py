"""Does a score track what ablation says about a circuit, prompt by prompt, and what does each cost?

`families.py` makes circuits of one size, `measure.py` ablates and scores them, `analysis.py` correlates the two,
`words.py` states the verdict on a page, `figure.py` shows it. Start with `run.py`.
"""
