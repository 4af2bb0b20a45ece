"""What rounds need and no algorithm owns: cohorts, placement, answers, secure sums, evaluation.

A round, in the order in which it happens:

* ``setup`` is what a strategy is built with, ``rounds`` drives its rounds, ``cohorts`` draws whom a
  round asks, ``placement`` says on which nodes these are.
* ``phase`` sends one ``question`` to a cohort and reads the answers; ``summation`` and
  ``secure_summation`` add them up, ``aggregator`` is what lasts of that from phase to phase, and
  ``wire`` says what messages weigh.
* On a node a ``host`` answers each ``task``, for the clients of a ``site``; ``collectors`` take
  their releases, ``secure_party`` is their part in secure sums, ``replies`` are stored before they
  leave, and ``client_state`` is what clients remember.
* ``server_step`` moves the model; ``client_evaluation`` and ``own_models`` ask clients how good it
  is.
* ``run_state`` is everything that a resumed run needs. When a run is over, ``statement_file`` opens
  what was asked, and ``receipts`` asks devices what they say of it.

It knows Flower's messages and builds nothing: apps hand it values.
"""

import importlib
from typing import Any

_MODULES = {
    "murmur.round.client_state": ("ClientState",),
    "murmur.round.cohorts": ("Schedule", "Weights"),
    "murmur.round.host": ("Host", "SeededNoise", "noise_of_this_thread"),
    "murmur.round.phase": ("Phase",),
    "murmur.round.placement": ("DevicePlacement", "Enrolment", "SimulatedPlacement"),
    "murmur.round.question": ("Outcome", "Question"),
    "murmur.round.rounds": ("Rounds",),
    "murmur.round.secure_party": ("SecureParties",),
    "murmur.round.server_step": ("Adam", "Momentum", "Sgd", "Yogi"),
    "murmur.round.setup": ("ServerSetup", "SumSetup"),
    "murmur.round.site": ("Data", "DeviceSite", "SimulatedSite", "Site"),
    "murmur.round.task": (
        *("Client", "RequestError", "RunError", "RunFacts", "Task", "TaskError"),
        "parse_tasks",
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and no more: cryptography and Flower take a second."""
    if name not in _HOME:
        raise AttributeError(f"module 'murmur.round' has no attribute {name!r}; it has {__all__}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
