"""``private``: the server's half, a strategy around a strategy.

Its ``start`` calls the strategy's own with a grid around Flower's (``private_grid``), whose replies
hold the mean of the clients' clipped, noised changes. So a strategy must do no more with its
replies than average them, which is checked before anybody is asked.

The noise is every client's own, a share of a discrete Gaussian. It protects against a server that
sees sums only. The assumptions are in the statement, ``privacy.txt`` in the folder of results
(``murmur-results``, or MURMUR_RESULTS in the environment), which is written before each round's
clients are asked.
"""

import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any, Literal, get_args

from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Result,
    Strategy,
)

from murmur.checks import require_positive, require_probability
from murmur.compat.flower_messages import limit_replies, pull_parts_soon
from murmur.flower.model_arrays import ModelArrays
from murmur.flower.privacy_settings import (
    MIN_SUM_NODES,
    PrivacySettings,
    Ranges,
    adaptive_clipping,
    named_ranges,
)
from murmur.flower.private_grid import PrivateGrid, ReleasedMetrics, weight_key
from murmur.privacy.roster import Roster
from murmur.privacy.run_header import ServerKey
from murmur.round.task import RunError
from murmur.secure_sum.terms import LYING, Server

# Flower's strategies whose ``aggregate_train`` depends on the mean of the replies alone.
AVERAGING = (FedAvg, FedAvgM, FedProx, FedAdam, FedYogi, FedAdagrad)
# Attributes of ``Private`` itself.
_OWN = ("_strategy", "_privacy_settings", "_server_key", "_started")
# Methods that ``start`` alone may call: whoever calls them otherwise has replaced it.
_OF_START = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


class _SentenceAlone(logging.Filter):
    """Leaves out the traceback where Flower logs what ended a run and its user can mend it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """True: every record is logged, that of a RunError by its sentence alone."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RunError):
            record.msg = f"{record.getMessage()}: {error}"
            record.args = None
            record.exc_info = None
        return True


_SENTENCE_ALONE = _SentenceAlone()


def private(
    strategy: Strategy,
    *,
    epsilon: float,
    delta: float,
    clip: float | Literal["adaptive"],
    metrics: Ranges | None = None,
    evaluate: Ranges | None = None,
    frozen: Sequence[str] = (),
    simulated: bool = False,
    server: Server = LYING,
    server_key: str | Path | None = None,
    roster: str | Path | None = None,
) -> "Private":
    """Puts ``strategy`` under client-level differential privacy, against a server that sees sums.

    Neighbours differ in all data of one client (replace-one). At least three nodes must take part
    in a round, of whom one may side with the server.

    Args:
        strategy: One of Flower's message strategies that averages its replies, or a subclass that
            leaves ``aggregate_train`` as it is.
        epsilon: Of all that the run ever asks of one client: training, metrics and evaluation
            together. Finite and above 0.
        delta: The same budget's, in (0, 1).
        clip: The L2 norm to which each client's change of the model is clipped, above 0; or
            "adaptive": it starts at 0.1 and follows the median length of changes, of which each
            client releases one more noised number.
        metrics: Metrics that clients release in training, each with its range:
            ``{"train_loss": (0, 10)}``. Nothing else of what a client returns is released.
        evaluate: The same in evaluation; without it no evaluation is asked for.
        frozen: Names of arrays that no client trains, which then take no noise.
        simulated: Whether the server may see what it sums, for simulations of more than 100 nodes.
            The statement says so, and devices refuse it.
        server: Against whom the sums hold: "lying", a server that may do anything, or "honest", one
            that follows the protocol. "honest" takes half the messages; the statement names this
            adversary, and devices take part only where their policies assume ``honest_server``.
        server_key: The file of the key (`murmur server-key FILE`) that signs what clients are
            asked; devices whose policies name keys refuse everything else. None: nothing is signed.
        roster: The file of the clients that owners have agreed on, which receipts are compared
            with; what is signed names it. None: there is none.

    Returns:
        A strategy to use in its place; its ``start`` is one run.

    Raises:
        ValueError: A value is outside its range, ``server_key`` holds no key, or ``roster`` no
            roster, or names one and nothing is signed.
        OSError: ``server_key`` or ``roster`` cannot be read.
    """
    if server not in get_args(Server):
        raise ValueError(f"server={server!r}: must be one of {', '.join(get_args(Server))}")
    require_positive("epsilon", epsilon)
    require_probability("delta", delta)
    adaptive = None
    if isinstance(clip, str):
        if clip != "adaptive":
            raise ValueError(f"clip={clip!r}: must be a number above 0, or 'adaptive'")
        adaptive = adaptive_clipping()
        clip = float(adaptive.norm)
    require_positive("clip", clip)
    agreed = None
    if roster is not None:
        if server_key is None:
            raise ValueError(
                f"roster={str(roster)!r}: needs server_key=FILE, which signs its digest"
            )
        agreed = Roster.load(roster).digest
    settings = PrivacySettings(
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        metrics={"train": named_ranges(metrics), "evaluate": named_ranges(evaluate)},
        frozen=tuple(frozen),
        simulated=simulated,
        adaptive=adaptive,
        server=server,
        roster=agreed,
    )
    key = None if server_key is None else ServerKey.load(server_key)
    return Private(strategy, settings, key)


