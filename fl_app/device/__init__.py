"""A device: what its owner says, its data, and how it answers a server.

``node_settings`` are the owner's words and ``agreement`` what a server may set beside them;
``data`` opens what the owner has named. ``serving`` answers the messages that ``flower_runtime``
takes from the SuperNode, and ``health`` says how it goes.
What a run asks of such data is in ``fl_app.config.device_terms``.
"""
