"""What rounds need and no algorithm owns: cohorts, placement, answers, secure sums, evaluation."""
