"""``murmur doctor device|server ...``: what is missing on this machine, and what to do about it.

A device is asked about with the words with which its two processes are started. ``murmur doctor run
KEY=VALUE ... --policy FILE`` tells before a run whether devices' policies would refuse it. The exit
status is 1 where anything fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import fl_app.console
from fl_app.config.errors import ConfigError
from fl_app.tools import checkup
from fl_app.tools.checkup import FAIL, OK, SOON, WARN, Check, attempt

_ISOLATED = "murmur supernode, and murmur device beside it: deploy/README.md"


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur doctor``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur doctor",
        description="What is missing on this machine, or would make devices' policies refuse a "
        "run, and what to do about it. The exit status is 1 where anything fails.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    device = kinds.add_parser("device", help="a machine that runs a SuperNode")
    device.add_argument("--node-config", default="", help="as given to murmur device")
    device.add_argument(
        "--auth-supernode-private-key", type=Path, help="as given to murmur supernode"
    )
    device.add_argument("--root-certificates", type=Path, help="as given to it: ca.pem")
    device.add_argument("--superlink", help="as given to it: HOST:PORT")
    device.add_argument("--isolation", help="process with murmur supernode")
    device.add_argument("--superexec-auth-secret-file", type=Path, help="as given to it")
    device.add_argument("--trusted-entities", type=Path, help="as given to it")
    server = kinds.add_parser("server", help="the machine of the SuperLink")
    server.add_argument("--ssl-ca-certfile", type=Path, required=True, help="ca.pem")
    server.add_argument("--ssl-certfile", type=Path, required=True, help="server.pem")
    server.add_argument("--ssl-keyfile", type=Path, required=True, help="server.key")
    server.add_argument("--results", type=Path, help="where runs' folders go")
    server.add_argument("--superlink", help="HOST:PORT under which it can be reached")
    run = kinds.add_parser("run", help="whether devices' policies would refuse a run")
    run.add_argument("words", nargs="*", metavar="KEY=VALUE", help="as given to murmur")
    run.add_argument("--policy", type=Path, action="append", default=[], help="a policy file")
    run.add_argument("--node-config", default="", help="on a device: as given to murmur device")
    arguments = parser.parse_args(argv)
    checks = list({"device": _device, "server": _server, "run": _run}[arguments.kind](arguments))
    show(checks)
    return int(any(check.status == FAIL for check in checks))


def show(checks: list[Check]) -> None:
    """Print the checks as a table."""
    from rich.table import Table
    from rich.text import Text

    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    table = Table("", "check", "found", "what to do")
    for check in checks:
        mark = Text(check.status, style=styles[check.status])
        advice = "" if check.status == OK else check.advice
        table.add_row(mark, check.name, check.found, advice)
    fl_app.console.console(highlight=False).print(table)


def _machine() -> Iterator[Check]:
    yield checkup.python_version()
    yield checkup.package("flwr", "1.41.")
    for name in ("torch", "hydra-core", "safetensors", "cryptography"):
        yield checkup.package(name)


def _server(arguments: argparse.Namespace) -> Iterator[Check]:
    yield from _machine()
    yield checkup.package("ray")
    authority, own, key = arguments.ssl_ca_certfile, arguments.ssl_certfile, arguments.ssl_keyfile
    again = "make them with deploy/certificates.sh"
    yield attempt("certificate authority", partial(checkup.certificate, authority), again)
    yield attempt("certificate", partial(checkup.certificate, own, authority), again)
    yield attempt("key", partial(checkup.private_key, key, own), again)
    if arguments.results is not None:
        results = partial(checkup.writable, "results", arguments.results)
        yield attempt("results", results, "choose another folder")
    yield checkup.disk(arguments.results or Path.cwd())
    if arguments.superlink:
        yield from checkup.superlink(arguments.superlink, authority)


def _device(arguments: argparse.Namespace) -> Iterator[Check]:
    from fl_app.device.node_settings import device_folder

    yield from _machine()
    yield from _sent_code(arguments)
    config = _node_config(arguments.node_config)
    yield attempt("policy", partial(policy, config), "see deploy/policy.example.yaml")
    folder = device_folder(config)
    yield attempt("state", partial(checkup.writable, "state", folder), "set state=FOLDER")
    yield attempt("ledger", partial(ledger, folder), "nothing leaves until it is whole again")
    yield from _data(config, folder)
    yield from _identities(config, folder)
    yield checkup.disk(folder)
    authority, key = arguments.root_certificates, arguments.auth_supernode_private_key
    if key is None:
        yield Check("key", WARN, "none given", "--auth-supernode-private-key FILE")
    else:
        yield attempt("key", partial(checkup.private_key, key), "make one: deploy/node-key.sh")
    if authority is not None:
        check = partial(checkup.certificate, authority)
        yield attempt("certificate authority", check, "get ca.pem from the server")
    if arguments.superlink and (authority is None or authority.exists()):
        yield from checkup.superlink(arguments.superlink, authority)


def _run(arguments: argparse.Namespace) -> Iterator[Check]:
    from fl_app.tools.policy_check import checks

    config = _node_config(arguments.node_config)
    if not arguments.policy and "policy" not in config:
        raise ConfigError("run: needs policies to ask: --policy FILE, or --node-config")
    return checks(arguments.words, arguments.policy, config)


def _sent_code(arguments: argparse.Namespace) -> Iterator[Check]:
    """Whether this device runs code that a server sends."""
    name, secret = "sent code", arguments.superexec_auth_secret_file
    if arguments.isolation == "process":
        yield Check(name, OK, "is not run: murmur device answers")
        if secret is None:
            found = "none: every account here can answer in this device's name"
            yield Check("secret", FAIL, found, "--superexec-auth-secret-file FILE, for both")
        else:
            advice = "make one: head -c 32 /dev/urandom > FILE, with umask 077"
            yield attempt("secret", partial(checkup.secret, secret), advice)
    elif arguments.trusted_entities is not None:
        yield Check(name, WARN, "is run where a trusted entity signed it", _ISOLATED)
    else:
        found = "is run: whoever starts a run can read the data, the policy and the keys"
        yield Check(name, FAIL, found, _ISOLATED)


def _node_config(text: str) -> dict[str, Any]:
    from click import ClickException
    from flwr.common.config import parse_config_args

    from fl_app.device.node_settings import DeviceError, OwnerSettings

    try:
        config = dict(parse_config_args([text] if text else None))
        OwnerSettings.of(config)
    except ClickException as error:
        raise ConfigError(f"--node-config={text}: {' '.join(error.message.split())}") from error
    except DeviceError as error:
        raise ConfigError(f"--node-config={text}: {error}") from error
    return config


def policy(config: dict[str, Any]) -> Check:
    """Whether the device's policy holds, and is nobody else's to change."""
    from murmur.privacy.policy import Policy

    if "policy" not in config:
        return Check("policy", FAIL, "none: everything is refused", "policy=PATH in node-config")
    path = Path(str(config["policy"])).expanduser()
    rules, now = Policy.load(path), datetime.now(UTC)
    rules.require_valid(now)
    check = checkup.not_writable_by_others("policy", path)
    left = (rules.expires - now).days
    if check.status == OK and left < SOON:
        return Check("policy", WARN, f"expires in {left} days", f"renew `expires` in {path}")
    return check if check.status == FAIL else Check("policy", OK, f"valid for {left} days")


def ledger(folder: Path) -> Check:
    """Whether the device's ledger is as it was written."""
    from murmur.privacy.ledger import Ledger

    path = folder / "ledger.sqlite"
    if not path.exists():
        return Check("ledger", OK, "none yet")
    with Ledger(path, create=False) as own:
        own.verify()
        return Check("ledger", OK, f"verified; clients {', '.join(own.clients()) or 'none'}")


