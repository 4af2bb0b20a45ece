"""Attacks on releases, audits of every ε, and planted bugs."""
