"""What rounds need and no algorithm owns: cohorts, placement, answers, secure sums, evaluation.

A round, in the order in which it happens:

* ``setup`` is what a strategy is built with, ``cohorts`` draws whom a round asks, ``placement``
  says on which nodes these are.
* ``phase`` sends one question to a cohort and reads the answers; ``summation`` adds them
  up; ``wire`` guards what travels.
* ``task`` and ``host`` answer on a node, where ``client_state`` is what clients remember.
* ``server_step`` moves the model, and ``client_evaluation`` asks clients how good it is.

It knows Flower's messages and builds nothing: apps hand it values.
"""
