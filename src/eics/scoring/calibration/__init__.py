"""What is usual on a reference set: alpha, quantiles of the score, means of reads and writes."""
