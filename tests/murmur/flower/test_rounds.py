"""Whole rounds in process: exact means, what stays, silence from each phase on, charges."""

import json
import os

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
)
from numpy.testing import assert_allclose

from murmur.flower import private
from murmur.flower.client import protect
from murmur.format import unframed
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.guarantee import Guarantee
from murmur.privacy.ledger import Ledger
from murmur.privacy.statement import Statement
from murmur.round.task import RECORD, RunError
from murmur.secure_sum.terms import Stage
from tests.murmur.flower.nodes import MODEL, Nodes, app_of, changed, record, without_noise

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
PHASES = [phase.value for phase in Stage]


def started(grid, strategy=None, rounds=1, model=None, timeout=0.5, **terms):
    own = private(strategy or FedAvg(fraction_evaluate=1.0), **{**BUDGET, **terms})
    return own.start(grid, record(model or MODEL), num_rounds=rounds, timeout=timeout)


def arrays(result):
    return {name: array.numpy() for name, array in result.arrays.items()}


def updates(count, model=MODEL, size=0.01, frozen=()):
    """Each client's change, (count, numbers), in float64."""
    names = [n for n, a in model.items() if a.dtype.kind == "f" and n not in frozen]
    rows = []
    for place in range(count):
        new = changed(place, size)(model)
        parts = [new[n].astype(np.float64) - model[n].astype(np.float64) for n in names]
        rows.append(np.concatenate([part.reshape(-1) for part in parts]))
    return np.stack(rows)


