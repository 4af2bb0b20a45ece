"""Data sets, partitions, models, local training and evaluation. Knows no Flower, Hydra or Ray."""
