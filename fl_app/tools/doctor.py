"""``murmur doctor device|guard|server ...``: what is missing on this machine, and what to do.

A device is asked about with the words with which its two processes are started; ``guard`` is one
that runs foreign apps. ``murmur doctor run KEY=VALUE ... --policy FILE`` tells before a run whether
devices' policies would refuse it (``policy_check``). The exit status is 1 where anything fails.

A check is a function that returns a ``Check``; whatever it raises is a failure too (``attempt``).
First the commands, then what they ask of a device, then checks of a machine. Certificates, keys and
addresses are Flower's: `flower-superlink` and `flower-supernode` refuse what does not fit.
"""

import argparse
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fl_app.console
from fl_app.config.errors import ConfigError
from fl_app.device.checks import FAIL, OK, WARN, Check, attempt, policy_file
from fl_app.packages import load_entry
from fl_app.tools.options import parser_of
from murmur.compat import FLOWER
from murmur.privacy.ledger import Ledger

if TYPE_CHECKING:
    from fl_app.device.data import OwnData
    from fl_app.device.node_settings import OwnerSettings

MIN_DISK_BYTES = 200 * 2**20  # bytes: too little
SMALL_DISK = 2**30  # bytes: little
MIN_SECRET_BYTES = 16  # bytes
_OTHERS = stat.S_IRWXG | stat.S_IRWXO  # any right of anybody but the owner
_ISOLATED = "murmur supernode, and murmur device beside it: deploy/README.md"
_SECRET = "make one: head -c 32 /dev/urandom > FILE, with umask 077"


def main(argv: list[str]) -> int:
    """Make the checks that ``argv`` asks for, and print them.

    Returns:
        1 where one of them fails, else 0.

    Raises:
        ConfigError: the node-config, the settings of a run or a policy's file are wrong.
    """
    arguments = parser_of("doctor").parse_args(argv)
    kinds = {"device": _device, "guard": _guard, "server": _server, "run": _run}
    checks = list(kinds[arguments.kind](arguments))
    show(checks)
    return int(any(check.status == FAIL for check in checks))


def show(checks: Sequence[Check]) -> None:
    """Print the checks as a table, and data cards below; what they have found is no markup."""
    from rich.table import Table
    from rich.text import Text

    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    table = Table("", "check", "found", "what to do")
    for check in checks:
        advice = check.advice
        if check.status == OK:
            advice = ""
        mark = Text(check.status, style=styles[check.status])
        table.add_row(mark, check.name, check.found, advice)
    console = fl_app.console.console(highlight=False)
    console.print(table)
    for check in checks:
        if check.card is not None:
            console.print(f"{check.name}:", *check.card.lines(console.width), sep="\n")


def _server(arguments: argparse.Namespace) -> Iterator[Check]:
    """Checks of the SuperLink's machine: packages, and room for results."""
    yield from _machine()
    yield package("ray")
    if arguments.results is not None:
        yield attempt("results", "choose another folder", writable, "results", arguments.results)
    yield disk(arguments.results or Path.cwd())


def _device(arguments: argparse.Namespace) -> Iterator[Check]:
    """Checks of a device: packages, whose code runs, policy, ledger, data, keys of secure sums.

    It reads what the device would read, and writes nothing but a state folder, a ledger and keys
    that are missing.
    """
    from fl_app.device.node_settings import OwnerSettings, device_folder

    yield from _machine()
    yield from _sent_code(arguments)
    config = _node_config(arguments.node_config)
    yield attempt("policy", "see deploy/policy.example.yaml", policy, config)
    folder = device_folder(config)
    yield attempt("state", "set state=FOLDER", writable, "state", folder)
    yield attempt("ledger", "nothing leaves until it is whole again", ledger, folder)
    own = OwnerSettings.of(config)
    yield from _data(own, folder)
    yield from _identities(own.clients, folder)
    yield disk(folder)


