"""The client half of each algorithm: one file, one class each."""
