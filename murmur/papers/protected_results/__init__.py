"""LDP-protected inference results: protection, rows on the wire, counts, settings."""