def moved(result, model=MODEL, frozen=()):
    names = [n for n, a in model.items() if a.dtype.kind == "f" and n not in frozen]
    new = arrays(result)
    parts = [new[n].astype(np.float64) - model[n].astype(np.float64) for n in names]
    return np.concatenate([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_a_model_is_its_base_plus_the_mean_of_clipped_changes(monkeypatch, clip):
    without_noise(monkeypatch)
    wide = {name: a.astype(np.float64) for name, a in MODEL.items() if a.dtype.kind == "f"}
    result = started(Nodes(app_of()), model=wide, clip=clip)
    rows = updates(8, wide)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    expected = (rows * np.minimum(1, clip / norms)).mean(axis=0)
    assert_allclose(moved(result, wide), expected, rtol=0, atol=clip * 2.0**-20)


def test_without_clipping_it_is_fedavg_with_equal_weights(monkeypatch):
    without_noise(monkeypatch)
    alike = app_of(metrics={"num-examples": 1})
    plain = app_of(make=ClientApp, metrics={"num-examples": 1})
    one = started(Nodes(alike), clip=100.0)
    # Flower adds up float16 in float16, in the order in which replies come: in float32 instead.
    wide = {**MODEL, "half": MODEL["half"].astype(np.float32)}
    other = FedAvg().start(Nodes(plain), record(wide), num_rounds=1, timeout=60)
    for name, values in arrays(other).items():
        if MODEL[name].dtype.kind == "f":
            ulp = 2.0**-11 if name == "half" else 0.0  # float16 at 0.5 rounds by so much
            assert_allclose(arrays(one)[name], values, atol=2e-4 + ulp)


def test_integers_truth_values_and_what_is_frozen_are_the_bases_bytes():
    result = started(Nodes(app_of(frozen=["encoder"])), FedAdam(), rounds=2, frozen=["encoder"])
    for name in ("count", "seen", "encoder"):
        assert result.arrays[name].data == record(MODEL)[name].data
    assert {n: a.dtype for n, a in arrays(result).items()} == {n: a.dtype for n, a in MODEL.items()}


@pytest.mark.parametrize(
    "make", [FedAvg, FedAvgM, lambda: FedProx(proximal_mu=0.1), FedAdam, FedYogi, FedAdagrad]
)
def test_strategies_that_average_give_their_plain_model(monkeypatch, make):
    without_noise(monkeypatch)
    floats = {name: a for name, a in MODEL.items() if a.dtype == np.float32}
    alike = {"num-examples": 1}
    one = started(Nodes(app_of(metrics=alike)), make(), rounds=2, model=floats, clip=10.0)
    grid = Nodes(app_of(make=ClientApp, metrics=alike))
    other = make().start(grid, record(floats), num_rounds=2, timeout=60)
    assert_allclose(arrays(one)["weights"], arrays(other)["weights"], rtol=1e-3, atol=1e-4)


def test_running_variances_stay_at_0_or_above():
    model = {"bn.running_var": np.zeros(50, np.float32)}
    result = started(Nodes(app_of()), model=model)
    assert arrays(result)["bn.running_var"].min() == 0


@pytest.mark.parametrize("phase", PHASES)
def test_one_of_8_silent_from_a_phase_on_costs_its_own_part_only(monkeypatch, phase):
    without_noise(monkeypatch)
    wide = {name: a.astype(np.float64) for name, a in MODEL.items() if a.dtype.kind == "f"}
    later = PHASES[PHASES.index(phase) :]

    def silent(message, node):
        about = message.content.config_records.get(RECORD)
        if node == 3 and about is not None and about["phase"] in later:
            return None
        return message

    result = started(Nodes(app_of(), spoil=silent), model=wide)
    rows = updates(8, wide)
    if phase in ("advertise", "share", "check", "mask"):
        rows = np.delete(rows, 3, axis=0)
    assert_allclose(moved(result, wide), rows.mean(axis=0), rtol=0, atol=2.0**-20)


def test_a_lost_round_leaves_the_model_costs_once_and_the_next_counts(tmp_path, caplog):
    first = []

    def silent(message, node):
        about = message.content.config_records.get(RECORD)
        if about is None:
            return message
        if about["round"] == 1 and about["phase"] == "mask" and node > 3:
            return None
        first.append(about["round"])
        return message

    models = []
    strategy = FedAvg()
    grid = Nodes(app_of(), 10, devices=tmp_path / "devices", spoil=silent)
    own = private(strategy, **BUDGET)
    own.start(
        grid,
        record(MODEL),
        num_rounds=2,
        timeout=0.5,
        evaluate_fn=lambda number, model: models.append(model),
    )
    assert "round 1 was lost: 4 of 10 clients are left, a sum needs 7" in caplog.text
    assert models[1]["weights"].data == models[0]["weights"].data
    assert models[2]["weights"].data != models[1]["weights"].data
    with Ledger(tmp_path / "devices" / "0" / "ledger.sqlite", create=False) as ledger:
        entries = [entry.round for entry in ledger.entries() if entry.kind == "charge"]
        assert entries == [1, 2]
    with Ledger(tmp_path / "devices" / "9" / "ledger.sqlite", create=False) as ledger:
        assert [entry.round for entry in ledger.entries() if entry.kind == "charge"] == [2]


def test_a_later_round_of_two_nodes_is_lost_and_the_next_counts(caplog):
    class Away(FedAvg):
        """One of three nodes is away in round 2."""

        def configure_train(self, server_round, *others):
            asked = list(super().configure_train(server_round, *others))
            return asked[: 2 if server_round == 2 else 3]

    with caplog.at_level("INFO"):
        started(Nodes(app_of(), 3), Away(), rounds=3)
    assert "round 2 was lost: 2 nodes, a sum needs at least 3" in caplog.text
    assert caplog.text.count("Received 3 results and 0 failures") == 2


@pytest.mark.parametrize(("count", "lost"), [(4, 1), (5, 1), (3, 0)])
def test_how_many_of_a_few_clients_may_be_lost(count, lost, caplog):
    for silent in range(lost + 2):

        def spoil(message, node, silent=silent):
            about = message.content.config_records.get(RECORD)
            gone = about is not None and about["phase"] == "mask" and node < silent
            return None if gone else message

        caplog.clear()
        started(Nodes(app_of(), count, spoil=spoil))
        assert ("was lost" in caplog.text) == (silent > lost)


def test_the_same_message_gets_the_same_bytes_and_trains_once(tmp_path):
    calls = []

    def counted(place):
        calls.append(place)
        return changed(place)

    kept = []

    def keep(message, node):
        kept.append((message, node))
        return message

    grid = Nodes(app_of(counted), devices=tmp_path, spoil=keep)
    started(grid)
    message, node = next((m, n) for m, n in kept if m.metadata.message_type == "train" and n == 2)
    contexts = list(grid._contexts.values())
    again = [grid.app(message, contexts[node]) for _ in range(2)]
    first = next(
        r
        for r in grid.replies
        if r.metadata.message_type == "train" and r.metadata.src_node_id == contexts[node].node_id
    )
    bytes_of = [r.content["contribution"]["masked"].data for r in (first, *again)]
    assert bytes_of[0] == bytes_of[1] == bytes_of[2]
    assert calls.count(2) == 1


@pytest.mark.parametrize("phase", PHASES)
def test_two_runs_at_once_on_the_same_devices_both_count(tmp_path, phase, monkeypatch):
    """The second run begins and ends while the first one is in ``phase``."""
    without_noise(monkeypatch)
    devices = tmp_path / "devices"
    wide = {name: a.astype(np.float64) for name, a in MODEL.items() if a.dtype.kind == "f"}
    results = []

    def other_run(message, node):
        about = message.content.config_records.get(RECORD)
        if not results and about is not None and about["phase"] == phase and node == 3:
            results.append(started(Nodes(app_of(), devices=devices), model=wide))
        return message

    results.append(started(Nodes(app_of(), devices=devices, spoil=other_run), model=wide))
    for result in results:
        assert_allclose(moved(result, wide), updates(8, wide).mean(axis=0), rtol=0, atol=2.0**-20)
    with Ledger(devices / "3" / "ledger.sqlite", create=False) as ledger:
        assert ledger.releases() == 2


def state_in(file):
    """The state of the first client in a file of states; empty where its sum is over."""
    _, _, entry, *_ = unframed(file.read_bytes())
    return unframed(entry[8:])[-1]


def test_what_a_sum_has_left_is_forgotten_after_a_day(tmp_path):
    def silent(message, node):
        about = message.content.config_records.get(RECORD)
        return None if about is not None and about["phase"] == "confirm" else message

    grids = [Nodes(app_of(), devices=tmp_path, spoil=silent) for _ in range(2)]
    for grid in grids:
        started(grid)
    states = sorted((tmp_path / "3").glob("clients/*/secure_sum/*.states"))
    assert len(states) == 2 and all(state_in(file) for file in states)
    yesterday = states[0].stat().st_mtime - 25 * 3600
    os.utime(states[0], (yesterday, yesterday))
    started(Nodes(app_of(), devices=tmp_path))
    assert not states[0].exists() and states[1].exists()


def test_what_trials_have_left_is_removed_a_day_after_their_last_message(short_temporary):
    root = short_temporary / f"murmur-trials-{os.getuid()}"
    old, new = (Nodes(app_of(), 3) for _ in range(2))
    for grid in (old, new):
        started(grid)
    runs = sorted(root.iterdir(), key=lambda run: int(run.name.removeprefix("run-")))
    yesterday = runs[0].stat().st_mtime - 25 * 3600
    for folder in (runs[0], *runs[0].iterdir()):
        os.utime(folder, (yesterday, yesterday))
    os.utime(runs[1], (yesterday, yesterday))  # its nodes' folders say that it goes on
    started(new)  # no new run: nothing is looked at
    assert runs[0].exists()
    started(Nodes(app_of(), 3))
    assert not runs[0].exists() and runs[1].exists()
    assert len(list(root.iterdir())) == 2


def test_everything_together_costs_at_most_what_was_asked(tmp_path):
    terms = {"metrics": {"train_loss": (0, 10)}, "evaluate": {"accuracy": (0, 1)}}
    result = started(
        Nodes(app_of(metrics={"train_loss": 2.5}), devices=tmp_path / "devices"), rounds=3, **terms
    )
    assert set(result.train_metrics_clientapp) == {1, 2, 3}
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    with Ledger(tmp_path / "devices" / "0" / "ledger.sqlite", create=False) as ledger:
        assert ledger.clients() == ["0"]
        spent = ledger.spent(0)
        assert ledger.releases() == 6
    found = epsilon(spent, 1e-5, Threat.SECURE_AGGREGATION, assumptions=None).epsilon
    assert 7.9 < found <= 8
    text = next((tmp_path / "murmur-results").glob("*/privacy.json"))
    statement = json.loads(text.read_text())
    stated = statement["guarantees"][0]["assumed_total"]
    assert stated == pytest.approx(found, rel=1e-9)


def test_a_node_that_registers_anew_is_stated_as_the_client_that_it_was(tmp_path):
    """Flower gives it another id, by which the server does not know it again."""
    grid = Nodes(app_of(), devices=tmp_path / "devices")

    def after(number, arrays):
        contexts = list(grid._contexts.values())
        grid._contexts.clear()
        for context in contexts:
            context.node_id += 1000
            grid._contexts[context.node_id] = context

    own = private(FedAvg(fraction_evaluate=0.0), **BUDGET)
    own.start(grid, record(MODEL), num_rounds=2, timeout=0.5, evaluate_fn=after)
    with Ledger(tmp_path / "devices" / "0" / "ledger.sqlite", create=False) as ledger:
        assert ledger.releases() == 2
        found = epsilon(ledger.spent(0), 1e-5, Threat.SECURE_AGGREGATION, assumptions=None).epsilon
    text = next((tmp_path / "murmur-results").glob("*/privacy.json"))
    stated = json.loads(text.read_text())["guarantees"][0]["assumed_total"]
    assert stated == pytest.approx(found, rel=1e-9)


def test_metrics_are_means_within_their_ranges(monkeypatch):
    without_noise(monkeypatch)
    result = started(
        Nodes(app_of(metrics={"train_loss": 2.5, "secret": 3.0})),
        metrics={"train_loss": (0, 10)},
        evaluate={"accuracy": (0, 1)},
    )
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(2.5, abs=1e-4)
    assert set(result.train_metrics_clientapp[1]) == {"train_loss"}
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.75, abs=1e-4)


def test_no_device_refuses_for_where_in_a_narrow_range_its_metric_is(tmp_path):
    """Rounding made 1.2 of the upper end, and so a refusal told whether an accuracy is above 0.5.

    The range is the server's.
    """
    grid = Nodes(app_of(), devices=tmp_path)  # whose accuracy is 0.75
    started(grid, evaluate={"accuracy": (0.49999999999999983, 0.5000000000000001)})
    records = [each for r in grid.replies for each in r.content.config_records.values()]
    assert not any(record.get("refused") for record in records)


def test_a_statement_is_there_before_anybody_pays(tmp_path):
    seen = []

    def look(message, node):
        about = message.content.config_records.get(RECORD)
        if about is not None and about["phase"] == "mask":
            seen.append(len(list((tmp_path / "murmur-results").glob("*/privacy.txt"))))
        return message

    started(Nodes(app_of(), spoil=look))
    assert seen == [1] * 8
    text = next((tmp_path / "murmur-results").glob("*/privacy.txt")).read_text()
    assert "assumes that the server invents no clients" in text
    assert "assumes that the app's bundle is honest" in text
    assert "no owner keeps a ledger" in text


def failing_from(monkeypatch, release):
    """The accountant, from the statement before that release on."""
    derived = Guarantee.of
    exposures = []

    def of(exposure, *rest):
        exposures.append(exposure)
        if len(exposures) > 2 * (release - 1):  # two adversaries each
            raise ArithmeticError("no answer")
        return derived(exposure, *rest)

    monkeypatch.setattr(Guarantee, "of", of)


def test_an_accountant_that_fails_later_leaves_the_model_and_what_was_charged(
    tmp_path, monkeypatch, caplog
):
    failing_from(monkeypatch, 2)
    result = started(Nodes(app_of()), rounds=3)
    assert result.arrays["weights"].data != record(MODEL)["weights"].data
    assert "Traceback" in caplog.text and "ArithmeticError: no answer" in caplog.text
    folder = next((tmp_path / "murmur-results").iterdir())
    said = Statement.from_dict(json.loads((folder / "privacy.json").read_text()))
    assert said.doubts == ("no ε is derived: the accountant failed (ArithmeticError: no answer)",)
    by_sums, alone = said.charged
    assert "in a sum over" in by_sums["release"] and "in a sum" not in alone["release"]
    assert alone["clients"] == 8 and alone["event"]["events"][0]["count"] == 3
    assert "Charged to 8 clients" in (folder / "privacy.txt").read_text()


def test_an_accountant_that_fails_before_the_first_release_ends_the_run(tmp_path, monkeypatch):
    failing_from(monkeypatch, 1)
    grid = Nodes(app_of(lambda place: pytest.fail("trained")))
    with pytest.raises(ArithmeticError):
        started(grid)
    assert not list((tmp_path / "murmur-results").glob("*/privacy.txt"))


def test_what_a_policy_refuses_is_not_trained(tmp_path, caplog):
    grid = Nodes(app_of(lambda place: pytest.fail("trained")), devices=tmp_path)
    for folder in tmp_path.iterdir():
        text = (folder / "policy.yaml").read_text()
        text = text.replace("epsilon_per_release: 100", "epsilon_per_release: 0.43219")
        (folder / "policy.yaml").write_text(text)
    started(grid)
    assert "round 1 was lost" in caplog.text
    assert "0.43219" not in caplog.text  # the owner's limit is the owner's


@pytest.mark.parametrize(
    ("allowed", "instead"), [("2099-01-01", "2001-01-01"), ("[flower]", "[privatekt]")]
)
def test_a_device_joins_no_sum_of_which_its_policy_allows_nothing(tmp_path, allowed, instead):
    grid = Nodes(app_of(lambda place: pytest.fail("trained")), devices=tmp_path)
    for folder in tmp_path.iterdir():
        text = (folder / "policy.yaml").read_text()
        (folder / "policy.yaml").write_text(text.replace(allowed, instead))
    started(grid)
    assert "train" not in grid.asked
    assert not list(tmp_path.glob("*/identity.key")) and not list(tmp_path.glob("*/clients"))


@pytest.mark.parametrize("missing", ["no_invented_clients", "honest_app"])
def test_an_assumption_that_an_owner_does_not_make_is_refused(tmp_path, missing, caplog):
    grid = Nodes(app_of(lambda place: pytest.fail("trained")), devices=tmp_path)
    for folder in tmp_path.iterdir():
        text = (folder / "policy.yaml").read_text()
        (folder / "policy.yaml").write_text(text.replace(missing, "another"))
    started(grid)
    assert "round 1 was lost" in caplog.text


def test_pinned_peers_need_no_assumption_that_nobody_is_invented(tmp_path):
    from murmur.secure_sum.identity import identity_in, public_identity

    grid = Nodes(app_of(), devices=tmp_path)
    folders = sorted(tmp_path.iterdir())
    keys = [public_identity(identity_in(folder / "identity.key")).hex() for folder in folders]
    for folder in folders:
        (folder / "peers").write_text("".join(f"{key} a hospital\n" for key in keys))
        text = (folder / "policy.yaml").read_text()
        (folder / "policy.yaml").write_text(text.replace("no_invented_clients, ", ""))
    result = started(grid)
    assert result.arrays["weights"].data != record(MODEL)["weights"].data
    text = next((tmp_path / "murmur-results").glob("*/privacy.txt")).read_text()
    assert "invents no clients" not in text and "if the app's bundle is honest" in text


@pytest.mark.parametrize("unguarded", [None, 2])
def test_a_statement_assumes_an_honest_bundle_unless_every_node_is_guarded(tmp_path, unguarded):
    plain = app_of(make=ClientApp)

    def app(message, context):
        guarded = context.node_config["partition-id"] != unguarded
        return protect(
            message, context, lambda asked, about, _: plain(asked, about), guarded=guarded
        )

    started(Nodes(app, devices=tmp_path / "devices"))
    text = next((tmp_path / "murmur-results").glob("*/privacy.txt")).read_text()
    text = " ".join(text.split())
    assert text.count("if the app's bundle is honest") == (0 if unguarded is None else 2)
    assert text.count("it brings the code that protects (1 of 8 nodes)") == (unguarded is not None)
    assert text.count("if the server invents no clients") == 2


def test_one_start_for_one_private():
    own = private(FedAvg(), **BUDGET)
    own.start(Nodes(app_of()), record(MODEL), num_rounds=1, timeout=0.5)
    with pytest.raises(RunError, match=r"one private\(\.\.\.\) is one run"):
        own.start(Nodes(app_of()), record(MODEL), num_rounds=1)


def test_more_than_100_nodes_are_simulated_and_said_so(tmp_path):
    started(Nodes(app_of(), 110), simulated=True)
    text = next((tmp_path / "murmur-results").glob("*/privacy.txt")).read_text()
    assert "simulated" in text


def test_a_device_refuses_a_simulation(tmp_path, caplog):
    grid = Nodes(app_of(lambda place: pytest.fail("trained")), devices=tmp_path)
    started(grid, simulated=True)
    assert "round 1 was lost" in caplog.text