class Private:
    """A strategy, protected; everything but ``start`` is the strategy's own.

    One object is one run, since its budget is meant for one. Attributes that are not its own are
    those of the strategy, so that an app may go on reading and setting them.
    """

    _strategy: Strategy
    _privacy_settings: PrivacySettings
    _server_key: ServerKey | None
    _started: bool

    def __init__(
        self, strategy: Strategy, settings: PrivacySettings, server_key: ServerKey | None = None
    ) -> None:
        self._strategy = strategy
        self._privacy_settings = settings
        self._server_key = server_key
        self._started = False

    def __getattr__(self, name: str) -> Any:
        if name in _OF_START:
            raise RunError(
                f"{name}: only private(...)'s own start calls it, and here something around it "
                "does; put private(...) outermost, its noise takes the place of a wrapper's"
            )
        return getattr(self._strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        elif hasattr(type(self), name):
            raise AttributeError(f"{name}: is private(...)'s own; set it on the strategy before")
        else:
            setattr(self._strategy, name, value)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Calls the strategy's own ``start``, over protected rounds.

        Takes what that takes, ``grid`` first. The app's ``evaluate_fn`` on the server and the final
        result get the model in the types with which it began, and with its fixed arrays as they
        were.

        Raises:
            RunError: The run cannot be protected: ``private`` was started before, the strategy may
                do more than average, clients' app is not Murmur's, a round's cohort is too small.
                Before anybody is asked where that can be known.
            ValueError: ``frozen`` has names that the model lacks, or leaves nothing to train.
        """
        if self._started:
            raise RunError(
                "one private(...) is one run, whose budget is spent in it; make another one"
            )
        asked = _arguments_of_start(self._strategy, grid, args, kwargs)
        model = ModelArrays(asked["initial_arrays"], self._privacy_settings.frozen)
        settings = replace(self._privacy_settings, rounds=asked["num_rounds"])
        require_averaging(self._strategy)
        require_released_metrics(self._strategy, settings)
        self._started = True
        logging.getLogger("flwr").addFilter(_SENTENCE_ALONE)
        limit_replies()
        pull_parts_soon()
        own_grid = next(iter(asked))  # the name of the first parameter
        private_grid = PrivateGrid(grid, self._strategy, model, settings, self._server_key)
        asked[own_grid] = private_grid
        evaluate = asked.get("evaluate_fn")
        if evaluate is not None:
            asked["evaluate_fn"] = lambda number, arrays: evaluate(number, model.restored(arrays))
        result = self._strategy.start(**asked)
        if result.arrays:
            result.arrays = model.restored(result.arrays)
        private_grid.sign_statement(result.arrays)
        private_grid.collect_receipts()
        return result


def _arguments_of_start(
    strategy: Strategy, grid: Grid, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of ``strategy.start`` by name, the grid first, with defaults.

    A ``start`` that hands on ``*args, **kwargs`` is taken to have Flower's parameters. RunError
    where the model cannot be found among them: the noise is made for it.
    """
    signature = inspect.signature(strategy.start)
    if not {"initial_arrays", "num_rounds"} <= signature.parameters.keys():
        signature = inspect.signature(MethodType(Strategy.start, strategy))
    try:
        given = signature.bind(grid, *args, **kwargs)
    except TypeError as error:
        raise RunError(f"{type(strategy).__name__}.start: {error}") from error
    given.apply_defaults()
    asked = dict(given.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            asked.update(asked.pop(name))
        elif parameter.kind is parameter.VAR_POSITIONAL and not asked[name]:
            del asked[name]
    if (
        not isinstance(asked["initial_arrays"], ArrayRecord)
        or next(iter(asked.values())) is not grid
    ):
        raise RunError(
            f"{type(strategy).__name__}.start: must take the grid first, and name initial_arrays "
            "and num_rounds, for which the noise is made"
        )
    return asked


def require_averaging(strategy: Strategy) -> None:
    """Raises RunError unless ``strategy`` averages its replies by one of Flower's own methods."""
    kind = type(strategy)
    owner = next((each for each in kind.__mro__ if "aggregate_train" in vars(each)), None)
    is_replaced = "aggregate_train" in vars(strategy)
    if owner in AVERAGING and not is_replaced:
        return
    names = [each.__name__ for each in AVERAGING]
    known = f"{', '.join(names[:-1])} or {names[-1]}"
    if kind.__module__.startswith("flwr.") and not is_replaced:
        raise RunError(
            f"{kind.__name__} does more with its clients' replies than average them (or adds noise "
            f"of its own); under secure sums the server sees their mean only. Use {known}"
        )
    raise RunError(
        f"{kind.__name__} has an aggregate_train of its own, which may do more with its clients' "
        "replies than average them; under secure sums the server sees their mean only. Leave it "
        f"as it is in {known}; evaluate_fn gets the model of each round"
    )


def require_released_metrics(strategy: Strategy, settings: PrivacySettings) -> None:
    """Raises NotReleasedError where a strategy's function of metrics looks for an unnamed one.

    It is called with the middles of the named ranges, before anybody is asked; that of evaluations
    only where clients evaluate. What it makes of the error does not matter.
    """
    key = weight_key(strategy)
    for purpose in ("train", "evaluate"):
        average = getattr(strategy, f"{purpose}_metrics_aggr_fn", None)
        named = settings.metrics[purpose]
        if average is None or (purpose == "evaluate" and not named):
            continue
        middles = {name: (low + high) / 2 for name, low, high in named}
        metrics = [ReleasedMetrics(purpose, key, middles) for _ in range(MIN_SUM_NODES)]
        try:
            average([RecordDict({"metrics": each}) for each in metrics], key)
        finally:
            for each in metrics:
                each.require_no_other()
