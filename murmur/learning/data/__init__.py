"""Data sets, their files, and how they are divided among clients.

``datasets`` knows data by name, ``own_data`` and ``tables`` read a user's own; all of them give a
``Dataset`` (``examples``), of which rows can be held out. ``archives``, ``npz_arrays``,
``csv_rows``, ``class_folders`` and ``pictures`` read files; ``frames``, ``column_spec`` and its
neighbours read columns, ``cells`` single cells; ``cache`` keeps decoded images. ``partitions``
divides among the clients of a simulation.
"""
