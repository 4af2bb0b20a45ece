"""`murmur doctor run` says of a run what its devices' policies then do."""

import contextlib

import pytest

from fl_app.cli import main
from fl_app.run.results import RunFolder
from fl_app.tools import doctor
from murmur.privacy.ledger import Charge, Ledger
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.round.task import RunError
from tests.fl_app.running import SMALL, run_inline

ROUNDS = 4
POLICY = """
expires: 2099-01-01
servers: any
algorithms: [privatekt, fedavg, dp_fedavg]
mechanisms: {{randomized_response: {{max_epsilon: 3.0}}}}
epsilon_per_release: {release}
epsilon_per_lifetime: {lifetime}
unit: client
adjacency: as_stated
assumptions: [bounded_change]
delta: 1.0e-5
threat: {threat}
minimum_surviving_clients: {least}
allow_seeded_noise: true
allow_non_private: {plain}
"""
SECURE = ["privacy.secure_aggregation=on"]
LABELS = ["strategy=privatekt", "privacy=paper", "strategy.K=1", "privacy.epsilon=2"]


@pytest.fixture
def policy(tmp_path):
    def write(lifetime=500.0, release=8.0, threat="local", least=1, plain="false"):
        path = tmp_path / "policy.yaml"
        limits = {"lifetime": lifetime, "release": release, "threat": threat}
        path.write_text(POLICY.format(**limits, least=least, plain=plain))
        return path

    return write


def asked(policy, *words):
    return ["run", *SMALL, f"federation.num_rounds={ROUNDS}", *words, "--policy", str(policy)]


@pytest.mark.parametrize(
    ("words", "limits", "allowed"),
    [
        (LABELS, {}, ROUNDS),
        (LABELS, {"lifetime": 5.0}, 2),
        ([*LABELS, *SECURE], {"threat": "secure_aggregation", "least": 5}, ROUNDS),
        ([*LABELS, *SECURE], {"threat": "secure_aggregation", "least": 6}, 0),
        (["strategy=fedavg"], {"plain": "true", "lifetime": "inf", "release": "inf"}, ROUNDS),
        (["strategy=fedavg"], {}, 0),
    ],
)
def test_it_says_how_many_rounds_a_policy_allows(tmp_path, capsys, policy, words, limits, allowed):
    file = policy(**limits)
    said = doctor.main(asked(file, *words)), capsys.readouterr().out
    more = [*words, f"federation.num_rounds={ROUNDS}", f"privacy.policy={file}"]
    with contextlib.suppress(RunError):  # nobody answers any more
        run_inline(tmp_path / "run", *more)
    answered = [row["answered"] for row in RunFolder(tmp_path / "run").rows()]
    assert answered[1:] == [6] * allowed + [0] * (len(answered) - 1 - allowed)
    refused = f"refuses release {allowed + 1} of {ROUNDS}"
    word = refused if allowed < ROUNDS else f"allows all {ROUNDS} releases"
    assert (said[0], word in said[1]) == (int(allowed < ROUNDS), True), said


def test_on_a_device_it_counts_what_its_clients_have_released(tmp_path, capsys, policy):
    event = RandomizedResponse(2.0, 10).event()
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge([Charge(3, "earlier", 1, "train", "0" * 16, event)])
    config = f'clients="2,3" policy="{policy(lifetime=5.0)}" state="{tmp_path}"'
    words = ["run", *SMALL, *LABELS, "federation.num_rounds=2", "--node-config", config]
    assert doctor.main(words) == 1
    _, second, third = [line for line in capsys.readouterr().out.splitlines() if "client" in line]
    assert "policy for client 2" in second and "allows all 2 releases" in second
    assert "refuses release 2 of 2, after 1 before this run" in third


def test_what_a_server_may_not_set_is_told_before(capsys, policy):
    words = asked(policy(), *LABELS, "strategy.local.epochs=100000")
    assert doctor.main(words) == 1
    assert "strategy.local.epochs" in capsys.readouterr().out


def test_without_a_policy_it_says_what_to_give(capsys):
    assert main(["doctor", "run", *SMALL]) == 2
    assert "--policy FILE" in capsys.readouterr().err
