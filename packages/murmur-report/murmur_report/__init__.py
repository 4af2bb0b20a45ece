"""The report of a run or a sweep, and attacks on what a run releases.

The report: ``settings`` gathers runs that differ only in their seed, ``charts`` and ``figures``
draw them with Altair (Vega-Lite), ``tables`` lists them, ``page`` puts all of it into one HTML file
that needs nothing but a browser, ``export`` writes pictures for papers, ``command`` is `murmur
report`. It reads runs through ``fl_app.api`` alone.

Attacks: ``neighbours`` makes the inputs that must not be told apart, ``views`` what an adversary
sees of them, ``sums`` the same for secure sums, ``attack`` tells them apart, ``audit`` is `murmur
audit`. They drive a run's own code, through ``fl_app.audit_api`` alone.
"""
