"""From what a user typed to a checked configuration.

In the order in which a word passes through them:

* ``overrides``: Hydra's words, sweeps, Flower's run-config, paths.
* ``groups``, ``plugins``: which files and classes there are, ours and the user's own.
* ``compose``: the whole configuration, and the key that names equal settings.
* ``settings``: the settings that no component owns.
* ``instantiate``: components from the configuration; ``errors``: the one error that users see.
"""
