"""From what a user typed to a checked configuration."""
