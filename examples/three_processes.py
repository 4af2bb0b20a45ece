"""A federation of separate processes on this machine: a server and three devices, with TLS.

    python -m examples.three_processes [FOLDER]      (in the project's folder)

Everything is as on real machines (`deploy/README.md`): certificates, a SuperLink that admits
enrolled nodes only, a key for each device, an owner's policy and ledger on each, and data that the
server never sees. Beside each device runs Flower's SuperNode, which speaks to the server. It takes
a minute or two. In the end each device's owner compares the server's signed statement with the
device's ledger, and then one that a lying server has signed, which leaves a round out. Whoever has
the owners' roster compares both with the receipts of all three.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from fl_app.cli import main as murmur
from fl_app.tools.export import export
from murmur.privacy.ledger import Ledger
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.run_header import ServerKey
from murmur.round.statement_file import FILE, read_envelope, read_statement
from tests.federation.loopback import POLICY, Federation, wait_for

DEVICES = 3
KEY = "asking.key"  # signs what the server asks
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
        key = ServerKey.generate()
        key.save(folder / KEY)
        policy = POLICY.replace("servers: any", f"servers: [{key.public_key}]\nreceipts: run")
        export(folder / "data", WORDS, shards=True)  # each device's own file, and the public pool
        federation.start_link()
        for client in range(DEVICES):
            node_key = federation.enrol(client)
            federation.start_node(client, node_key, federation.device(client, policy))
        wait_for(lambda: federation.online() == DEVICES, 300, "the devices")
        run = folder / "run"
        words = [*federation.words, *WORDS, f"federation.server_key={folder / KEY}"]
        if federation.murmur(*words, f"run_dir={run}").wait(1200):
            raise RuntimeError(federation.story())
    return run


def write_roster(folder: Path) -> Path:
    """The owners' list of who takes part, with the key of each device's ledger; the file."""
    lines = []
    for client in range(DEVICES):
        key = (folder / f"state-{client}" / "ledger.sqlite.key").read_bytes()
        lines.append(f"{client} - {LedgerSigner.from_pem(key).public_key} clinic {client}\n")
    path = folder / "roster.txt"
    path.write_text("".join(lines))
    return path


def understate(run: Path, key: ServerKey) -> Path:
    """A statement of the run that its server has signed without the last round; the file."""
    path = run / FILE
    statement = read_statement(read_envelope(path.read_bytes()), key.public_key)
    figures = [
        replace(each, proven_total=each.proven_per_round) for each in statement.privacy.guarantees
    ]
    lie = replace(
        statement,
        questions=tuple(one for one in statement.questions if one.round == 1),
        privacy=replace(statement.privacy, guarantees=tuple(figures)),
    )
    false = run / "understated.json"
    false.write_bytes(lie.signed(key).to_bytes())
    return false


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).absolute()
    run = main(folder)
    print((run / "privacy.txt").read_text())
    for client in range(DEVICES):  # what left each device is in its own, signed ledger
        with Ledger(folder / f"state-{client}" / "ledger.sqlite", create=False) as ledger:
            ledger.verify()
            print(f"device {client}: {ledger.releases()} releases charged, ledger verified")
    false = understate(run, ServerKey.load(folder / KEY))
    for path in (run / FILE, false):
        for client in range(DEVICES):  # an owner alone
            print(f"device {client}, {path.name}:", flush=True)
            murmur(["verify", str(path), "--mine", "--state", str(folder / f"state-{client}")])
        print(f"everybody's receipts, {path.name}:", flush=True)
        murmur(["verify", str(path), "--roster", str(write_roster(folder))])
