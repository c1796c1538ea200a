"""What a reference set of prompts teaches: alpha, quantiles of the score, means of reads and writes."""
