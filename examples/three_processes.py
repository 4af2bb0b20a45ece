"""A federation of separate processes on this machine: a server and three devices, with TLS.

    python -m examples.three_processes [FOLDER]      (in the project's folder)

Everything is as on real machines (`deploy/README.md`): certificates, a SuperLink that admits
enrolled nodes only, a key for each device, an owner's policy and ledger on each, and data that the
server never sees. Beside each device runs Flower's SuperNode, which speaks to the server. It takes
a minute or two.
"""

import sys
import tempfile
from pathlib import Path

from fl_app.tools.export import export
from murmur.privacy.ledger import Ledger
from tests.federation.loopback import Federation, wait_for

DEVICES = 3
WORDS = [
    "strategy=privatekt",
    "dataset=digits",
    "strategy.K=4",
    "privacy.epsilon=8",
    f"federation.num_clients={DEVICES}",
    "federation.public=400",
    "federation.num_rounds=2",
    "federation.round_timeout=300",  # seconds; who is silent is asked again after half of it
]


def main(folder: Path) -> Path:
    """Run two rounds over the devices; the run's folder, on the server's side."""
    with Federation(folder) as federation:
        export(folder / "data", WORDS, shards=True)  # each device's own file, and the public pool
        federation.start_link()
        for client in range(DEVICES):
            key = federation.enrol(client)
            federation.start_node(client, key, federation.device(client))
        wait_for(lambda: federation.online() == DEVICES, 300, "the devices")
        run = folder / "run"
        if federation.murmur(*federation.words, *WORDS, f"run_dir={run}").wait(1200):
            raise RuntimeError(federation.story())
    return run


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).absolute()
    run = main(folder)
    print((run / "privacy.txt").read_text())
    for client in range(DEVICES):  # what left each device is in its own, signed ledger
        with Ledger(folder / f"state-{client}" / "ledger.sqlite", create=False) as ledger:
            ledger.verify()
            print(f"device {client}: {ledger.releases()} releases charged, ledger verified")
