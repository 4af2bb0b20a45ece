"""A server chooses among what conf/ lists for devices; most questions here once crossed a line."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fl_app.config.client_half import started_with
from fl_app.config.compose import choices, compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.config.overrides import to_run_config
from fl_app.device.agreement import device_config, overrides_for_devices
from fl_app.device.node_settings import OwnerSettings
from fl_app.engines.deploy import device_overrides
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy
from murmur.round.task import REFUSED
from tests.fl_app.device_under_test import MINE, OPEN, STRICT, Device, model_size, question, report

OWN = OwnerSettings(
    (3, 7), "/data/{client}.npz", None, shape=(1, 8, 8), classes=10, sizes=(30,) * 8
)
SMALL = ["model=mlp", "model.hidden=[4]", "strategy.local.epochs=1"]


def on_device(*words: str, own: OwnerSettings = OWN):
    return device_config(to_run_config(["federation.num_clients=8", *words]), own)


@pytest.mark.parametrize("name", groups()["strategy"])
def test_every_strategy_says_whether_a_server_may_choose_it(name):
    if name in ("centralised", "local_only"):
        with pytest.raises(ConfigError, match="simulations only"):
            on_device(f"strategy={name}")
    else:
        assert on_device(f"strategy={name}").strategy.name == name


@pytest.mark.parametrize(
    "word",
    [
        "strategy.K=0",
        "strategy.K=101",
        "strategy.K=1.5",
        "strategy.K=true",
        "strategy.K=[1]",
        "strategy.K=1,2",
        "~strategy.K",
        "strategy.local=null",
        "strategy.local.learning_rate=nan",
        "privacy.policy=/elsewhere.yaml",
        "privacy.secure_aggregation=simulated",
        "model.hidden=[4,0]",
        "strategy.client=null",
        "strategy.name=fedavg",
        "strategy.of_a_newer_version=1",
        "strategy.client._target_=clients.fedavg.FedAvgClient",
        "++evaluation.client._target_=clients.dpsgd_fedavg.DpSgdClient",
        "model._target_=murmur.learning.data.own_data.npz",
        "+dataset.cache._target_=os.system",
        "federation.num_clients=9",
    ],
)
def test_what_is_not_listed_or_out_of_range_is_refused_by_name(word):
    with pytest.raises(ConfigError) as caught:
        on_device(word)
    assert word.lstrip("+~").partition("=")[0].rpartition(".")[2].split("=")[0] in str(caught.value)


def test_how_many_clients_there_are_is_the_owners_word_where_he_gives_one():
    own = OwnerSettings(
        (3,), "/data/{client}.npz", None, shape=(1, 8, 8), classes=10, num_clients=100
    )
    with pytest.raises(ConfigError, match="by its owner's word"):
        on_device(own=own)
    assert on_device("federation.num_clients=100", own=own).federation.num_clients == 100


def test_what_only_a_server_reads_is_not_read():
    plain = on_device()
    for word in (
        "dataset.path=/etc/passwd",
        "results_dir=/x",
        "strategy.finetuning.passes=7",
        "federation.devices={classes: [flu, cold], shape: [3, 9, 9], sizes: [1]}",
        "no.such.key=1",
        "compute.device=cuda",
    ):
        assert on_device(word) == plain, word


@pytest.mark.parametrize(
    "experiment", ["digits_privatekt", "digits_votes", "digits_nbafl", "digits_kd_dpfl"]
)
def test_server_says_in_plain_words_what_an_experiment_asks_of_devices(experiment):
    words = [f"experiment={experiment}"]
    config = compose(words)
    found = device_config(
        to_run_config(overrides_for_devices(config, choices(words))), OwnerSettings((), None, None)
    )
    assert found.strategy.client == config.strategy.client
    assert found.model == config.model and found.privacy == config.privacy


@pytest.mark.parametrize("experiment", ["digits_votes", "digits_nbafl", "digits_kd_dpfl"])
def test_sums_are_bound_to_all_that_a_device_was_started_with(experiment):
    words = [
        f"experiment={experiment}",
        "engine=deploy",
        "engine.superlink=it",
        "run_dir=/some/run",
    ]
    given = [*words, *device_overrides(words)]
    owner = OwnerSettings((3,), (1, 8, 8), 10)

    def on_device(*more):
        return started_with(device_config(to_run_config([*given, *more]), owner))

    server = started_with(compose(given))
    assert on_device() == server
    assert on_device("run_dir=/another", "results_dir=/elsewhere") == server
    others = ["strategy.local.epochs=7", "seed=9", f"federation.devices.public={'0' * 64}"]
    assert len({server, *map(on_device, others)}) == 4
    # An installed 1.0 is left out of what devices are sent where the user has typed 1.
    assert started_with(compose([*given, "privacy.epsilon=2"])) == on_device("privacy.epsilon=2.0")


def test_user_hears_before_a_run_that_devices_would_do_something_else():
    words = ["strategy=nbafl", "privacy.sensitivity=erm", "strategy.lipschitz=1.0"]
    with pytest.raises(ConfigError, match=r"privacy\.sensitivity=erm"):
        overrides_for_devices(compose([*words, "strategy.proximal_mu=0.1"]), choices(words))


@pytest.mark.parametrize(
    "target",
    [
        "model._target_=murmur.learning.data.own_data.npz",
        "strategy.client._target_=clients.fedavg.FedAvgClient",
    ],
)
def test_in_simulations_too_a_slot_takes_the_classes_of_its_own_group(target):
    with pytest.raises(ConfigError, match=r"chosen through the groups|not the name of"):
        compose([target])


# The table's rows, each through the real ClientApp ------------------------------------------


def ask(device: Device, *words: str, size: tuple[str, ...] = (), **changed):
    told = device.words(*SMALL, *size)
    model = np.zeros(model_size(told), np.float32)
    content = question(model, arrays={"indices": np.arange(3)}, **changed)
    return report(device.ask([*told, *words], content))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["privacy.sensitivity=erm", "strategy.lipschitz=1e-9", "strategy.proximal_mu=0.001"],
            "privacy.sensitivity=erm: on a device it must be one of paper, worst, dpsgd",
        ),
        (["privacy=paper", "strategy.local.learning_rate=2.0"], "bounded_change"),
    ],
)
def test_nbafl_whose_noise_rests_on_the_servers_assumptions_is_refused(tmp_path, words, said):
    """It charged ε 0.889 for a release that one record moved by 359 noise units."""
    device = Device(tmp_path, STRICT.replace("assumptions: [bounded_change]", "assumptions: []"))
    found = ask(device, "strategy=nbafl", *words)
    assert found["clients"] == [] and set(found["reasons"]) == {REFUSED}
    assert said in device.log()
    assert device.charged() == []
    assert ask(device, "strategy=nbafl", "privacy.unit=record")["clients"] == list(MINE)


@pytest.mark.parametrize(
    "policy", ["none", "expired", "malformed", "other algorithm", "too strict"]
)
def test_device_whose_policy_allows_nothing_opens_no_data_file(tmp_path, opened, policy):
    device = Device(tmp_path)
    file = tmp_path / "policy.yaml"
    text = file.read_text()
    match policy:
        case "none":
            del device.node_config["policy"]
        case "expired":
            file.write_text(text.replace("2099", "2001"))
        case "malformed":
            file.write_text("algorithms: [privatekt\n")
        case "other algorithm":
            file.write_text(OPEN)
        case "too strict":
            file.write_text(text.replace("max_epsilon: 6.0", "max_epsilon: 0.01"))
    opened.clear()
    for words in ([], ["federation.devices.classes=[flu,cold]"]):
        found = ask(device, *words)
        assert found["clients"] == []
        assert set(found["reasons"]) == {REFUSED}
    assert str(tmp_path / "policy.yaml") in opened or policy == "none"
    assert not [path for path in opened if path.endswith(("3.npz", "7.npz"))]
    assert device.charged() == []


def test_policy_is_read_anew_for_a_stored_reply_too(tmp_path):
    device = Device(tmp_path)
    assert ask(device)["clients"] == list(MINE)
    file = tmp_path / "policy.yaml"
    file.write_text(file.read_text().replace("2099", "2001"))
    told = device.words(*SMALL)
    content = question(np.zeros(model_size(told), np.float32), arrays={"indices": np.arange(3)})
    assert report(device.ask(told, content, fresh=False))["reasons"] == [REFUSED]
    assert "no policy that is valid" in device.log()


WITHDRAWN = {
    "the algorithm": ("privatekt(: 9)?, ", "", "algorithm=privatekt"),
    "the mechanism": ("  randomized_response: .*\n", "", "mechanism="),
    "the mechanism's strength": ("max_epsilon: 6.0", "max_epsilon: 0.01", "max_epsilon"),
    "the release": ("privatekt: 9", "privatekt: 0.01", "of one release"),
    "the lifetime": ("lifetime: 1e6", "lifetime: 0.01", "of this client's life"),
    "releases of records": ("unit: record", "unit: client", ""),
}


@pytest.mark.parametrize("what", WITHDRAWN)
def test_stored_answer_does_not_leave_once_its_owner_has_withdrawn(tmp_path, what):
    was, now, said = WITHDRAWN[what]
    words = (
        ["strategy=dpsgd_fedavg", "privacy.unit=record"] if what == "releases of records" else []
    )
    device = Device(tmp_path)
    first = ask(device, *words)
    assert first["clients"] == list(MINE)
    charged, file = device.charged(), tmp_path / "policy.yaml"
    allowed = file.read_text()
    file.write_text(re.sub(was, now, allowed))
    found = ask(device, *words)
    assert (found["clients"], set(found["reasons"])) == ([], {REFUSED})
    assert said in device.log()
    if what == "the algorithm":  # the question as that of an algorithm that is still allowed
        assert ask(device, "strategy=nbafl")["clients"] == []
    file.write_text(allowed)
    assert ask(device, *words) == first and device.charged() == charged


def test_stored_answer_of_seeded_noise_does_not_leave_as_one_of_another_kind(tmp_path):
    allowed = STRICT.replace("allow_seeded_noise: false", "allow_seeded_noise: true")
    device = Device(tmp_path, allowed)
    assert ask(device, "privacy.noise=seeded")["clients"] == list(MINE)
    (tmp_path / "policy.yaml").write_text(STRICT)
    for noise in ("seeded", "os"):
        assert ask(device, f"privacy.noise={noise}")["clients"] == []


def test_lifetime_that_is_spent_by_what_is_stored_lets_it_out_again(tmp_path):
    device = Device(tmp_path)
    assert ask(device)["clients"] == list(MINE)
    with Ledger(device.state / "ledger.sqlite") as ledger:
        spent = Policy.load(tmp_path / "policy.yaml").spend(ledger.spent(3))
    limit = f"epsilon_per_lifetime: {spent * 1.2}"  # two rounds cost more
    (tmp_path / "policy.yaml").write_text(STRICT.replace("epsilon_per_lifetime: 1e6", limit))
    assert ask(device)["clients"] == list(MINE)  # it is not counted beside itself
    assert ask(device, round=2)["clients"] == []
    assert len(device.charged()) == 2


@pytest.mark.parametrize("phase", ["advertise", "reveal"])
def test_phase_of_a_secure_sum_is_not_answered_once_the_algorithm_is_withdrawn(tmp_path, phase):
    device = Device(tmp_path, OPEN.replace("algorithms: [fedavg, ", "algorithms: ["))
    asked = {"phase": phase, "run": "r", "round": 1, "clients": [3]}
    record = {**asked, "messages": [b"{}"], "which": [0]}
    words = device.words("privacy.secure_aggregation=on", "strategy=fedavg")
    reply = device.ask(words, RecordDict({"secure_sum": ConfigRecord(record)}), "query")
    assert reply.has_error() and reply.error.reason == REFUSED
    assert "algorithm=fedavg" in device.log()


@pytest.mark.parametrize("wrong", ["label", "size", "missing", "shape"])
def test_data_that_do_not_fit_the_owners_words_are_answered_like_any_other(tmp_path, wrong):
    """A refusal would tell of what lies in a file; their owner alone is told."""
    device = Device(tmp_path)
    with np.load(tmp_path / "3.npz") as held:
        images, labels = held["images"], held["labels"]
    match wrong:
        case "label":
            labels = np.where(labels == 9, 10, labels)
        case "size":
            images, labels = images[1:], labels[1:]
        case "shape":
            images = images[:, 1:]
    np.savez(tmp_path / "3.npz", images=images, labels=labels)
    if wrong == "missing":
        (tmp_path / "3.npz").unlink()
    found = ask(device)
    assert found["clients"] == list(MINE) and not found["refused"]
    assert [client for client, *_ in device.charged()] == ["3", "7"]
    assert "3.npz" in device.log() or "there are 299 examples, 300 are published" in device.log()


def test_no_question_finds_out_how_many_records_a_client_has(tmp_path):
    answers = set()
    for count in (29, 30, 31, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        device = Device(folder)
        del device.node_config["sizes"]
        rng = np.random.default_rng(0)
        for client in MINE:
            images = rng.random((count, 8, 8, 1), np.float32)
            np.savez(folder / f"{client}.npz", images=images, labels=np.arange(count) % 10)
        said = []
        for words in (
            ["strategy=nbafl", "strategy.smallest_dataset=30"],
            ["strategy=nbafl"],
            ["strategy=dpsgd_fedavg"],
            ["federation.devices={sizes: [30,30,30,30,30,30,30,30,30,30,30,30]}"],
            ["evaluation=protected_clustering", "evaluation.result.records=30"],
        ):
            found = ask(device, *words, purpose="evaluate" if "evaluation" in words[0] else None)
            said.append((tuple(found["clients"]), tuple(found["reasons"])))
        answers.add(tuple(said))
    assert len(answers) == 1


def test_device_copies_nothing_and_opens_nothing_that_a_server_names(tmp_path, opened):
    device = Device(tmp_path)
    place = tmp_path / "server's choice"
    for kind in ("npz", "csv"):
        words = [
            f"model._target_=murmur.learning.data.own_data.{kind}",
            f"++model.path={tmp_path}/secret.{kind}",
            f"++model.cache='{place}'",
        ]
        assert ask(device, *words)["clients"] == []
    assert not place.exists() and not [path for path in opened if "secret" in path]


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("strategy", ["privatekt", "nbafl", "fedavg", "dpsgd_fedavg"])
def test_model_on_which_training_overflows_is_answered_all_the_same(tmp_path, strategy, spoilt):
    """Some record's pixels decide whether activations overflow; the reply's form does not."""
    device = Device(tmp_path, OPEN if strategy == "fedavg" else Device.__init__.__defaults__[0])
    for client in MINE if spoilt else ():
        with np.load(tmp_path / f"{client}.npz") as held:
            np.savez(tmp_path / f"{client}.npz", images=held["images"] * 0, labels=held["labels"])
    told = device.words(*SMALL, f"strategy={strategy}")
    model = np.full(model_size(told), 1e37, np.float32)
    found = report(device.ask(told, question(model, arrays={"indices": np.arange(3)})))
    assert found["clients"] == list(MINE), found
    assert len(device.charged()) == len(MINE)


def test_error_in_training_is_answered_with_blank_records_and_stays_here(tmp_path, monkeypatch):
    from murmur.learning.training.trainer import Trainer

    device, real = Device(tmp_path), Trainer.train

    def train(self, images, labels, **rest):
        if images.any() and len(images) > 2:  # not the made-up ones of its trial
            raise MemoryError("record 17 of 300")
        return real(self, images, labels, **rest)

    monkeypatch.setattr(Trainer, "train", train)
    assert ask(device)["clients"] == list(MINE)
    assert "record 17" in device.log() and "is not covered" not in device.log()
    shutil.rmtree(device.state)


def test_owner_is_told_of_blank_records_that_no_records_unit_covers(tmp_path, monkeypatch):
    """No algorithm of ours lets a record bring it about: test_one_record.py."""
    from murmur.learning.training.dpsgd import DpSgd

    device, real = Device(tmp_path), DpSgd.train

    def train(self, trainer, images, *rest, **more):
        if images.any():
            raise MemoryError("record 17 of 300")
        return real(self, trainer, images, *rest, **more)

    monkeypatch.setattr(DpSgd, "train", train)
    found = ask(device, "strategy=dpsgd_fedavg", "privacy.unit=record")
    assert found["clients"] == list(MINE)
    assert "which is not covered if a record has brought it about: MemoryError" in device.log()
