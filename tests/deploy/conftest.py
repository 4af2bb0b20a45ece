"""One real federation for all tests of this folder: a SuperLink and three enrolled SuperNodes."""

import os

import pytest

from benchmarks.loopback import Federation, wait_for
from fl_app.tools.export import export

DATASET = ["dataset=mnist"] if os.environ.get("MURMUR_DATA") else ["dataset=digits"]
WORDS = [
    *DATASET,
    "federation.num_clients=3",
    "federation.quorum=1.0",
    "federation.round_timeout=600",
    "privacy.noise=seeded",
    "strategy.local.epochs=1",
    # A device's shard stays small enough for a slow machine.
    *(["federation.public=59000"] if "dataset=mnist" in DATASET else ["federation.public=400"]),
]


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Three devices online, with the shards that a simulation of ``WORDS`` gives its clients."""
    with Federation(tmp_path_factory.mktemp("federation")) as running:
        export(running.folder / "data", WORDS, shards=True)
        running.start_link()
        for client in range(3):
            running.start_node(client, running.enrol(client), running.device(client))
        wait_for(lambda: running.online() == 3, 300, "three nodes")
        yield running
