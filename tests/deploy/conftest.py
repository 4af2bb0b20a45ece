"""One real federation for all tests of this folder: a SuperLink and four enrolled SuperNodes."""

import os
import subprocess

import pytest

from fl_app.engines.deploy import copy_app
from fl_app.tools.export import export
from tests.deploy.hub import Hub
from tests.federation.loopback import PROJECT, Federation, wait_for

MNIST = [
    "dataset=mnist",
    "partition=quantity_skew",
    "partition.exponent=null",
    "partition.groups={sites: {count: 3, size: 300}}",
]
WORDS = [
    *(MNIST if os.environ.get("MURMUR_DATA") else ["dataset=digits"]),
    "federation.num_clients=3",
    "federation.public=402",
    "federation.quorum=1.0",
    "federation.round_timeout=300",
    "privacy.noise=seeded",
    "strategy.local.epochs=1",
]
ENDS = 1200  # seconds for a run: on a slow machine every message's process imports for a minute
PICKY = 3  # hosted by a node that runs signed bundles only


@pytest.fixture(scope="session")
def bundle_hub(tmp_path_factory):
    """A hub with a bundle that a reviewer has signed; and whom devices trust: {id: key}."""
    folder = tmp_path_factory.mktemp("hub")
    reviewer = folder / "reviewer"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(reviewer)]
    subprocess.run(command, check=True)
    hub = Hub(copy_app(PROJECT, folder / "app"), reviewer, "fpk_reviewer")
    yield hub, {"fpk_reviewer": reviewer.with_suffix(".pub").read_text().strip()}
    hub.close()


@pytest.fixture(scope="session")
def federation(tmp_path_factory, bundle_hub):
    """Three devices online, with the shards that a simulation of ``WORDS`` gives its clients."""
    hub, trusted = bundle_hub
    with Federation(tmp_path_factory.mktemp("federation")) as running:
        export(running.folder / "data", [*WORDS, "strategy=privatekt"], shards=True)
        data = running.folder / "data"
        (data / f"client-{PICKY}.npz").write_bytes((data / "client-0.npz").read_bytes())
        running.start_link(FLWR_SUPERGRID_API_URL=hub.url)
        for client in range(3):
            running.start_node(client, running.enrol(client), running.device(client))
        entities = running.folder / "trusted.yaml"
        entities.write_text("".join(f"{name}: {key}\n" for name, key in trusted.items()))
        options = ("--trusted-entities", str(entities))
        running.start_node(PICKY, running.enrol(PICKY), running.device(PICKY), *options)
        wait_for(lambda: running.online() == 4, 300, "four nodes")
        yield running
