"""Does a score track what ablation says of a circuit, prompt by prompt, and what does each cost?"""
