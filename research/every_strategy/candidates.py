"""Settings that strategies are compared at, on validation data, for each threat.

``shared`` has the words of all runs of a strategy against a threat, ``candidates`` those that
differ. A pool of 360 images gives 30 features where no number is set.
"""

from __future__ import annotations

from research.frontier.candidates import candidates as of_frontier

LIKE_DIGITS = 60  # clients of the frontier's digits, whose candidates are used here
FEATURES = ["features=scattering", "model=linear"]
LOCAL_STEPS = ["strategy.local.epochs=1", "strategy.local.batch_size=16"]
AVERAGING = [*FEATURES, *LOCAL_STEPS, "federation.schedule=random"]
# One layer is shared, the other stays with each client.
SHARED_LAYERS = [*AVERAGING, "model=mlp", "model.hidden=[16]"]
AVERAGED = ("fedavg", "fedprox", "fedadam", "fedper", "scaffold")
PROTECTIONS = {"local": "distributed", "secure_aggregation": "distributed", "central": "central"}
SHARED: dict[str, list[str]] = {
    "privatekt": [
        *("strategy.answers=disjoint", "strategy.target=posterior", "strategy.learner=ridge"),
        *("strategy.refits=3", "strategy.spreading={}", "federation.num_rounds=1", *FEATURES),
    ],
    "dp_fedavg": AVERAGING,
    "dp_ftrl": [*AVERAGING, "server_step=sgd"],
    "gradient_rounds": ["features=scattering"],
    "class_moments": ["features=scattering"],
    "nbafl": ["federation.num_rounds=1", *FEATURES],
    "dpsgd_fedavg": ["federation.num_rounds=1", *FEATURES],
    "kd_dpfl": FEATURES,
}


def typed(name: str, threat: str) -> list[str]:
    """The overrides with which one asks for ``strategy=name`` against ``threat``, and no others."""
    words = [f"strategy={name}"]
    protection = PROTECTIONS[threat]
    if name in (*AVERAGED, "clustering"):
        words += ["privacy=local", f"protection={protection}"]
    if name == "robust":
        rows = "rows" if threat == "central" else "distributed"
        words += ["privacy=local", f"protection={rows}"]
    if name == "gradient_rounds" and threat == "central":
        words.append(f"protection={protection}")
    if threat == "secure_aggregation":
        words.append("privacy.secure_aggregation=simulated")
    return [*words, f"privacy.threat={threat}"]


def shared(name: str, threat: str) -> list[str]:
    """The overrides that all runs of ``strategy=name`` against ``threat`` have."""
    rounds = AVERAGING if name in (*AVERAGED, "robust") else []
    if name == "fedper":
        rounds = SHARED_LAYERS
    return [*typed(name, threat), *SHARED.get(name, []), *rounds]


def candidates(name: str, threat: str) -> list[list[str]]:
    """What is compared for ``strategy=name`` against ``threat``; one empty list: nothing is."""
    if name in ("fedavg", "fedprox", "dp_fedavg", "dp_ftrl"):
        return _FEW_NUMBERS if threat == "local" else _AVERAGED
    return CANDIDATES.get(name, [[]])


def _averaging(rounds: int, components: int | None, norm: float, rate: float) -> list[str]:
    return [
        f"federation.num_rounds={rounds}",
        f"features.components={components or 'null'}",
        f"protection.clipping.norm={norm:g}",
        f"strategy.local.learning_rate={rate:g}",
    ]


def _each(key: str, *values: object) -> list[list[str]]:
    return [[f"{key}={value}"] for value in values]


_TEN_ROUNDS = _averaging(10, None, 2, 3)
_THREE_ROUNDS = _averaging(3, 10, 1, 10)
_SLOW_ROUNDS = _averaging(10, None, 2, 1)
_AVERAGED = [
    _TEN_ROUNDS,
    *(
        ["federation.num_rounds=10", *words]
        for words in of_frontier("averaged updates", LIKE_DIGITS).values()
    ),
]
# Where no client's noise hides another's.
_FEW_NUMBERS = [_TEN_ROUNDS, _THREE_ROUNDS, _averaging(1, 5, 1, 10)]
CANDIDATES: dict[str, list[list[str]]] = {
    "class_moments": _each("features.components", 5, 10, 20),
    "class_statistics": [
        *_each("strategy.components", "null", 10, 20),
        ["strategy.coordinates=pool", "strategy.components=14", "strategy.balance=1"],
    ],
    "clustering": [
        ["federation.num_rounds=10"],
        ["federation.num_rounds=10", "protection.clipping.norm=3"],
        ["federation.num_rounds=5"],
    ],
    "dpfl_bnn": [
        ["federation.num_rounds=2"],
        ["federation.num_rounds=2", "strategy.beta=0.1"],
        ["federation.num_rounds=1"],
    ],
    "dpsgd_fedavg": _each("features.components", "null", 10, 5),
    "fedadam": [
        [*_TEN_ROUNDS, "server_step.learning_rate=0.1"],
        [*_TEN_ROUNDS, "server_step.learning_rate=0.3"],
        [*_THREE_ROUNDS, "server_step.learning_rate=0.3"],
    ],
    "fedper": [_TEN_ROUNDS, _SLOW_ROUNDS, [*_SLOW_ROUNDS, "strategy.local.epochs=5"]],
    "gradient_rounds": [
        ["federation.num_rounds=30"],
        ["federation.num_rounds=30", "strategy.length=60"],
        ["federation.num_rounds=10", "features.components=10", "strategy.length=30"],
    ],
    "kd_dpfl": [
        ["federation.num_rounds=2"],
        ["federation.num_rounds=2", "features.components=5"],
        ["federation.num_rounds=1", "features.components=10"],
    ],
    "nbafl": [
        ["strategy.clip=3"],
        ["strategy.clip=1", "features.components=10", "strategy.local.learning_rate=3"],
        ["strategy.clip=1", "features.components=5", "strategy.local.learning_rate=3"],
    ],
    "privatekt": [
        *_each("strategy.K", 1, 2),
        *(["strategy.K=2", *words] for words in of_frontier("disjoint", LIKE_DIGITS).values()),
    ],
    "robust": [_TEN_ROUNDS, _THREE_ROUNDS, [*_THREE_ROUNDS, "aggregation=trimmed_mean"]],
    "scaffold": [[*_TEN_ROUNDS, f"strategy.control_scale={scale}"] for scale in (1, 6, 20)],
    "votes": [["strategy.K=80"], *of_frontier("votes", LIKE_DIGITS).values()],
}
