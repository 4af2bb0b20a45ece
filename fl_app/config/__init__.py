"""From what a user typed to a checked configuration.

In the order in which a word passes through them:

* ``overrides``: Hydra's words, sweeps, Flower's run-config, paths.
* ``conf_files``, ``own_classes``: which files and classes there are, ours and the user's own.
* ``composition``: the whole configuration, and the key that names equal settings.
* ``settings``: the settings that no component owns.
* ``building``: components from the configuration; ``errors``: the one error that users see.
"""
