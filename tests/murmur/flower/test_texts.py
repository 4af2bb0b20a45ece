"""What is refused, and in which words: strategies, apps, servers, metrics, arrays."""

import logging
import sys

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp as PlainApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common import log
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from murmur.flower import ClientApp, private
from murmur.flower.forecast import forecast
from murmur.flower.privacy_settings import PrivacySettings, named_ranges
from murmur.flower.private_grid import NotReleasedError
from murmur.privacy.events import MAX_VECTOR_ENTRIES
from murmur.round.task import REFUSED, RunError
from tests.murmur.flower.nodes import MODEL, Nodes, app_of, changed, record

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
MEAN_ONLY = [
    flower.FedAvg,
    flower.FedAvgM,
    lambda: flower.FedProx(proximal_mu=0.1),
    flower.FedAdam,
    flower.FedYogi,
    flower.FedAdagrad,
]
MORE_THAN_A_MEAN = [
    flower.FedMedian,
    flower.FedTrimmedAvg,
    flower.Krum,
    flower.MultiKrum,
    lambda: flower.Bulyan(num_malicious_nodes=1),  # with none it is the mean of all
    lambda: flower.QFedAvg(client_learning_rate=0.1),
    flower.FedXgbBagging,
    flower.FedXgbCyclic,
    lambda: flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 6),
    lambda: flower.DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 6),
    lambda: flower.DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 1.0, 100),
    lambda: flower.DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 1.0, 100),
]


def started(grid, strategy, rounds=1, **terms):
    own = private(strategy, **{**BUDGET, **terms})
    return own.start(grid, record(MODEL), num_rounds=rounds, timeout=0.5)


@pytest.mark.parametrize("make", MEAN_ONLY)
def test_strategies_that_average_are_taken(make):
    started(Nodes(app_of()), make())


@pytest.mark.parametrize("make", MORE_THAN_A_MEAN)
def test_strategies_that_do_more_are_refused_before_anybody_is_asked(make):
    strategy = make()
    grid = Nodes(app_of())
    with pytest.raises(RunError) as refused:
        started(grid, strategy)
    assert str(refused.value) == (
        f"{type(strategy).__name__} does more with its clients' replies than average them (or adds "
        "noise of its own); under secure sums the server sees their mean only. Use FedAvg, "
        "FedAvgM, FedProx, FedAdam, FedYogi or FedAdagrad"
    )
    assert grid.asked == []


class _Named(FedAvg):
    """Changes how clients are sampled and its own summary, and leaves the mean as it is."""

    def summary(self):
        self.told = True


class _Greatest(FedAvg):
    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        return replies[-1].content["arrays"], None


def test_own_subclasses_may_not_aggregate_by_a_method_of_their_own():
    strategy = _Named()
    started(Nodes(app_of()), strategy)
    assert strategy.told
    replaced = FedAvg()
    replaced.aggregate_train = _Greatest().aggregate_train
    grid = Nodes(app_of())
    for own in (_Greatest(), replaced):
        with pytest.raises(RunError, match="has an aggregate_train of its own, which may do more"):
            started(grid, own)
    assert grid.asked == []


def test_an_app_without_murmur_is_asked_for_nothing():
    asked = []
    grid = Nodes(app_of(lambda place: asked.append(place), make=PlainApp), 6)
    with pytest.raises(RunError) as refused:
        started(grid, FedAvg())
    assert str(refused.value) == (
        "the clients' app is not protected, so nothing was asked of it (6 nodes); in "
        "client_app.py, in place of Flower's: from murmur.flower import ClientApp"
    )
    assert asked == []
    assert set(grid.asked) == {"query.murmur"}


def test_one_node_without_murmur_ends_nobody_elses_run():
    plain = app_of(make=PlainApp)

    class OneIsPlain(Nodes):
        def _arrive(self, message, context):
            if context.node_config["partition-id"] == 2:
                return plain(message, context)
            return super()._arrive(message, context)

    result = started(OneIsPlain(app_of(), 6), FedAvg(), rounds=2)
    assert result.arrays is not None


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "train.other"])
def test_a_server_without_murmur_is_answered_with_one_sentence(kind):
    grid = Nodes(app_of(lambda place: pytest.fail("trained")))
    content = RecordDict({"arrays": record(MODEL)})
    message = Message(content, 101, kind)
    (reply,) = grid.send_and_receive([message])
    assert reply.error.reason == (
        f"this client answers through Murmur only and was asked for `{kind}` without it; wrap the "
        "server's strategy: strategy = private(...)"
    )


