"""A run's data card in its report, and no cell of the data anywhere."""

import json
import struct
from pathlib import Path

from fl_app.api import data_card, run
from fl_app.cli import main
from fl_app.run.data_card import HEADING, DataCard
from tests.fl_app.run.test_data_card import FEDAVG, cells_in, files_below, table


def test_no_cell_of_the_data_is_in_anything_that_a_run_writes_or_prints(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # of the report's scripts
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words, texts, numbers = table(tmp_path)
    planted = (tmp_path / "people.csv").read_bytes() + struct.pack("<f", numbers[0])
    assert len(cells_in(planted, texts, numbers)) == len(texts) + 1
    assert main([*FEDAVG, *words, "run_dir=run"]) == 0
    assert main(["report", "run", "--csv", "run/run.csv", "--markdown", "run/run.md"]) == 0
    assert main(["data", *FEDAVG, *words]) == 0
    written = [path for path in files_below(tmp_path) if path.name != "people.csv"]
    assert {"data.json", "data.txt", "report.html", "model.safetensors", "ledger.sqlite"} <= {
        path.name for path in written
    }
    for path in written:
        assert cells_in(path.read_bytes(), texts, numbers) == [], path
    said = capsys.readouterr()
    assert cells_in((said.out + said.err).encode(), texts, numbers) == []


def test_the_folder_the_report_and_the_function_have_the_same_card_and_a_published_page_none(
    tmp_path, capsys
):
    words, _, _ = table(tmp_path)
    folder = tmp_path / "run"
    run([*FEDAVG, *words, f"run_dir={folder}"], progress=False)
    card = data_card([*FEDAVG, *words])
    assert str(card).splitlines()[0] == HEADING == "facts of the data, covered by no ε"
    kept = json.loads((folder / "data.json").read_text())
    assert kept["heading"] == HEADING and kept["owner_rows"] == [4, 4]
    assert DataCard.from_json((folder / "data.json").read_bytes()) == card
    assert (folder / "data.txt").read_text() == f"{card}\n"
    shown = {}
    for option in ((), ("--publish",)):
        assert main(["report", str(folder), *option]) == 0
        shown[option] = (folder / "report.html").read_text()
    spam = f"spam: {card.classes[1].rows.training}/{card.classes[1].rows.test}"
    assert HEADING in shown[()] and spam in shown[()] and 'id="partition"' in shown[()]
    assert HEADING not in shown[("--publish",)] and spam not in shown[("--publish",)]
    assert 'id="partition"' not in shown[("--publish",)]
    assert "who holds what" in shown[()] and "who holds what" not in shown[("--publish",)]
    capsys.readouterr()