def _guard(arguments: argparse.Namespace) -> Iterator[Check]:
    """Checks of a device that runs foreign apps: what locks them in, and its policy."""
    folder = arguments.device.expanduser().absolute()
    yield package("flwr", FLOWER)
    yield from load_entry("murmur.tools", "doctor-guard", "murmur-guard")(folder, arguments.run)
    yield attempt("ledger", "nothing leaves until it is whole again", ledger, folder)
    yield disk(folder)
    yield attempt("secret", _SECRET, secret, arguments.superexec_auth_secret_file)


def _run(arguments: argparse.Namespace) -> Iterator[Check]:
    """Checks of a run that is planned (``policy_check.checks``).

    Raises:
        ConfigError: no policy is named.
    """
    from fl_app.tools.policy_check import checks

    config = _node_config(arguments.node_config)
    if not arguments.policy and "policy" not in config:
        raise ConfigError("run: needs policies to ask: --policy FILE, or --node-config")
    return checks(arguments.words, arguments.policy, config)


def _machine() -> Iterator[Check]:
    """Checks that the packages that every client needs are installed."""
    yield package("flwr", FLOWER)
    for name in ("torch", "hydra-core", "safetensors", "cryptography"):
        yield package(name)


def _node_config(text: str) -> dict[str, Any]:
    """A device's node-config as a mapping.

    Raises:
        ConfigError: Flower or the device would refuse it.
    """
    from fl_app.device.command import pairs_in
    from fl_app.device.node_settings import DeviceError, NodeSettings

    try:
        config = pairs_in(text)
        NodeSettings.device(config, "")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except DeviceError as error:
        raise ConfigError(f"--node-config={text}: {error}") from error
    return config


def _sent_code(arguments: argparse.Namespace) -> Iterator[Check]:
    """Checks whether this device runs code sent by a server, and its secret if it does not.

    ``arguments``: as given to `murmur supernode`.
    """
    name = "sent code"
    if arguments.isolation == "process":
        yield Check(name, OK, "is not run: murmur device answers")
        yield attempt("secret", _SECRET, secret, arguments.superexec_auth_secret_file)
    elif arguments.trusted_entities is not None:
        yield Check(name, WARN, "is run where a trusted entity signed it", _ISOLATED)
    else:
        found = "is run: whoever starts a run can read the data, the policy and the keys"
        yield Check(name, FAIL, found, _ISOLATED)


def policy(config: Mapping[str, Any]) -> Check:
    """Checks that the device's policy is valid and that only its owner can change it.

    Args:
        config: the device's node-config.

    Raises:
        LedgerError, OSError: the policy cannot be read, or does not hold now.
    """
    if "policy" not in config:
        return Check("policy", FAIL, "none: everything is refused", "policy=PATH in node-config")
    return policy_file(Path(str(config["policy"])).expanduser())


def ledger(folder: Path) -> Check:
    """Verifies the ledger in the device's ``folder``, which is begun here if need be.

    Raises:
        LedgerError: an entry is not.
    """
    with Ledger(folder / "ledger.sqlite") as own:
        own.verify()
        clients = ", ".join(own.clients()) or "none"
        return Check("ledger", OK, f"verified; clients {clients}; key {own.header.key}")


def _data(own: "OwnerSettings", folder: Path) -> Iterator[Check]:
    """Each client's data, read as the device would read them, and the public pool.

    Args:
        own: the owner's words.
        folder: the device's; what is read is kept in its cache, as in a run.
    """
    from fl_app.device.data import OwnData, device_population, schema_of, terms_of
    from fl_app.device.node_settings import DeviceError

    if not own.clients:
        yield Check("clients", FAIL, "none", "clients=ID in node-config")
    try:
        terms = terms_of(own)
        device_population(own, terms)
    except (DeviceError, ValueError) as error:
        yield Check("data", FAIL, str(error), "see deploy/README.md")
    else:
        data = OwnData(own, terms, folder, schema=schema_of(own))
        for client in own.clients:
            advice = "correct the file that is named"
            yield attempt(f"data of client {client}", advice, _client_data, data, client)
    if own.public is not None:
        advice = "get public.npz from the server"
        yield attempt("public pool", advice, _public, Path(own.public))


