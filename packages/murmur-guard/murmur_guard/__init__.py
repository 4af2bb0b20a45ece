"""Anybody's Flower app on its owner's device, locked in and behind Murmur's protection.

``command`` is `murmur guard`, ``guard`` answers a SuperNode's tasks, ``guarded`` runs the app in a
process that ``sandbox`` locks in, ``doctor`` says what of the isolation a machine gives.
"""
