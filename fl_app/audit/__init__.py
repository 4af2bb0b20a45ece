"""Attacks on what a configured run releases, as its adversaries see it."""
