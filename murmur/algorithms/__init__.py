"""What both halves of one paper agree on, one folder for each. Knows no Flower, Hydra or Ray."""
