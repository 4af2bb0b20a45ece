"""Six of Flower's example apps, as they are and with the three lines: on devices that pay.

examples/plain_flower_app is the sixth, quickstart-pytorch (test_plain_app.py).
"""

import json

import numpy as np
import pytest

from murmur.flower.ask import NOT_COUNTED
from murmur.privacy.ledger import Ledger
from murmur.round.task import RunError
from tests.murmur.flower.example_apps import EXAMPLES, protected
from tests.murmur.flower.nodes import run_app

pytestmark = pytest.mark.federation

NODES = 6
REQUIRED = {"jax": "jax", "opacus": "opacus"}


def written(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def model_of(folder):
    with np.load(folder / "final_model.npz") as saved:
        return list(saved.values())


@pytest.fixture(params=EXAMPLES)
def example(request):
    needed = REQUIRED.get(request.param, "numpy")
    pytest.importorskip(needed, reason=f"{needed} is not installed: the extra `apps` has it")
    return request.param


def test_an_example_runs_with_the_three_lines_and_each_device_pays(tmp_path, example, caplog):
    files = EXAMPLES[example]
    plain = run_app(written(tmp_path / "plain", files), NODES)
    assert not any(reply.has_error() for reply in plain.replies)
    before = model_of(tmp_path / "plain")
    folder = written(tmp_path / "private", protected(files))
    changed = [path for path in files if files[path] != protected(files)[path]]
    assert sorted(path.rpartition("/")[2] for path in changed) == ["client_app.py", "server_app.py"]
    caplog.clear()
    run_app(folder, NODES, tmp_path / "devices")
    assert "was lost" not in caplog.text
    assert example != "opacus" or NOT_COUNTED in caplog.text
    (statement,) = (tmp_path / "murmur-results").glob("*/privacy.txt")
    assert "if the app's bundle is honest" in " ".join(statement.read_text().split())
    after = model_of(folder)
    assert [array.shape for array in after] == [array.shape for array in before]
    assert [array.dtype for array in after] == [array.dtype for array in before]
    assert all(np.isfinite(array).all() for array in after)
    for place in range(NODES):
        own = tmp_path / "devices" / str(place)
        with Ledger(own / "ledger.sqlite", create=False) as ledger:
            assert ledger.releases() == 2
        assert not (own / "errors.log").exists(), (own / "errors.log").read_text()


def test_an_app_that_asks_two_nodes_is_refused_in_a_sentence(tmp_path):
    """As Flower's advanced-pytorch does: fraction_train of so few nodes is two."""
    folder = written(tmp_path, protected(EXAMPLES["advanced PyTorch"]))
    with pytest.raises(RunError, match="min_train_nodes=3"):
        run_app(folder, NODES, tmp_path / "devices", fraction_train=0.34)


def test_what_an_app_writes_beside_its_model_is_there(tmp_path):
    folder = written(tmp_path / "mods", protected(EXAMPLES["custom mods"]))
    run_app(folder, NODES, tmp_path / "devices")
    logs = list((folder / "logs").rglob("*.jsonl"))
    assert len(logs) == NODES
    rounds = [json.loads(line)["round"] for line in logs[0].read_text().splitlines()]
    assert rounds == [1, 2]
    folder = written(tmp_path / "advanced", protected(EXAMPLES["advanced PyTorch"]))
    run_app(folder, NODES)
    assert json.loads((folder / "best.json").read_text())["round"] in (1, 2)
