"""A device: what its owner says, its data, and how it answers a server.

``node_settings`` are the owner's words and ``agreement`` what a server may set beside them;
``data`` opens what the owner has named. ``resident`` takes messages from the SuperNode, over
connections that ``proof`` makes, and answers them with what is installed here; ``health`` says how
it goes.
``guard`` answers with anybody's app, which runs in ``guarded``, locked in by ``sandbox``.
What a run asks of such data: ``fl_app.config.settings.DeviceTerms``.
"""
