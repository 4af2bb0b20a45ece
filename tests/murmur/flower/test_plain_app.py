"""A Flower app that knows nothing of Murmur, three lines, and Flower's own runtimes."""

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from murmur.privacy.ledger import Ledger
from tests.federation.loopback import (
    NAME,
    PROJECT,
    Federation,
    SimulatedRuns,
    lines_of,
    wait_for,
)
from tests.murmur.flower.nodes import POLICY, run_app

APP = PROJECT / "examples" / "plain_flower_app"
PATCH = APP / "three_lines.patch"
UNPROTECTED = (
    "the clients' app is not protected, so nothing was asked of it ({} nodes); in client_app.py, "
    "in place of Flower's: from murmur.flower import ClientApp"
)
# What a SuperLink of the test's own needs beside what the page exports.
OURS = (
    "PATH",
    "FLWR_HOME",
    "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT",
    "FLWR_LOCAL_CONTROL_API_PORT",
    "FLWR_TELEMETRY_ENABLED",
)
UNWRAPPED = "this client answers through Murmur only and was asked for `train` without it"


def copied(folder, *halves):
    """The app in ``folder``, with the lines of the patch for ``halves`` of it."""
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("*.patch", "__pycache__"))
    for half in halves:
        command = ["git", "apply", "-p0", "--include", f"plain_app/{half}_app.py", str(PATCH)]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def owners_policy():
    """The one that docs/any-flower-app.md shows, for as long as these tests run."""
    page = (PROJECT / "docs" / "any-flower-app.md").read_text()
    shown = re.search("```yaml\n(.*?)```", page, re.S).group(1)
    return textwrap.dedent(shown).replace("expires: 20", "expires: 21")


def test_three_lines_are_all_that_changes():
    lines = PATCH.read_text().splitlines()
    assert sum(line.startswith("+") and not line.startswith("+++") for line in lines) == 3
    for path in APP.rglob("*.py"):
        assert "murmur" not in path.read_text().lower().replace("knows nothing of murmur", "")


def test_the_app_runs_as_it_is_and_with_the_three_lines(tmp_path, caplog):
    with caplog.at_level("INFO"):
        run_app(copied(tmp_path / "plain"), 4)
    assert "eval_acc" in caplog.text
    caplog.clear()
    devices = tmp_path / "devices"
    for place in range(4):
        (devices / str(place)).mkdir(parents=True)
        (devices / str(place) / "policy.yaml").write_text(owners_policy())
    with caplog.at_level("INFO"):
        nodes = run_app(copied(tmp_path / "private", "server", "client"), 4, devices)
    assert caplog.text.count("aggregate_train: Received 4 results and 0 failures") == 3
    assert (tmp_path / "private" / "final_model.pt").exists()
    assert nodes.asked.count("train") == 3 * 4 and "evaluate" not in nodes.asked
    for place in range(4):
        with Ledger(devices / str(place) / "ledger.sqlite", create=False) as ledger:
            assert ledger.releases() == 3


@pytest.fixture
def own_simulated(tmp_path):
    runs = SimulatedRuns(tmp_path / "flower")
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    runs = SimulatedRuns(tmp_path_factory.mktemp("flower"))
    yield runs
    runs.close()


@pytest.mark.federation
def test_flwr_run_with_ten_nodes(tmp_path, monkeypatch, simulated):
    monkeypatch.delenv("MURMUR_RESULTS")
    printed = simulated.run(copied(tmp_path / "app", "server", "client"), 10)
    assert printed.count("aggregate_train: Received 10 results and 0 failures") == 3, printed
    assert "times the longest possible mean update (10 clients a round, 650 numbers" in printed
    (stated,) = [line for line in printed.splitlines() if "privacy statement: " in line]
    statement = Path(stated.partition("privacy statement: ")[2].strip())
    assert "no owner keeps a ledger" in statement.read_text()


@pytest.mark.federation
def test_the_pages_commands_in_an_empty_environment(tmp_path, own_simulated):
    """From a checkout to digits that the protected model reads.

    A SuperLink's apps write where it was started, so this one is the test's own.
    """
    page = (PROJECT / "docs" / "any-flower-app.md").read_text()
    commands = re.search("```bash\n(.*?)```", page, re.S).group(1)
    kept = {name: value for name, value in own_simulated.environment.items() if name in OURS}
    for attempt in range(4):
        checkout = tmp_path / f"checkout-{attempt}"
        shutil.copytree(APP, checkout / "examples" / APP.name)
        kept["HOME"] = str(checkout)
        command = ["bash", "-e", "-c", commands]
        printed = "".join(lines_of(command, kept, checkout))
        if "Failed to start local SuperLink within" not in printed:
            break
    assert printed.count("aggregate_train: Received 50 results and 0 failures") == 6, printed
    assert "Traceback" not in printed
    right, digits = re.search(r"(\d+) of (\d+) digits are right", printed).groups()
    assert int(right) / int(digits) > 0.6, printed[-300:]


@pytest.mark.federation
def test_two_nodes_are_refused_in_a_sentence(tmp_path, simulated):
    printed = simulated.run(copied(tmp_path / "app", "server", "client"), 2)
    assert "2 nodes: a sum needs at least 3, of which one may side with the server" in printed
    assert "min_train_nodes=3" in printed
    assert "Traceback" not in printed


@pytest.mark.federation
def test_flwr_run_with_one_half_only(tmp_path, simulated):
    printed = simulated.run(copied(tmp_path / "server", "server"), 4)
    assert UNPROTECTED.format(4) in printed
    assert "Received" not in printed
    printed = simulated.run(copied(tmp_path / "client", "client"), 4, "num-server-rounds=1")
    assert UNWRAPPED in printed
    assert "aggregate_train: Received 0 results and 4 failures" in printed


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three SuperNodes that run what a server sends, each with its owner's folder."""
    with Federation(tmp_path_factory.mktemp("federation")) as running:
        running.start_link()
        for number in range(3):
            owned = running.folder / f"owner-{number}"
            owned.mkdir()
            (owned / "policy.yaml").write_text(POLICY)
            config = {"partition-id": number, "num-partitions": 3, "murmur": str(owned)}
            key = running.enrol(number)
            running.start_node(number, key, config, runs_sent_code=True)
        wait_for(lambda: running.online() == 3, 300, "three nodes")
        yield running


@pytest.mark.federation
def test_a_superlink_with_three_supernodes(tmp_path, federation):
    app = copied(tmp_path / "app", "server", "client")
    config = ["--run-config", "num-server-rounds=1"]  # each message starts a process
    printed = federation.flwr("run", str(app), NAME, "--stream", *config)
    assert "aggregate_train: Received 3 results and 0 failures" in printed, printed
    for number in range(3):
        ledger = federation.folder / f"owner-{number}" / "ledger.sqlite"
        with Ledger(ledger, create=False) as own:
            own.verify()
            assert [e.round for e in own.entries() if e.kind == "charge"] == [1]


@pytest.mark.federation
def test_a_superlink_whose_supernodes_get_an_app_without_murmur(tmp_path, federation):
    printed = federation.flwr("run", str(copied(tmp_path / "app", "server")), NAME, "--stream")
    assert UNPROTECTED.format(3) in printed
    assert "Received" not in printed
