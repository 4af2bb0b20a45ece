"""A plain Flower app, as Flower's own tutorials write it."""
