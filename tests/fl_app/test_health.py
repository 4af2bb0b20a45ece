"""What monitoring reads of a run and of a device, and that the dashboard shows no other figures."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fl_app.device.health
import fl_app.tracking
from fl_app.prometheus_file import NAME, Figures, read, write
from tests.fl_app.device_under_test import OPEN, Device, model_size, question, report
from tests.fl_app.running import run_inline

PROJECT = Path(__file__).resolve().parents[2]
FEDAVG = ("strategy=fedavg", "model=linear", "privacy=none")


def figures(folder):
    """Values without the prefix, and the labels that all of them carry."""
    families = list(text_string_to_metric_families((folder / NAME).read_text()))
    samples = [sample for family in families for sample in family.samples]
    labels = {tuple(sample.labels.items()) for sample in samples}
    return {re.sub("murmur_(run|device)_", "", s.name): s.value for s in samples}, labels


def test_a_run_leaves_the_figures_of_its_rows(tmp_path):
    run = run_inline(tmp_path / "run", "privacy.noise=os")
    found, labels = figures(run.path)
    rows, last = run.rows(), run.rows()[-1]
    assert labels == {(("run", "run"),)}
    assert found.pop("last_round_timestamp_seconds") > 0
    assert found == {
        "finished": 1,
        "rounds": 2,
        "round": 2,
        "answered": 6,
        "failed": 0,
        "accused": 0,
        "failed_total": 0,
        "accused_total": 0,
        "round_seconds": last["seconds"],
        "epsilon_proven": last["epsilon_proven"],
        **{
            f"{name}_total": pytest.approx(sum(row[name] for row in rows))
            for name in ("bytes_up", "bytes_down", "seconds")
        },
    }


def test_a_run_that_goes_on_counts_the_rounds_before_and_is_not_finished(tmp_path):
    health = fl_app.tracking.RunHealth()
    row = {"round": 1, "answered": 3, "failed": {"1": "late", "2": "late"}, "accused": {"0": "no"}}
    row |= {"bytes_up": 10, "bytes_down": 20, "seconds": 0.5, "epsilon_proven": "infinity"}
    config = {"federation": {"num_rounds": 5}, "privacy": {"noise": "os"}}
    health.begin(tmp_path, config, [row])
    health.row({**row, "round": 2, "failed": {}})
    found, _ = figures(tmp_path)
    assert (found["finished"], found["round"], found["rounds"]) == (0, 2, 5)
    assert (found["failed"], found["failed_total"], found["accused_total"]) == (0, 2, 2)
    assert (found["bytes_up_total"], found["seconds_total"]) == (20, 1.0)
    assert found["epsilon_proven"] == math.inf
    health.begin(tmp_path, config, [row])
    health.row({**row, "round": 2, "epsilon_proven": None})  # noise is seeded
    assert not [name for name in figures(tmp_path)[0] if name.startswith("epsilon")]


def test_the_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path, label = tmp_path / NAME, ("run", 'a "name"')
    write(path, Figures({"a_total": "A"}, {"a_total": 1.0}, label))
    inode = path.stat().st_ino
    write(path, Figures({"a_total": "A"}, {"a_total": 2.0}, label))
    assert path.stat().st_ino != inode and read(path) == {"a_total": 2.0}

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(prometheus_client.exposition, "generate_latest", broken)
    with pytest.raises(OSError, match="disk full"):
        write(path, Figures({"a_total": "A"}, {"a_total": 3.0}, label))
    assert read(path) == {"a_total": 2.0}
    assert [p.name for p in tmp_path.iterdir()] == [NAME]


def asked(device, round, **settings):
    words = device.words(*FEDAVG)
    model = np.zeros(model_size(words), np.float32)
    return device.ask(words, question(model, round=round, **settings))


def test_a_device_tells_what_was_charged_and_what_was_sent(tmp_path):
    device = Device(tmp_path, OPEN)
    replies = [asked(device, 1), asked(device, 2), asked(device, 2), asked(device, 3, clients=[5])]
    assert [report(reply)["clients"] for reply in replies] == [[3, 7]] * 3 + [[]]
    found, labels = figures(device.state)
    assert labels == {(("clients", "3,7"),)}
    assert found["releases_total"] == len(device.charged()) == 4
    assert (found["messages_total"], found["refusals_total"]) == (4, 1)
    assert found["epsilon_spent"] == math.inf  # FedAvg releases weights as they are
    assert found["received_bytes_total"] > 4 * 4 * model_size(device.words(*FEDAVG))
    assert found["sent_bytes_total"] > 3 * 4 * model_size(device.words(*FEDAVG))


def test_a_message_refused_as_a_whole_is_counted_and_keeps_the_rest(tmp_path):
    device = Device(tmp_path, OPEN)
    asked(device, 1)
    before, _ = figures(device.state)
    (tmp_path / "policy.yaml").write_text("nonsense")
    assert asked(device, 2).has_error()
    after, _ = figures(device.state)
    assert after["refusals_total"] == before["refusals_total"] + 1
    same = ("releases_total", "epsilon_spent", "last_answer_timestamp_seconds", "sent_bytes_total")
    assert [after[name] for name in same] == [before[name] for name in same]


def test_the_times_in_a_devices_file_are_those_of_the_message(tmp_path, monkeypatch):
    device = Device(tmp_path, OPEN)
    times = iter([1000.0, 2000.0])
    clock = SimpleNamespace(time=lambda: next(times, 9e9))  # other threads keep the real one
    monkeypatch.setattr(fl_app.device.health, "time", clock)
    asked(device, 1)
    asked(device, 2, clients=[5])  # nobody answers
    found, _ = figures(device.state)
    assert found["last_answer_timestamp_seconds"] == 1000.0
    assert (device.state / NAME).stat().st_mtime == 2000.0


def test_a_file_that_cannot_be_written_keeps_no_answer_back(tmp_path):
    device = Device(tmp_path, OPEN)
    (device.state / NAME).mkdir(parents=True)
    assert report(asked(device, 1))["clients"] == [3, 7]
    assert NAME in (device.state / "errors.log").read_text()


def test_the_dashboard_names_only_figures_that_are_written():
    board = (PROJECT / "deploy/grafana/murmur.json").read_text()
    known = {*fl_app.tracking.MEANINGS, *fl_app.device.health.MEANINGS}
    named = set(re.findall(r"murmur_(?:run|device)_\w+", board))
    assert named and named <= known
    assert all(
        target["expr"] for panel in json.loads(board)["panels"] for target in panel["targets"]
    )
