"""Accuracy against a total ε, by threat."""
