"""A Flower app that knows nothing of Murmur."""
