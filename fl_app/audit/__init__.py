"""Attacks on what a configured run releases, as its adversaries see it.

``attack`` makes two inputs of a client that a claim says cannot be told apart, shows what an
adversary sees of either, and tells them apart; ``sums`` shows the same of secure sums: `murmur
audit` drives both. Clients that join a run and measure its ε while it goes on (``audit=canaries``)
are in ``fl_app.run.canaries``.
"""
