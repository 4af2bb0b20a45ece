"""What owners without a public pool can learn together: the figures of ``docs/owners.md``."""
