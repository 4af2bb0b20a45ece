"""A node: its owner's settings, its data, and how it answers a server."""
