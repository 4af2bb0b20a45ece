"""Measurements of speed and size; each module prints a Markdown table when run with -m."""
