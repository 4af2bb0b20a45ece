"""What a device's owner says of secure sums holds, whatever cohort a server makes up."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fl_app.config.client_half import started_with
from fl_app.config.overrides import to_run_config
from fl_app.device.agreement import device_config
from fl_app.device.node_settings import OwnerSettings
from murmur.learning.codec import WeightCodec
from murmur.privacy.events import NonPrivateEvent
from murmur.round.task import REFUSED
from murmur.round.task import question as question_to_sum
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import identity_in, public_identity
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import Stage, release_digest
from tests.fl_app.device_under_test import OPEN, Device, model_size, question

VICTIM, COHORT, WEIGHT = 3, 20, 1000
ON = ["privacy.secure_aggregation=on", "strategy=fedavg"]


class HostileServer:
    """It asks one device, and plays the other 19 clients of the cohort itself."""

    def __init__(self, device, **settings):
        self.device, self.words = device, device.words(*ON)
        self.model = np.zeros(model_size(self.words), np.float32)
        chosen = SecureSumSettings("on", **settings)
        codec = WeightCodec(len(self.model))
        release = release_digest("fedavg", "train", codec, NonPrivateEvent(), 1, WEIGHT)
        bound = {"release": release, "least_weight": 1, "greatest_weight": WEIGHT}
        self.terms = chosen.terms("r", 1, range(COHORT), len(self.model) + 1, 60, **bound)
        self.server = SecureServer(self.terms)
        self.own = {c: SecureClient.join(self.terms, c) for c in range(COHORT) if c != VICTIM}

    def ask(self, phase, message, run="r"):
        """The victim's answer, or why it refuses."""
        record = {"phase": phase, "run": run, "round": 1, "clients": [VICTIM], "which": [0]}
        content = RecordDict({"secure_sum": ConfigRecord({**record, "messages": [message]})})
        reply = self.device.ask(self.words, content, "query").content["secure_sum"]
        return reply["messages"][0] if reply["messages"] else reply["reasons"][0]

    def read(self):
        """The victim's vector, or why it refuses."""
        terms = self.terms.sent
        messages = dict.fromkeys(self.terms.clients, b"")
        for phase, step in (
            ("advertise", self.server.keys),
            ("share", self.server.shares),
            ("check", self.server.checked),
        ):
            answer = self.ask(phase, terms if phase == "advertise" else messages[VICTIM])
            if isinstance(answer, str):
                return answer
            answers = {c: party.answer(Stage(phase), messages[c]) for c, party in self.own.items()}
            messages = step(answers | {VICTIM: answer})
        messages = self.server.lists()
        asked = question(self.model, clients=[VICTIM])
        record = {"phase": "mask", "run": "r", "round": 1, "clients": [VICTIM]}
        record |= {"messages": [messages[VICTIM]], "which": [0]}
        agreed = device_config(to_run_config(self.words), OwnerSettings((), None, None))
        self.server.asked = question_to_sum(asked, "train", started_with(agreed))
        asked["secure_sum"] = ConfigRecord(record)
        reply = self.device.ask(self.words, asked).content
        masked = reply["contribution"]["masked"].numpy()[0].tobytes()
        nothing = np.zeros(self.terms.length, np.int64)
        for c, party in self.own.items():
            self.server.add(c, party.add_masks(nothing, messages[c], self.server.asked))
        self.server.add(VICTIM, masked)
        for phase, step in (
            ("confirm", self.server.confirmations),
            ("reveal", lambda replies: self.server.total(replies, signed=True)),
        ):
            messages = self.server.survivors_list() if phase == "confirm" else messages
            answers = {c: party.answer(Stage(phase), messages[c]) for c, party in self.own.items()}
            messages = step(answers | {VICTIM: self.ask(phase, messages[VICTIM])})
        return messages


def test_19_of_20_clients_of_a_servers_own_read_the_vector_of_a_device_without_peers(tmp_path):
    device = Device(tmp_path, OPEN)
    vector = HostileServer(device).read()
    assert vector[-1] == 300  # its weight, in the clear
    assert len(device.charged()) == 1


def test_19_of_20_clients_of_a_servers_own_read_nothing_where_the_owner_has_pinned_peers(tmp_path):
    device = Device(tmp_path, OPEN)
    keys = {c: public_identity(identity_in(tmp_path / f"{c}.key")) for c in range(COHORT)}
    known = [f"{c} {key.hex()}" for c, key in keys.items()]
    (tmp_path / "peers").write_text("\n".join(known))
    device.node_config["peers"] = str(tmp_path / "peers")
    assert HostileServer(device).read() == REFUSED
    assert "1 clients hold shares of this one's secrets, those whose keys it" in device.log()
    assert device.charged() == []


def test_a_sum_goes_on_when_another_runs_sum_begins(tmp_path):
    """The answer to a message that comes again is stored with the state: it is still there."""
    server = HostileServer(Device(tmp_path, OPEN))
    terms = server.terms.sent
    first = server.ask("advertise", terms)
    server.words = server.device.words(*ON, "run_dir=/nowhere/run-b")
    assert server.ask("advertise", terms) == REFUSED  # one sum is joined in one run
    assert "was joined before" in server.device.log()
    other = replace(server.terms, run="other").sent
    assert server.ask("advertise", other, run="other") != first
    server.words = server.device.words(*ON)
    assert server.ask("advertise", terms) == first


@pytest.mark.parametrize(
    ("rule", "settings", "refusal"),
    [
        ({"colluders": 4}, {"colluders": 3}, "colluders=3: this device's owner reckons with 4"),
        (
            {"colluders": 2, "honest_clients": 16},
            {"colluders": 2, "minimum": 0.8},
            "a sum over 14 honest clients: this device takes part from 16 on",
        ),
        (
            {},
            {"neighbours": 18, "threshold": 0.8},
            "neighbours=18: this device's owner asks for all",
        ),
        ({"threshold": 0.9}, {}, "threshold=14 of 20: this device's owner asks for a share of 0.9"),
        (
            {"neighbours": 10},
            {"neighbours": 10, "server": "honest"},
            "server=honest: must be lying, a sum that holds against a server that lies",
        ),
        ({}, {"server": "honest"}, "an owner who takes this one to follow the protocol writes so"),
    ],
)
def test_a_servers_lower_value_is_refused_before_anything_is_charged(
    tmp_path, rule, settings, refusal
):
    device = Device(tmp_path, OPEN)
    device.node_config |= rule
    assert HostileServer(device, **settings).read() == REFUSED
    assert refusal in device.log()
    assert device.charged() == []


@pytest.mark.parametrize(
    "rule",
    [{"colluders": "many"}, {"honest_clients": 0}, {"peers": "/nowhere"}, {"neighbours": "some"}],
)
def test_an_owners_words_that_make_no_sense_are_no_permission(tmp_path, rule):
    device = Device(tmp_path, OPEN)
    device.node_config |= rule
    record = {
        "phase": "advertise",
        "run": "r",
        "round": 1,
        "clients": [VICTIM],
        "messages": [b"{}"],
    }
    reply = device.ask(device.words(*ON), RecordDict({"secure_sum": ConfigRecord(record)}), "query")
    assert reply.error.reason == REFUSED
    assert "neighbours, threshold, server, peers in this device's node-config" in device.log()
