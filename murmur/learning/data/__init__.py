"""Data sets, their sources and files, a user's own data, the public pool, and partitions."""
