"""Does the score separate correct answers from wrong ones? A protocol that is hard to fool.

    data -> answers (plain pass: the model's answer, its label, its confidence) -> split
         -> measure (one pass: every score of the circuit) -> table -> columns -> fitted on development
         -> compare, incremental on test -> report

Everything that is chosen (direction, alpha, thresholds, calibration, fitted baselines) is chosen on the development
split; the test split is only measured. Start with `run.py`.
"""
