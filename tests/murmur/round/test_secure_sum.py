"""Secure sums in whole runs: the same results, nothing in the clear, dropouts, the statement."""

import itertools
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from clients.privatekt import PrivateKTClient
from fl_app.config.client_half import started_with
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.engines.inline import InlineGrid
from fl_app.run.validated import ValidatedRun
from murmur.learning.codec import BitCodec, LabelCodec, WeightCodec
from murmur.privacy.accounting import Threat
from murmur.privacy.events import NonPrivateEvent
from murmur.privacy.ledger import Ledger
from murmur.round import phase
from murmur.round.host import Host
from murmur.round.rounds import Rounds
from murmur.round.secure_party import SecureParties
from murmur.round.secure_summation import Exchange, modulus_bits
from murmur.round.task import RECORD
from murmur.secure_sum.terms import SecureSumError, Stage
from tests.fl_app.running import SMALL, run_inline

ON = "privacy.secure_aggregation=on"
# Four of six must stay.
LOOSE = [ON, "privacy.secure_sum.threshold=0.5"]


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    return run_inline(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def secure_run(tmp_path_factory):
    return run_inline(tmp_path_factory.mktemp("secure"), ON, workers=2, nodes=4)


def model(run):
    tensors = load_file(run.path / "model/model.safetensors")
    return {name: values.tobytes() for name, values in tensors.items()}


def accuracies(run):
    return [row.get("accuracy") for row in run.rows()]


def test_results_are_those_without_it_bit_for_bit(plain_run, secure_run):
    assert model(secure_run) == model(plain_run)
    assert accuracies(secure_run) == accuracies(plain_run)
    assert all(row["answered"] == 6 for row in secure_run.rows()[1:])


@pytest.mark.parametrize("strategy", ["fedavg", "local_only"])
def test_weights_and_signed_numbers_sum_to_the_same_bits_too(tmp_path, strategy):
    plain = run_inline(tmp_path / "plain", f"strategy={strategy}")
    secure = run_inline(tmp_path / "secure", f"strategy={strategy}", ON)
    assert model(secure) == model(plain)
    assert accuracies(secure) == accuracies(plain)


@pytest.mark.parametrize("other", ["kind", "run_config"])
def test_a_node_that_is_asked_by_another_type_or_was_started_with_other_words_sums_with_nobody(
    tmp_path, monkeypatch, other
):
    # Before, their masks cancelled, and the server had the sum.
    answer = Host.answer

    def answering(self, content, kind=""):
        masks = RECORD in content.config_records and "task" in content.config_records
        if not masks or 0 not in content.config_records["task"]["clients"]:
            return answer(self, content, kind)
        if other == "kind":
            return answer(self, content, "train.other")
        secure = self.secure
        self.secure = replace(secure, started=started_with(compose([*SMALL, ON, "seed=3"])))
        try:
            return answer(self, content, kind)
        finally:
            self.secure = secure

    monkeypatch.setattr(Host, "answer", answering)
    run = run_inline(tmp_path / "run", ON, "federation.num_rounds=1", nodes=6, workers=1)
    [row] = [row for row in run.rows() if row["round"]]
    assert not row["answered"]


def test_results_with_a_neighbour_graph_are_the_same_too(tmp_path, plain_run):
    ring = [ON, "privacy.secure_sum.neighbours=4", "privacy.secure_sum.threshold=0.6"]
    assert model(run_inline(tmp_path / "secure", *ring)) == model(plain_run)


def test_a_server_that_follows_the_protocol_gets_the_same_bits_without_check_and_confirm(
    tmp_path, monkeypatch, plain_run
):
    asked = set()
    ask = Exchange.ask

    def noting(self, phase, *rest):
        asked.add(phase)
        return ask(self, phase, *rest)

    monkeypatch.setattr(Exchange, "ask", noting)
    run = run_inline(tmp_path, ON, "privacy.secure_sum.server=honest")
    assert model(run) == model(plain_run)
    assert asked == {Stage.ADVERTISE, Stage.SHARE, Stage.REVEAL}  # and MASK, with the training
    text = " ".join((run.path / "privacy.txt").read_text().split())
    assert "Against a server that follows the protocol and sees only sums" in text


def test_server_receives_masked_contributions_and_nothing_else_of_the_data(tmp_path, monkeypatch):
    received = []
    arrays = []
    plainly = InlineGrid.send_and_receive

    def recording(self, messages, *, timeout=None):
        replies = list(plainly(self, messages, timeout=timeout))
        received.extend(reply.content for reply in replies)
        arrays.extend(
            (name, array.numpy())
            for reply in replies
            for record in reply.content.array_records.values()
            for name, array in record.items()
        )
        return replies

    monkeypatch.setattr(InlineGrid, "send_and_receive", recording)
    run_inline(tmp_path / "run", ON, "federation.num_rounds=1", nodes=6)
    assert [name for name, _ in arrays] == ["masked"] * 6
    # 3 labels of 10 classes and the weight, for 6 clients: 31 coordinates of 3 bits.
    assert {array.shape for _, array in arrays} == {(1, (31 * 3 + 7) // 8)}
    reports = [c.config_records["report"] for c in received if "report" in c.config_records]
    assert len(reports) == 6
    assert all(set(report) == {"clients", "refused", "reasons"} for report in reports)


def test_what_all_clients_of_a_node_are_sent_alike_travels_once(tmp_path, monkeypatch):
    asked = {}
    plainly = InlineGrid.send_and_receive

    def recording(self, messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            record = message.content.config_records.get("secure_sum")
            if record is not None:
                asked[record["phase"]] = record
        return plainly(self, messages, timeout=timeout)

    with monkeypatch.context() as patch:
        patch.setattr(InlineGrid, "send_and_receive", recording)
        together = run_inline(tmp_path / "one", ON, "federation.num_rounds=1", nodes=1)
    assert {phase: len(record["messages"]) for phase, record in asked.items()} == {
        **dict.fromkeys(("advertise", "mask", "confirm"), 1),
        **dict.fromkeys(("share", "check", "reveal"), 6),
    }
    assert all(len(record["which"]) == 6 for record in asked.values())
    # Bytes are counted as if each client were a node.
    apart = run_inline(tmp_path / "six", ON, "federation.num_rounds=1", nodes=6)
    sizes = [run.rows()[1]["bytes_down"] for run in (together, apart)]
    assert sizes[0] == pytest.approx(sizes[1], abs=60)  # terms are compressed with a run's name


def parts_of_a_node(monkeypatch, *words, folder, largest):
    """Who was asked to train together in each message of a round with replies of ``largest``."""
    asked = []
    plainly = InlineGrid.send_and_receive

    def recording(self, messages, *, timeout=None):
        messages = list(messages)
        sent = [m.content.config_records.get("task") for m in messages]
        asked.extend(list(task["clients"]) for task in sent if task is not None)
        return plainly(self, messages, timeout=timeout)

    with monkeypatch.context() as patch:
        patch.setattr(InlineGrid, "send_and_receive", recording)
        patch.setattr(phase, "MAX_REPLY_BYTES", largest)
        run = run_inline(folder, "federation.num_rounds=1", *words, nodes=2)
    return run, asked


def test_clients_of_one_node_answer_in_more_messages_where_their_releases_are_large(
    tmp_path, monkeypatch
):
    run = partial(parts_of_a_node, monkeypatch)
    together, asked = run(ON, folder=tmp_path / "together", largest=100)
    assert asked == [[0, 1, 2], [3, 4, 5]]
    for largest, parts in ((1, [[0], [1], [2], [3], [4], [5]]), (7, [[0, 1], [2], [3, 4], [5]])):
        apart, asked = run(ON, folder=tmp_path / f"{largest}", largest=largest)  # 3 labels each
        assert asked == parts
        assert model(apart) == model(together)
        sizes = [each.rows()[1][name] for each in (apart, together) for name in ("bytes_up",)]
        assert sizes[0] == sizes[1]
    # A node's sum is as large as one of its clients' releases.
    _, asked = run(folder=tmp_path / "plain", largest=1)
    assert asked == [[0, 1, 2], [3, 4, 5]]


# Interruptions ----------------------------------------------------------------------------------

MOMENTS = ["advertise", "share", "check", "mask", "confirm", "reveal", "checkpoint"]


def die_in_round_2(monkeypatch, moment):
    """The server's process ends after the clients have answered and before it knows of it."""
    calls, plainly = itertools.count(), InlineGrid.send_and_receive

    def dying(self, messages, *, timeout=None):
        replies = list(plainly(self, messages, timeout=timeout))
        # Flower asks once more in each round, for an evaluation that is switched off.
        if next(calls) == len(MOMENTS) + MOMENTS.index(moment):
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(InlineGrid, "send_and_receive", dying)


@pytest.mark.parametrize("largest", [1, phase.MAX_REPLY_BYTES])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_sum_is_gone_on_with_and_paid_for_once(
    tmp_path, secure_run, monkeypatch, moment, largest
):
    monkeypatch.setattr(phase, "MAX_REPLY_BYTES", largest)
    with monkeypatch.context() as patched:
        die_in_round_2(patched, moment)
        with pytest.raises(KeyboardInterrupt):
            run_inline(tmp_path / "cut", ON)
    cut = run_inline(tmp_path / "cut", ON)
    assert model(cut) == model(secure_run)
    kept = ("round", "accuracy", "epsilon_proven", "answered", "failed")
    rows, whole = ([[row[key] for key in kept] for row in run.rows()] for run in (cut, secure_run))
    assert rows == whole
    with Ledger(cut.path / "ledger.sqlite") as ledger:
        assert all(len(list(ledger.entries(client))) == 2 for client in range(6))


def test_an_interrupted_sum_goes_on_without_a_client_that_is_gone(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        die_in_round_2(patched, "share")
        with pytest.raises(KeyboardInterrupt):
            run_inline(tmp_path / "cut", *LOOSE)
    fall_silent(monkeypatch, {3: Stage.SHARE})
    cut = run_inline(tmp_path / "cut", *LOOSE)
    assert [row["answered"] for row in cut.rows()] == [0, 6, 5]
    assert list(cut.rows()[2]["failed"]) == ["3"]


# Dropouts ---------------------------------------------------------------------------------------


def fail_training(monkeypatch, *victims):
    train = PrivateKTClient.train

    def failing(self, task, data):
        if task.client in victims:
            raise RuntimeError("the battery is empty")
        return train(self, task, data)

    monkeypatch.setattr(PrivateKTClient, "train", failing)


def fall_silent(monkeypatch, drops):
    plainly = SecureParties._answer

    def answer(self, request, client, *memory):
        if drops.get(client) is request.phase:
            raise SecureSumError("gone")
        return plainly(self, request, client, *memory)

    monkeypatch.setattr(SecureParties, "_answer", answer)


def test_a_client_that_fails_in_training_is_left_out_of_the_sum_exactly(tmp_path, monkeypatch):
    fail_training(monkeypatch, 2)
    plain = run_inline(tmp_path / "plain")
    secure = run_inline(tmp_path / "secure", *LOOSE)
    assert model(secure) == model(plain)
    assert [row["answered"] for row in secure.rows()[1:]] == [5, 5]
    assert "battery" in secure.rows()[1]["failed"]["2"]


def test_a_client_that_leaves_after_its_masked_vector_is_in_the_sum(
    tmp_path, monkeypatch, plain_run
):
    fall_silent(monkeypatch, {1: Stage.CONFIRM, 4: Stage.REVEAL})
    secure = run_inline(tmp_path / "secure", *LOOSE)
    assert model(secure) == model(plain_run)
    assert secure.rows()[1]["answered"] == 6


@pytest.mark.parametrize("phase", [Stage.ADVERTISE, Stage.SHARE, Stage.CHECK])
def test_a_client_that_leaves_before_it_is_asked_to_train_releases_nothing(
    tmp_path, monkeypatch, phase
):
    fall_silent(monkeypatch, {5: phase})
    secure = run_inline(tmp_path / "secure", *LOOSE)
    assert [row["answered"] for row in secure.rows()[1:]] == [5, 5]
    assert secure.rows()[1]["failed"] == {"5": "gone"}
    with Ledger(secure.path / "ledger.sqlite") as ledger:
        assert ledger.clients() == ["0", "1", "2", "3", "4"]
    local, hidden = secure.statement()["guarantees"]
    assert "5" not in local["clients"] and "5" not in hidden["clients"]


@pytest.mark.parametrize("phase", [Stage.ADVERTISE, Stage.SHARE, Stage.CONFIRM, Stage.REVEAL])
def test_too_many_dropouts_cost_the_round_and_not_the_run(tmp_path, monkeypatch, phase):
    drops = dict.fromkeys((0, 1, 2), phase)
    fall_silent(monkeypatch, drops)
    run = run_inline(tmp_path / "run", *LOOSE)
    first = run.rows()[1]
    assert first["answered"] == 0
    assert "aborted" in first["failed"]["5"] and first["failed"]["0"] == "gone"
    assert run.rows()[0]["accuracy"] == run.rows()[2]["accuracy"]


def test_a_cohort_drawn_too_small_costs_the_round_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Rounds, "cohort", lambda self, number: np.arange(1 if number == 1 else 6))
    rows = run_inline(tmp_path / "run", ON).rows()
    assert rows[1]["failed"]["0"].startswith(
        "secure aggregation: a sum needs 5 clients, and 1 are there"
    )
    assert [row["answered"] for row in rows] == [0, 0, 6]


@pytest.mark.parametrize(
    ("codec", "weight", "expected"),
    [
        (BitCodec(10), 100, 7),
        (BitCodec(10), 127, 7),
        (BitCodec(10), 128, 8),
        (LabelCodec(3, 10), 40, 6),
        (WeightCodec(5), 40, 49),  # 40 · 2^42 needs 48 bits and a sign
    ],
)
def test_modulus_is_just_above_the_largest_sum(codec, weight, expected):
    bits = modulus_bits(codec, weight)
    assert bits == expected
    least, greatest = codec.limits(weight)
    top = 2 ** (bits - 1) if least < 0 else 2**bits
    assert greatest < top and weight < top and least >= (-top if least < 0 else 0)


def test_weights_that_no_modulus_of_64_bits_holds_are_refused():
    with pytest.raises(ValueError, match=r"^weight="):
        modulus_bits(WeightCodec(5), 2**40)


# What is said about it --------------------------------------------------------------------------


def test_statement_adds_the_adversary_that_sees_sums_only(secure_run):
    local, hidden = secure_run.statement()["guarantees"]
    assert (local["threat"], hidden["threat"]) == (Threat.LOCAL, Threat.SECURE_AGGREGATION)
    # That others hide a release is an assumption about them; without it nothing is gained.
    assert hidden["assumed_total"] < hidden["proven_total"] == local["proven_total"]
    assert "at least 5 of the 5 clients of every sum are honest" in hidden["assumptions"]
    assert "simulated" not in json.dumps(hidden)
    text = " ".join((secure_run.path / "privacy.txt").read_text().split())
    sums, messages = f"{hidden['assumed_total']:.3g}", f"{local['proven_total']:.3g}"
    assert f"Against a server that reads every message: ε = {messages} in total" in text
    assert "Against a server that sees only sums, if at least 5 of the 5 clients" in text
    assert f"keys reads every message): ε = {sums} in total" in text


def test_statement_counts_the_smallest_sum_that_may_be_and_not_the_colluders(tmp_path, monkeypatch):
    fail_training(monkeypatch, 2)
    more = run_inline(tmp_path / "more", *LOOSE)
    fewer = run_inline(
        tmp_path / "fewer",
        ON,
        "privacy.secure_sum.threshold=0.67",
        "privacy.secure_sum.colluders=2",
    )
    honest = [run.statement()["guarantees"][1]["assumptions"][0] for run in (more, fewer)]
    assert honest[0] == "at least 4 of the 4 clients of every sum are honest"
    assert honest[1] == "at least 3 of the 5 clients of every sum are honest"
    figures = [run.statement()["guarantees"][1]["assumed_total"] for run in (more, fewer)]
    assert figures[0] < figures[1]


def test_simulated_sums_give_the_same_figures_and_say_so(tmp_path, secure_run):
    simulated = run_inline(tmp_path / "simulated", "privacy.secure_aggregation=simulated")
    assert model(simulated) == model(secure_run)
    figures = [run.statement()["guarantees"][1]["assumed_total"] for run in (secure_run, simulated)]
    assert figures[0] == figures[1]
    said = " ".join((simulated.path / "privacy.txt").read_text().split())
    assert "simulated: in this run it saw every message" in said


def test_a_run_without_it_speaks_of_no_secure_sum(plain_run):
    assert len(plain_run.statement()["guarantees"]) == 1


def test_the_smallest_sum_survives_a_checkpoint(secure_run):
    strategy = ValidatedRun(compose(["engine=inline", "federation.num_clients=6", ON])).strategy
    strategy.rounds.resume(secure_run.load_checkpoint().run)
    assert strategy.rounds.sums.least_survivors == 6
    assert strategy.rounds.exposure_in_sums(NonPrivateEvent(), {}).per_round.honest_clients == 5


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("privacy.secure_sum.colluders=5", "privacy.secure_sum with a cohort of 6: "),
        ("federation.num_clients=1", "privacy.secure_sum with a cohort of 1: clients: 1 ids"),
        ("privacy.secure_sum.threshold=2", "privacy.secure_sum.threshold=2: "),
        ("privacy.secure_sum.limit=2", "privacy.secure_sum.limit"),
        ("privacy.secure_aggregation=maybe", "privacy.secure_aggregation=maybe: must be one of"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_any_work(override, match):
    with pytest.raises(ConfigError, match=match):
        ValidatedRun(compose(["engine=inline", "federation.num_clients=6", ON, override]))
