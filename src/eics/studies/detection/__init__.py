"""Does a calibration find damage without a clean run, and is it calm without damage?

observations  what runs leave behind: samples of the circuit's nodes, and what the baselines need
plan          which node of which prompt is damaged, and how
ways          ways of judging nodes: the calibrated one, the same with a part left out, and baselines
fitted        a reference set, every way fitted to it, and what each way says of a run
summary       localisation, AUROC and false alarms, with intervals
measure       a trial: damaged runs of test prompts, and what each way says of them

The experiments of docs/preregistration-calibrated.md are in scripts/proof.
"""
