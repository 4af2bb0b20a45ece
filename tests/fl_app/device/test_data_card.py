"""A device's data card: its owner sees it, by `murmur doctor device`, and nothing of it leaves."""

import numpy as np
import pandas
import pytest

import fl_app.run.data_card
from fl_app.run.data_card import SplitRows, card_of_own
from fl_app.tools import doctor
from murmur.learning.data.own_data import npz
from murmur.learning.data.tables import table
from tests.fl_app.device.test_tables import INPUTS, asked, device_of
from tests.fl_app.device_under_test import MINE, answer_without_data

OF_A_CARD = ("zebra", "quagga", "covered by no", "columns that are not", "training")


def odd(ill):
    """A change of a device's table: another mix of named classes, a further column."""
    names = np.array(["zebra", "quagga"])

    def change(frame):
        return frame.assign(ill=names[(np.arange(len(frame)) % ill == 0).astype(int)])

    return change


def of_owner(folder, ill):
    device = device_of(folder, ".parquet", odd(ill))
    names = ["zebra", "quagga", *map(str, range(2, 10))]
    device.node_config |= {"classes": ",".join(names)}
    return device


def owners_words(device):
    config = " ".join(f'{key}="{value}"' for key, value in device.node_config.items())
    return ["device", "--node-config", config]


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_owner_sees_it_and_it_is_written_nowhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    device = of_owner(tmp_path / "device", 3)
    before = files_below(tmp_path)
    doctor.main(owners_words(device))
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("data of client 3:")
    shown = {line.split("  ")[0].strip(): line for line in lines[start + 1 : start + 8]}
    assert shown["data"].endswith("device/3.parquet")
    assert shown["rows"].split()[1:3] == ["training", "300,"]
    assert shown["classes"].startswith("classes   10, as training: 2: 0, 3: 0, 4: 0,")
    assert "zebra: 200, quagga: 100" in shown["classes"]
    assert shown["left out"] == "left out  columns that are not among the inputs: name"
    assert "data of client 7:" in lines[start + 1 :]
    for path, content in files_below(tmp_path).items():
        if path not in before:
            assert not any(word.encode() in content for word in OF_A_CARD), path


def everything(reply):
    """All that a reply holds."""
    content = reply.content
    return (
        {name: dict(record) for name, record in content.config_records.items()},
        {name: dict(record) for name, record in content.metric_records.items()},
        {
            (name, key): array.data
            for name, record in content.array_records.items()
            for key, array in record.items()
        },
    )


def test_nothing_of_it_leaves_and_no_run_makes_one(tmp_path, monkeypatch):
    """Two owners whose cards differ in every count of a class answer to the same bits."""

    def make(*_):
        raise AssertionError("a card of a device's data was made in a run")

    monkeypatch.setattr(fl_app.run.data_card, "_card", make)
    answer_without_data(monkeypatch, lambda half, task: np.zeros(650, np.int64))
    told = []
    for name, ill in (("one", 2), ("other", 5)):
        device = of_owner(tmp_path / name, ill)
        reply, found = asked(device)
        assert sorted(found["clients"]) == list(MINE) and "a card" not in device.log()
        told.append((everything(reply), device.charged()))
        assert not any(word in repr(everything(reply)) for word in OF_A_CARD)
        for path, content in files_below(device.state).items():
            assert not any(word.encode() in content for word in OF_A_CARD), path
    assert told[0] == told[1]


def test_blank_rows_are_no_rows_of_a_class(tmp_path):
    images = np.zeros((6, 1, 2, 2), np.float32)
    images[4] = np.nan
    np.savez(tmp_path / "x.npz", images=images, labels=np.array([0, 0, 1, 1, 1, 7]))
    found = npz(
        path=tmp_path / "x.npz", num_classes=2, test_fraction=0, cache=tmp_path, blanks=True
    )
    card = card_of_own(found, "x.npz")
    assert [each.rows.training for each in card.classes] == [2, 2]
    assert card.rows == SplitRows(4, 0, 0, 0)
    assert card.left_out == ("2 rows that cannot be read: they are blank records",)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_is_no_wider_than_the_owners_terminal(tmp_path, width):
    frame = pandas.DataFrame(np.zeros((5, len(INPUTS))), columns=INPUTS).assign(label="zebra")
    frame.to_parquet(tmp_path / "x.parquet")
    card = card_of_own(table(path=str(tmp_path / "x.parquet"), test_fraction=0), "x.parquet")
    assert card.clients is None
    assert max(map(len, card.lines(width))) <= width and len(card.lines(width)) < 12
