"""Data sets, their files, and how they are divided among clients.

``datasets`` knows data by name, ``own_data`` and ``tables`` read a user's own; all of them give a
``Dataset`` (``examples``), of which rows can be held out. ``files`` reads what they come in,
``cells`` says what single cells mean, ``cache`` keeps decoded images; ``partitions`` divides among
the clients of a simulation.
"""
