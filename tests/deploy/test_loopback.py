"""Real processes on loopback, TLS and node authentication: the results are a simulation's."""

import pytest
from safetensors.numpy import load_file

from fl_app.run.results import RunFolder
from murmur.privacy.ledger import Ledger
from tests.deploy.conftest import ENDS, WORDS
from tests.fl_app.running import run_inline

pytestmark = pytest.mark.federation

RUNS = {
    "privatekt": ["strategy=privatekt", "privacy.epsilon=8", "federation.num_rounds=2"],
    # Clients are of one size, so that each counts alike, whether or not sizes are published.
    "masked-fedavg": [
        "strategy=fedavg",
        "federation.num_rounds=1",
        "privacy.secure_aggregation=on",
    ],
}


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


@pytest.mark.parametrize("name", RUNS)
def test_devices_give_the_result_of_a_simulation_bit_for_bit(federation, tmp_path, name):
    words, folder = [*WORDS, *RUNS[name]], tmp_path / f"devices-{name}"
    command = [*federation.words, *words, f"run_dir={folder}"]
    assert federation.murmur(*command).wait(ENDS) == 0, federation.story()
    run_inline(tmp_path / "inline", *words, small=["engine=inline"])
    assert weights(folder) == weights(tmp_path / "inline")
    rows = [RunFolder(place).rows() for place in (folder, tmp_path / "inline")]
    kept = ("round", "accuracy", "loss", "epsilon_proven", "answered", "failed")
    devices, inline = ([{key: row.get(key) for key in kept} for row in each] for each in rows)
    assert devices == inline
    assert not (folder / "ledger.sqlite").exists()
    for client in range(3):
        with Ledger(federation.folder / f"state-{client}" / "ledger.sqlite", create=False) as own:
            assert own.clients() == [str(client)]
            own.verify()
            charged = [e.round for e in own.entries(client, folder.name) if e.kind == "charge"]
            assert charged == list(range(1, len(inline)))
