"""Attacks on what a configured run releases, as its adversaries see it.

``neighbours`` makes two inputs of a client that a claim says cannot be told apart, ``views`` what
an adversary sees of either, ``sums`` the same of secure sums, and ``attack`` tells them apart:
`murmur audit` drives these four. ``canaries`` is apart from them: clients that join a run
(``audit=canaries``) and measure its ε while it goes on.
"""
