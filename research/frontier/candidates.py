"""Settings that the frontier's methods are compared at, on validation data, for each cell.

A cell is a method, a setting and an ε. ``research.frontier.curves`` measures every candidate once
on images that nobody has, and runs the best on the test set.
"""

from __future__ import annotations

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


def _rounds(components: int, length: float, power: float = 1.0) -> list[str]:
    return [
        f"features.components={components}",
        f"features.power={power:g}",
        f"strategy.length={length:g}",
    ]


def _adjusted(strength: float) -> list[str]:
    """A client's classes by their frequency at it, and its features' heavy directions flattened."""
    return [
        f"strategy.logit_adjustment={strength:g}",
        "strategy.flatten=0.6",
        "strategy.balance=0",
        "strategy.constant=0.1",
    ]


def _values(key: str, values: tuple[object, ...]) -> Candidates:
    return {f"{key.rpartition('.')[2]} {value}": [f"{key}={value}"] for value in values}


def _votes(local: Candidates, images: tuple[int, ...]) -> Candidates:
    return {
        f"{name}, K = {count}": [*words, f"strategy.K={count}"]
        for name, words in local.items()
        for count in images
    }


_STATISTICS = {count: _released(count) for count in (20, 50, 100, 200, 400)}
_PLACES: Candidates = {f"places {count}": _released(count, "pool", 1) for count in (14, 24)}
_AVERAGING: Candidates = {
    "400 features, C = 5": _averaging(400, 5, 3),
    "50 features, C = 2": _averaging(50, 2, 10),
    "30 features, C = 2": _averaging(30, 2, 10),
    "30 features, C = 1": _averaging(30, 1, 10),
}
_AVERAGING_FEW: Candidates = {  # with few clients the noise leaves room for few numbers
    **_AVERAGING,
    "10 features, C = 2": _averaging(10, 2, 10),
    "10 features, C = 1": _averaging(10, 1, 10),
}
_AVERAGING_DIGITS: Candidates = {
    "30 features, C = 5": _averaging(30, 5, 3),
    "30 features, C = 1": _averaging(30, 1, 10),
    "10 features, C = 2": _averaging(10, 2, 10),
    "10 features, C = 1": _averaging(10, 1, 10),
}
# The features of a pool are whitened, of length about √d; those of elsewhere are of unit length.
_ROUNDS: Candidates = {
    f"{count} features, L = {length}": _rounds(count, length)
    for count, length in ((50, 20), (50, 40), (100, 30), (200, 20), (200, 60), (400, 100))
}
_ROUNDS_ELSEWHERE: Candidates = {
    f"{count} features, power {power:g}, L = {length}": _rounds(count, length, power)
    for count, power, length in (
        *((200, 0.5, 120), (200, 0.5, 250), (200, 0.5, 500), (400, 0.5, 1200)),
        *((400, 1.0, 150), (400, 1.0, 300), (400, 1.0, 600), (400, 1.0, 2000)),
    )
} | {
    f"{count} features, power {power:g}, L = {length}, adjusted {strength:g}": [
        *_rounds(count, length, power),
        *_adjusted(strength),
    ]
    for count, power, length, strength in (
        *((200, 0.5, 250, 1.0), (400, 1.0, 300, 1.0), (400, 0.5, 1200, 0.5)),
    )
}
_HOSPITALS: Candidates = {
    f"{components} features, rate {rate:g}": _dpsgd(components, rate)
    for components, rate in ((100, 4), (30, 4), (30, 1), (10, 4), (10, 1))
} | {"30 features, rate 4, averaged": _dpsgd(30, 4, 0.9)}
# What a client's own model sees of the features, and on how many images it votes.
_LOCAL: Candidates = {f"{count} components": [f"strategy.components={count}"] for count in (20, 50)}
_LOCAL_DIGITS: Candidates = {
    f"{count} components": [f"strategy.components={count}"] for count in (10, 20)
}
_STEPS = _values("strategy.local.learning_rate", (3, 10, 30))
# By method and number of clients.
CANDIDATES: Mapping[str, Mapping[int, Candidates]] = {
    "class statistics": {
        60: {f"features {count}": _released(count) for count in (20, 30)}
        | {"places 14": _PLACES["places 14"]},
        100: {f"features {count}": _STATISTICS[count] for count in (20, 50, 100, 400)} | _PLACES,
        1000: {f"features {count}": _STATISTICS[count] for count in (50, 100, 200, 400)},
    },
    "votes": {
        60: _votes(_LOCAL_DIGITS, (40, 80)),
        100: _votes(_LOCAL, (200, 500)),
        1000: _votes(_LOCAL, (200, 500)),
    },
    "averaged updates": {60: _AVERAGING_DIGITS, 100: _AVERAGING_FEW, 1000: _AVERAGING},
    "gradient rounds": {100: _ROUNDS, 1000: _ROUNDS},
    "gradient rounds, no pool": {100: _ROUNDS_ELSEWHERE, 1000: _ROUNDS_ELSEWHERE},
    "disjoint": {60: _LOCAL_DIGITS, 100: _LOCAL, 1000: _LOCAL},
    "DP-FedAvg": {60: _AVERAGING_DIGITS, 100: _AVERAGING_FEW, 1000: _AVERAGING},
    "FedAvg": dict.fromkeys((25, 60, 100, 1000), _STEPS),
    "centralised": dict.fromkeys((25, 60, 100, 1000), _STEPS),
    "DP-SGD": {25: _HOSPITALS},
}


def candidates(method: str, clients: int) -> Candidates:
    """What is compared for ``method`` among ``clients``, by name; empty: it is not measured."""
    return CANDIDATES[method].get(clients, {})
