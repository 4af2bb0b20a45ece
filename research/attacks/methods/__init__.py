"""Attacks whose success a reader understands: who took part, what a label was, what an image shows.

Each is the mathematics alone, on arrays that an adversary has; ``research.attacks.attacks`` runs
them against releases, with noise and without. ``murmur.privacy.audit`` measures ε instead.
"""
