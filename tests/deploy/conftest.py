"""One real federation for all tests of this folder: a SuperLink and four enrolled SuperNodes."""

import os
import subprocess

import pytest

from benchmarks.loopback import Federation, wait_for
from fl_app.tools.export import export

MNIST = [
    "dataset=mnist",
    "partition=quantity_skew",
    "partition.exponent=null",
    "partition.sizes=[300,300,300]",
]
WORDS = [
    *(MNIST if os.environ.get("MURMUR_DATA") else ["dataset=digits"]),
    "federation.num_clients=3",
    "federation.public=400",
    "federation.quorum=1.0",
    "federation.round_timeout=600",
    "privacy.noise=seeded",
    "strategy.local.epochs=1",
]
PICKY = 9  # hosted by a node that runs signed bundles only


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Three devices online, with the shards that a simulation of ``WORDS`` gives its clients."""
    with Federation(tmp_path_factory.mktemp("federation")) as running:
        export(running.folder / "data", WORDS, shards=True)
        running.start_link()
        for client in range(3):
            running.start_node(client, running.enrol(client), running.device(client))
        entities = running.folder / "trusted.yaml"
        reviewer = running.folder / "reviewer"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(reviewer)]
        subprocess.run(command, check=True)
        public = reviewer.with_suffix(".pub").read_text().strip()
        entities.write_text(f"fpk_reviewer: {public}\n")
        options = ("--trusted-entities", str(entities))
        running.start_node(PICKY, running.enrol(PICKY), running.device(PICKY), *options)
        wait_for(lambda: running.online() == 4, 300, "four nodes")
        yield running