def test_more_rounds_than_the_noise_was_made_for():
    class Goes(FedAvg):
        def start(self, grid, initial_arrays, num_rounds=3, timeout=1.0, *others):  # type: ignore
            return super().start(grid, initial_arrays, num_rounds + 1, timeout, *others)

    with pytest.raises(RunError) as refused:
        started(Nodes(app_of()), Goes(), rounds=2)
    assert str(refused.value) == (
        "round 3: the noise was made for 2 rounds; start again with num_rounds=3 or more"
    )


def test_a_metric_that_no_client_released():
    def means(contents, key):
        losses = [content["metrics"]["train_loss"] for content in contents]
        return MetricRecord({"train_loss": sum(losses) / len(losses)})

    grid = Nodes(app_of(metrics={"train_loss": 0.5}))
    with pytest.raises(NotReleasedError) as refused:
        started(grid, FedAvg(train_metrics_aggr_fn=means))
    assert str(refused.value) == (
        "train_loss: was not released by the clients; name it with its range: "
        "metrics={'train_loss': (0, 1)}"
    )
    assert grid.asked == []
    started(grid, FedAvg(train_metrics_aggr_fn=means), metrics={"train_loss": (0, 1)})


def _caught(metrics):
    try:
        return metrics["loss"]
    except Exception:
        return 0.0


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
@pytest.mark.parametrize(
    "look",
    [
        lambda metrics: metrics.get("loss", 0.0),
        lambda metrics: 1.0 if "loss" in metrics else 0.0,
        lambda metrics: metrics.pop("loss", 0.0),
        _caught,
    ],
)
def test_a_default_takes_no_unreleased_metrics_place(purpose, look):
    def means(contents, key):
        return MetricRecord({"loss": sum(look(each["metrics"]) for each in contents)})

    grid = Nodes(app_of())
    strategy = FedAvg(**{f"{purpose}_metrics_aggr_fn": means})
    argument = {"train": "metrics", "evaluate": "evaluate"}[purpose]
    with pytest.raises(NotReleasedError, match=f"loss: was not released.*{argument}={{'loss'"):
        started(grid, strategy, evaluate={"accuracy": (0, 1)})
    assert grid.asked == []


def test_attributes_that_are_set_after_wrapping_reach_the_strategy():
    strategy = FedAvg()
    own = private(strategy, **BUDGET)
    own.fraction_train = 0.5
    own.min_train_nodes = 3
    assert (strategy.fraction_train, own.fraction_train) == (0.5, 0.5)
    grid = Nodes(app_of())
    own.start(grid, record(MODEL), num_rounds=1, timeout=0.5)
    assert grid.asked.count("train") == 4
    with pytest.raises(AttributeError, match=r"start: is private\(\.\.\.\)'s own"):
        own.start = print


def test_a_strategy_around_private_is_refused_before_anybody_is_asked():
    grid = Nodes(app_of())
    own = private(FedAvg(), **BUDGET)
    outer = flower.DifferentialPrivacyServerSideFixedClipping(own, 1.0, 1.0, 6)
    with pytest.raises(RunError, match=r"something around it does; put private\(...\) outermost"):
        outer.start(grid, record(MODEL), num_rounds=1, timeout=0.5)
    assert grid.asked == []


def _with_mod(function_only):
    mod = LocalDpMod(1.0, 1.0, 1.0, 1e-5)
    if not function_only:
        return lambda: ClientApp(mods=[mod])

    class OfTheFunction(ClientApp):
        def train(self, action="default", *, mods=None):
            return super().train(action, mods=[mod])

    return OfTheFunction


@pytest.mark.parametrize("source", ["opacus", "mod", "mod of train", None])
def test_an_apps_own_noise_is_said_to_count_for_nothing(monkeypatch, tmp_path, caplog, source):
    monkeypatch.delitem(sys.modules, "opacus", raising=False)
    if source == "opacus":
        monkeypatch.setitem(sys.modules, "opacus", sys)
    make = _with_mod(source == "mod of train") if source in ("mod", "mod of train") else ClientApp
    started(Nodes(app_of(make=make)), FedAvg(), rounds=2)
    said = int(source is not None)
    assert caplog.text.count("this noise is not counted") == said
    (statement,) = tmp_path.glob("murmur-results/*/privacy.txt")
    assert statement.read_text().count("this noise is not counted") == said


def test_noise_that_a_training_loads_is_said_on_the_clients_log(monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "opacus", raising=False)

    def loads(place):
        monkeypatch.setitem(sys.modules, "opacus", sys)
        return changed(place)

    started(Nodes(app_of(loads)), FedAvg())
    assert "this noise is not counted" in caplog.text


