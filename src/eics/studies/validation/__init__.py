"""Does the score tell correct answers from wrong ones? A protocol that is hard to fool.

    data -> answers (plain pass: the model's answer, its label, its own confidence) -> kept -> split
         -> measured (one pass: every score of the circuit) -> columns -> fitted on development -> compared on test
         -> report

Everything that is chosen (direction, alpha, thresholds, calibration, fitted baselines) is chosen on the development
split; the test split is only looked at. Rows are kept on disk as they are made (`store`).
"""
