"""The server half of each algorithm: one file, one Flower Strategy each."""