def test_a_reply_with_other_arrays_is_told_in_a_trial(caplog):
    def other(place):
        return lambda arrays: {**changed(place)(arrays), "extra": MODEL["weights"]}

    started(Nodes(app_of(other)), FedAvg())
    assert (
        "the app's reply has other arrays than it was sent (extra): a mean needs the same names "
        "and shapes from every client"
    ) in caplog.text


def test_noise_is_foretold_with_what_would_lessen_it(caplog):
    grid = Nodes(app_of(), spoil=lambda message, node: None)
    started(grid, FedAvg(), epsilon=0.5)
    assert "times the longest possible mean update (8 clients a round, 20 numbers" in caplog.text
    assert "numbers to train (frozen=[...])" in caplog.text


def test_noise_is_foretold_before_anybody_is_asked(caplog):
    seen = []

    def look(message, node):
        seen.append("longest possible mean update" in caplog.text)
        return message

    with caplog.at_level("INFO"):
        started(Nodes(app_of(), spoil=look), FedAvg())
    assert seen and all(seen)


@pytest.mark.parametrize(("size", "clients"), [(7850, 10), (100_000, 50)])
def test_what_is_advised_against_noise_suffices(size, clients):
    names = {"train": named_ranges(None), "evaluate": ()}
    terms = PrivacySettings(8.0, 1e-5, 1.0, names, (), False, rounds=3)

    def said(size, clients):
        return forecast(terms.ask("train", 1, terms.minimum(clients)), size, clients)[1]

    line = said(size, clients)
    words = line.split()
    needed = int(words[words.index("about") + 1])
    numbers = int(words[words.index("or") + 1])
    assert "about" not in said(size, needed)
    assert "about" not in said(numbers, clients)
    assert "about" in said(2 * numbers, clients)


@pytest.mark.parametrize(
    ("terms", "match"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"clip": float("nan")}, "clip"),
        ({"clip": 2e-323}, "clip"),  # norms are whole numbers of the least float: 4² + 2² > 4²
        ({"metrics": {"loss": (1, 0)}}, "finite range"),
        ({"evaluate": {"loss": (0, float("inf"))}}, "finite range"),
        ({"evaluate": {"loss": (-1.7e308, 1.7e308)}}, "finite range"),  # which overflows
    ],
)
def test_settings_out_of_range_are_refused_at_once(terms, match):
    with pytest.raises(ValueError, match=match):
        private(FedAvg(), **{**BUDGET, **terms})


def test_frozen_names_an_array_of_the_model():
    with pytest.raises(ValueError, match="frozen='another'"):
        started(Nodes(app_of()), FedAvg(), frozen=["another"])


def test_two_nodes_are_no_sum():
    with pytest.raises(RunError, match="2 nodes: a sum needs at least 3"):
        started(Nodes(app_of(), 2), FedAvg())


def test_a_fraction_of_two_nodes_is_a_sentence_without_a_traceback(caplog):
    with pytest.raises(RunError) as refused:
        started(Nodes(app_of(), 10), FedAvg(fraction_train=0.2))
    sentence = (
        "2 nodes: a sum needs at least 3, of which one may side with the server; sample more "
        "(min_train_nodes=3), or start more"
    )
    assert str(refused.value) == sentence
    caplog.clear()
    log(logging.ERROR, "%s raised an exception", "Simulation", exc_info=refused.value)  # as Flower
    (logged,) = caplog.records
    assert logged.getMessage() == f"Simulation raised an exception: {sentence}"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("variable", [True, False])
def test_a_folder_that_is_named_by_nothing_makes_no_trial_of_a_device(monkeypatch, variable):
    """A variable of the owner's that is not set must not let everything out."""
    grid = Nodes(app_of(lambda place: pytest.fail("trained")))
    monkeypatch.setenv("MURMUR_DEVICE", "")
    for context in grid._contexts.values():
        if not variable:
            context.node_config["murmur"] = ""
    started(grid, FedAvg())
    assert {reply.error.reason for reply in grid.replies} == {REFUSED}


def test_a_model_that_is_longer_than_noise_is_proven_for_is_refused_before_anybody_is_asked():
    ask = private(FedAvg(), epsilon=8.0, delta=1e-5, clip=1.0)._privacy_settings.ask("train", 1, 3)
    assert ask.codec(MAX_VECTOR_ENTRIES).size == MAX_VECTOR_ENTRIES
    with pytest.raises(ValueError, match=r"110,000,000 numbers of a model: at most 67,108,864"):
        ask.codec(110_000_000)
