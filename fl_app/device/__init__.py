"""A device: what its owner says, its data, and how it answers a server.

``node_settings`` are the owner's words and ``agreement`` what a server may set beside them;
``data`` opens what the owner has named. ``service`` takes messages from the SuperNode, over
connections that ``proof`` makes, and answers them with what is installed here; ``health`` says how
it goes. ``received`` keeps the model that a finished run sends.
``command`` reads the words of `murmur device`, ``checks`` are lines of `murmur doctor`, and
``api`` is the door of ``murmur-guard``, which answers with anybody's app.
What a run asks of such data: ``fl_app.config.settings.DeviceDataSpec``.
"""
