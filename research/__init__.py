"""Studies of papers, attacks and frontiers: a folder each, with its commands."""