def _client_data(data: "OwnData", client: int) -> Check:
    """How many examples a client has, read as for a run, and their card.

    A warning names rows that count as blank, and what makes a researcher's reader refuse the whole.
    DataError where the data do not fit as a whole.
    """
    from fl_app.device.data import in_short
    from fl_app.run.data_card import card_of_own
    from murmur.learning.data.examples import DataError

    name = f"data of client {client}"
    found = data.look(client)
    count = len(found.train)
    card = card_of_own(found, data.place(client))
    if found.blanks:
        said = in_short(found.blanks, count)
        return Check(name, WARN, said, "correct the rows that are named", card)
    try:
        data.read(client, blanks=False)
    except (DataError, ValueError) as error:
        return Check(name, WARN, f"{count} examples; {error}", "correct what is named", card)
    return Check(name, OK, f"{count} examples", card=card)


def _public(file: Path) -> Check:
    """How many images the public pool holds; DataError where the file is none."""
    from murmur.learning.data.npz_arrays import read_npz

    return Check("public pool", OK, f"{len(read_npz(file.expanduser())['images'])} images")


def _identities(clients: Sequence[int], folder: Path) -> Iterator[Check]:
    """By which public keys others can pin this device's clients; made here if need be.

    Args:
        clients: of the device.
        folder: where their keys lie.
    """
    from murmur.round.site import identity_file
    from murmur.secure_sum.identity import identity_in, public_identity

    for client in clients:
        name = f"key of client {client} in secure sums"
        public = public_identity(identity_in(identity_file(folder, client)))
        yield Check(name, OK, f"{client} {public.hex()}")


def package(name: str, versions: tuple[str, ...] = ()) -> Check:
    """Checks that a package is installed, in a version that will do.

    Args:
        name: of the distribution.
        versions: those that will do, such as "1.41"; empty: any.
    """
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, FAIL, "not installed", f"pip install {name}")
    if not versions or found.startswith(tuple(f"{each}." for each in versions)):
        return Check(name, OK, found)
    return Check(name, FAIL, found, f"pip install '{name}=={versions[-1]}.*'")


def disk(folder: Path) -> Check:
    """Checks that there is disk space for ledger, state and results.

    Args:
        folder: where they go; it need not exist.
    """
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / 2**30:.1f} GiB free at {place}"
    if free < MIN_DISK_BYTES:
        return Check("disk", FAIL, found, "make room: a ledger that cannot be written stops all")
    if free < SMALL_DISK:
        return Check("disk", WARN, found)
    return Check("disk", OK, found)


def writable(name: str, folder: Path) -> Check:
    """Checks that this user can write into ``folder``, which is made where it is missing.

    ``name``: of the check.
    """
    folder.expanduser().mkdir(parents=True, exist_ok=True)
    if os.access(folder.expanduser(), os.W_OK):
        return Check(name, OK, str(folder))
    return Check(name, FAIL, f"{folder} cannot be written", "chown it to this user")


def secret(file: Path | None) -> Check:
    """Checks that there is a secret that only its owner can read and that cannot be guessed.

    `murmur supernode` and `murmur device` authenticate each other by it.
    """
    if file is None:
        found = "none: every account here can answer in this device's name"
        return Check("secret", FAIL, found, "--superexec-auth-secret-file FILE, for both")
    mode = file.stat().st_mode
    if mode & _OTHERS:
        found = f"others may read it ({stat.filemode(mode)})"
        return Check("secret", FAIL, found, f"chmod 600 {file}")
    size = file.stat().st_size
    if size < MIN_SECRET_BYTES:
        advice = f"head -c 32 /dev/urandom > {file}"
        return Check("secret", FAIL, f"{size} bytes: can be guessed", advice)
    return Check("secret", OK, "readable by its owner only")