def _data(config: dict[str, Any], folder: Path) -> Iterator[Check]:
    from fl_app.config.settings import DeviceTerms
    from fl_app.device.node_settings import OwnerSettings

    own = OwnerSettings.of(config)
    if not own.clients:
        yield Check("clients", FAIL, "none", "clients=ID in node-config")
    if own.data is None:
        yield Check("data", FAIL, "none", "data=PATH in node-config")
    elif own.shape is None or own.classes is None:
        yield Check("data", FAIL, "their form is not said", "shape= and classes= in node-config")
    else:
        classes = own.classes if isinstance(own.classes, int) else list(own.classes)
        terms = DeviceTerms(list(own.shape), classes)
        for client in own.clients:
            check = partial(_client_data, own, client, terms, folder / "cache")
            yield attempt(f"data of client {client}", check, "correct the file that is named")
    if own.public is not None:
        public = partial(_public, Path(own.public))
        yield attempt("public pool", public, "get public.npz from the server")


def _identities(config: dict[str, Any], folder: Path) -> Iterator[Check]:
    """By which public keys others can pin this device's clients; made here if need be."""
    from fl_app.device.node_settings import OwnerSettings
    from fl_app.device.secure_node import identity_file
    from murmur.secure_sum import identity_in, public_identity

    for client in OwnerSettings.of(config).clients:
        name = f"key of client {client} in secure sums"
        public = public_identity(identity_in(identity_file(folder, client)))
        yield Check(name, OK, f"{client} {public.hex()}")


def _client_data(own: Any, client: int, terms: Any, cache: Path) -> Check:
    from fl_app.device.data import load_own

    found = load_own(own.data.replace("{client}", str(client)), own, terms, cache)
    return Check(f"data of client {client}", OK, f"{len(found)} examples")


def _public(file: Path) -> Check:
    from murmur.learning.data.files import read_npz

    return Check("public pool", OK, f"{len(read_npz(file.expanduser())['images'])} images")
