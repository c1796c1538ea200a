"""Which edges of a model matter for a task: attribution, selection, ablation, faithfulness."""
