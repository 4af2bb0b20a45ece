"""Mechanisms, accounting, the device policy and ledger. Knows no Flower, Hydra or Ray."""
