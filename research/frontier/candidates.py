"""Settings that the frontier's methods were compared at on validation data, and those chosen.

``python -m research.frontier.curves --choose`` compares; ``docs/frontier.md`` shows what it found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

# What a candidate's run has beyond its method's words, by name.
Candidates = dict[str, list[str]]


def _released(components: int, coordinates: str = "features", balance: float = 0.5) -> list[str]:
    """Class statistics of the first features, or of places in the pool's graph."""
    return [
        f"strategy.components={components}",
        f"strategy.coordinates={coordinates}",
        f"strategy.balance={balance:g}",
    ]


def _averaging(components: int, norm: float, rate: float) -> list[str]:
    return [
        f"features.components={components}",
        f"protection.clipping.norm={norm:g}",
        f"strategy.local.learning_rate={rate:g}",
    ]


def _dpsgd(components: int, rate: float, average: float = 0.0) -> list[str]:
    return [
        f"features.components={components}",
        f"strategy.local.learning_rate={rate:g}",
        f"strategy.local.average={average:g}",
    ]


_PLACES: Candidates = {f"places {count}": _released(count, "pool", 1) for count in (14, 24)}
_AVERAGING: Candidates = {
    "400 features, C = 5": _averaging(400, 5, 3),
    "50 features, C = 2": _averaging(50, 2, 10),
    "30 features, C = 2": _averaging(30, 2, 10),
    "30 features, C = 1": _averaging(30, 1, 10),
}
_RATES: Candidates = {
    f"rate {rate}": [f"strategy.local.learning_rate={rate}"] for rate in (3, 10, 30)
}
_HOSPITALS: Candidates = {
    f"{components} features, rate {rate:g}": _dpsgd(components, rate)
    for components, rate in ((100, 4), (30, 4), (30, 1), (10, 4), (10, 1))
} | {"30 features, rate 4, averaged": _dpsgd(30, 4, 0.9)}
CANDIDATES: Mapping[str, Mapping[int, Candidates]] = {  # by method and number of clients
    "class statistics": {
        100: {f"features {count}": _released(count) for count in (20, 50, 100, 400)} | _PLACES,
        1000: {f"features {count}": _released(count) for count in (50, 100, 200, 400)},
    },
    "averaged updates": {100: _AVERAGING, 1000: _AVERAGING},
    "DP-FedAvg": {100: _AVERAGING, 1000: _AVERAGING},
    "FedAvg": {100: _RATES, 1000: _RATES},
    "DP-SGD": {25: _HOSPITALS},
}
COMPARED = (  # where: the partitions that the figures are asked for
    "mnist 1000, dirichlet 0.5",
    "mnist 100, dirichlet 0.1",
    "fashion_mnist 1000, dirichlet 0.5",
    "fashion_mnist 100, dirichlet 0.1",
    "pneumonia_mnist 25",
)
EPSILONS = (0.5, 1, 2, 4, 8)
_SMALL, _LARGE = (0.5, 1, 2), (4, 8, math.inf)
_AVERAGED = {  # what FedAvg with noise uses, whoever adds it
    "mnist 1000": dict.fromkeys(_SMALL, "30 features, C = 2")
    | dict.fromkeys(_LARGE, "50 features, C = 2"),
    "mnist 100": dict.fromkeys(_SMALL, "30 features, C = 1")
    | dict.fromkeys(_LARGE, "30 features, C = 2"),
    "fashion_mnist 1000": dict.fromkeys((*_SMALL, *_LARGE), "50 features, C = 2"),
    "fashion_mnist 100": dict.fromkeys((*_SMALL, *_LARGE), "30 features, C = 2"),
}
# The candidate of a row, by ε; where none is named, its method's own words are all.
_CHOSEN: Mapping[str, Mapping[str, Mapping[float, str]]] = {
    "class statistics": {
        "mnist 1000": {0.5: "features 100"},
        "mnist 100": dict.fromkeys(EPSILONS, "places 14"),
        "fashion_mnist 1000": dict.fromkeys((0.5, 1), "features 50")
        | {2: "features 200", 4: "features 100", 8: "features 200"},
        "fashion_mnist 100": dict.fromkeys(_SMALL, "features 20")
        | {4: "features 50", 8: "features 100"},
    },
    "averaged updates": _AVERAGED,
    "DP-FedAvg": _AVERAGED,
    "FedAvg": {
        "mnist 1000": {math.inf: "rate 10"},
        "mnist 100": {math.inf: "rate 30"},
        "fashion_mnist 100": {math.inf: "rate 30"},
    },
    "DP-SGD": {"pneumonia_mnist 25": dict.fromkeys(EPSILONS, "10 features, rate 4")},
}


def chosen(method: str, setting: str, clients: int, epsilon: float) -> list[str]:
    """The words of what was chosen for ``setting`` ("data clients, partition")."""
    name = _CHOSEN.get(method, {}).get(setting.split(",")[0], {}).get(epsilon)
    return [] if name is None else CANDIDATES[method][clients][name]
