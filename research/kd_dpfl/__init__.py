"""KD-DPFL, against its baselines."""
