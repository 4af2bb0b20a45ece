"""``murmur ledger``: what the clients of this device have released, and whether it still adds up.

``show`` lists the clients with what each has spent (with ``--policy`` also what is left of it), or
one client's releases; ``verify`` reads everything and says which entry is wrong, if one is;
``export`` writes all of it, signed, for ``deploy/verify_ledger.py``; ``receipt`` prints what the
clients would give of a run, unsigned. Exit status: 1 where a ledger cannot be trusted.

Nothing here writes into a ledger. What a policy counts is asked of the policy itself, so that the
table says what its refusals will rest on.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import fl_app.console
from fl_app.config.errors import nearest
from fl_app.tools.options import parser_of
from murmur.files import owner_only
from murmur.format import format_number, pluralize, printable
from murmur.privacy.accounting import Threat, UnsupportedEventError, epsilon
from murmur.privacy.closing import Closing, Receipts
from murmur.privacy.events import Event, describe, releases
from murmur.privacy.ledger import Ledger, LedgerError
from murmur.privacy.ledger.export import write_csv, write_json
from murmur.privacy.neighbours import common
from murmur.privacy.policy import Policy
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import THREATS, against
from murmur.secure_sum.identity import PinnedPeers, read_peers

# A ledger holds what left its client: whoever reads that knows the most.
_AGAINST = f"against {THREATS[Threat.LOCAL]}"


def main(argv: list[str]) -> int:
    """Show, verify or export the ledger that ``argv`` names.

    Returns:
        0, or 1 where the ledger or the policy cannot be read or trusted.
    """
    options = parser_of("ledger").parse_args(argv)
    try:
        policy = _policy(options.policy)
        expected = None
        if policy is not None:
            expected = policy.ledger
        with Ledger(options.path, create=False, expected=expected) as ledger:
            if options.client is not None and options.client not in ledger.clients():
                known = nearest(options.client, ledger.clients() or ["none"])
                raise LedgerError(f"client {options.client}: has released nothing; {known}")
            if options.action == "verify":
                _verify(ledger, options.json)
            elif options.action == "export":
                _export(ledger, options.to)
            elif options.action == "receipt":
                _draft(ledger, options)
            else:
                if not options.json and (said := _beside_card(options.path)):
                    print(printable(said))
                if options.client is None:
                    _show_clients(ledger, options, policy)
                else:
                    _show_releases(ledger, options)
    except LedgerError as error:
        if options.json:
            print(json.dumps({"intact": False, "reason": str(error)}))
        else:
            print(f"murmur ledger: {printable(error)}", file=sys.stderr)
        return 1
    return 0


def _beside_card(path: Path) -> str | None:
    """Why ε in a run's ledger is another one than on the run's card; None where it is the same.

    A ledger holds what left its client, so that its ε rests on nobody else; a card states that
    against the adversary of the run's budget.

    Args:
        path: of the ledger, beside which the run's statement is.
    """
    try:
        statement = Statement.from_dict(json.loads((path.parent / "privacy.json").read_text()))
    except (OSError, ValueError):
        return None  # a device's, or of a run that is not over
    first = statement.guarantees[0]
    if statement.doubts or first.stated == first.proven_total:
        return None
    whom = against(first.adversary, first.assumptions)
    return (
        f"ε here is {_AGAINST}, whatever others do; the run's card promises "
        f"ε = {_number(_finite(first.stated))} against {whom}"
    )


def _draft(ledger: Ledger, options: argparse.Namespace) -> None:
    """Print the receipts of a run as JSON, as they would be now, or as they are where it is closed.

    Raises:
        LedgerError: the run has none.
    """
    runs = sorted({entry.run for entry in ledger.entries() if entry.kind == "charge"})
    if options.run not in runs:
        raise LedgerError(f"--run {options.run}: nothing was charged for it; {', '.join(runs)}")
    charges = [entry for entry in ledger.entries(run=options.run) if entry.kind == "charge"]
    charged = {client for entry in charges for client in entry.clients}
    clients = [name for name in ledger.clients() if name in charged]
    peers = "seen"
    try:
        if options.peers is not None:
            peers = PinnedPeers(read_peers(options.peers)).rule
        body = ledger.closing(options.run)
        closing = Closing(tuple(clients), peers) if body is None else Closing.from_text(body)
        drafts = Receipts(ledger, options.path.parent).draft(options.run, closing)
    except (ValueError, OSError) as error:
        raise LedgerError(f"no receipt: {error}") from error
    found = [draft.to_predicate() for draft in drafts if options.client in (None, draft.client)]
    print(json.dumps(found, indent=1))


@dataclass
class _Life:
    """Releases of one client in the ledger, without their cost.

    Attributes:
        first, last: times of its first and its newest release, in UTC.
        releases: how many there were.
        runs: the names of the runs that they were for.
    """

    first: str
    last: str = ""
    releases: int = 0
    runs: set[str] = field(default_factory=set)


def _policy(path: Path | None) -> Policy | None:
    """The owner's policy, if one is named.

    Raises:
        LedgerError: the file is no policy, or is not valid.
    """
    if path is None:
        return None
    policy = Policy.load(path)
    if policy.defect is not None:
        raise LedgerError(f"{policy.source} is not valid: {policy.defect}")
    return policy


def _export(ledger: Ledger, to: Path | None) -> None:
    """Write all of a ledger that verifies to a file that only its owner can read.

    Args:
        ledger: whose entries, with their hashes, are signed by its own key.
        to: a .csv or .json file, which is replaced.

    Raises:
        LedgerError: no file is named, or an entry is wrong.
    """
    if to is None:
        raise LedgerError("export needs --to FILE, a .csv or .json file")
    ledger.verify()
    write = write_csv
    if to.suffix == ".json":
        write = write_json
    with open(to, "w", encoding="utf-8", newline="", opener=owner_only) as file:
        write(ledger, file, datetime.now(UTC))
    print(f"{to}: signed; check it with deploy/verify_ledger.py {to} --id {ledger.id}")


def _verify(ledger: Ledger, as_json: bool) -> None:
    """Read every entry, and print how much there is.

    Raises:
        LedgerError: names the entry that is wrong.
    """
    ledger.verify()
    clients = len(ledger.clients())
    releases = ledger.releases()
    if as_json:
        counts = {"clients": clients, "releases": releases}
        print(json.dumps({"intact": True, "id": ledger.id, **counts}))
    else:
        whose = pluralize(clients, "client")
        print(f"{ledger.path}: intact; {pluralize(releases, 'release')} by {whose}")


def _show_clients(ledger: Ledger, options: argparse.Namespace, policy: Policy | None) -> None:
    """Print what each client has released and spent, as a table or as JSON.

    ``options``: the δ at which ε is shown, and whether as JSON. ``policy``: what is left of it is
    shown as well; None: nothing of that.
    """
    lives: dict[str, _Life] = {}
    for entry in ledger.entries():
        for client in entry.clients:
            life = lives.setdefault(client, _Life(first=entry.time))
            life.last = entry.time
            life.releases += 1
            life.runs.add(entry.run)
    rows = [
        {
            "client": client,
            "releases": lives[client].releases,
            "runs": len(lives[client].runs),
            "first": lives[client].first,
            "last": lives[client].last,
            **_protected(ledger.spent(client)),
            "epsilon": _spent(ledger, client, options.delta),
            **_left(ledger.spent(client), policy),
        }
        for client in ledger.clients()
    ]
    if options.json:
        about = {"id": ledger.id, "key": ledger.header.key, "delta": options.delta}
        print(json.dumps({**about, "clients": rows}))
        return
    _print_table(
        f"charged to each client, at delta={options.delta:g}, {_AGAINST} (times in UTC)", rows
    )
    if policy is not None:
        print(
            f"counted as {options.policy} does (delta={policy.delta:g}, {policy.threat}); left of "
            f"epsilon_per_lifetime={policy.epsilon_per_lifetime:g} until {policy.expires:%Y-%m-%d}"
        )
    for line in _runs(ledger):
        print(printable(line))
    print(f"ledger {ledger.id}, begun {ledger.header.created[:10]}, key {ledger.header.key}")


def _runs(ledger: Ledger) -> list[str]:
    """A line for each run of which more is known than its charges: who signed it, what is shown."""
    found: dict[str, dict[str, str]] = {}
    kept: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in ledger.entries():
        kept[entry.run][entry.kind] += 1
        if entry.kind == "run":
            found.setdefault(entry.run, {})["header"] = entry.request
        elif entry.kind == "closed":
            found.setdefault(entry.run, {})["closed"] = entry.time
    lines = []
    for run, about in found.items():
        signed = ledger.run_header(run)
        whose = "no header" if signed is None else f"server {signed.header.server}"
        line = f"run {run}: {whose}, {pluralize(kept[run]['question'], 'question')}"
        if kept[run]["confirmed"]:
            line += f", {pluralize(kept[run]['confirmed'], 'confirmation')} of secure sums"
        if "header" in about:
            line += f", header {about['header']}"
        if "closed" in about:
            line += f", closed {about['closed'][:10]}"
        lines.append(line)
    return lines


def _show_releases(ledger: Ledger, options: argparse.Namespace) -> None:
    """Print one client's releases in their order, as a table or as JSON.

    ``options``: the client, the δ at which ε is shown, and whether as JSON.
    """
    spent = _spent(ledger, options.client, options.delta)
    rows: list[dict[str, object]] = []
    for entry in ledger.entries(options.client):
        row = {
            "entry": entry.position,
            "time": entry.time,
            "run": entry.run,
            "round": entry.round,
            "purpose": entry.purpose,
        }
        if options.json:
            rows.append({**row, "event": entry.event.to_dict()})
        else:
            rows.append({**row, "release": describe(entry.event)})
    if options.json:
        about = {"client": options.client, "delta": options.delta, "epsilon": spent}
        about |= _protected(ledger.spent(options.client))
        print(json.dumps({**about, "releases": rows}))
        return
    releases = pluralize(len(rows), "release")
    _print_table(
        f"client {options.client}: {releases}, together epsilon={_number(spent)} at "
        f"delta={options.delta:g}, {_AGAINST}",
        rows,
    )


def _protected(spent: Event) -> dict[str, str]:
    """The unit and the neighbours that all of ``spent`` covers: those that its ε is for."""
    found = common(release.neighbours for release in releases(spent))
    return {"unit": found.unit.value, "adjacency": found.adjacency.value}


def _spent(ledger: Ledger, client: str, delta: float) -> float | str | None:
    """The proven ε of all that ``client`` has released, for whom ``_protected`` says.

    Returns:
        None where it is infinite, "unsupported" where an event cannot be accounted for.
    """
    try:
        spend = epsilon(ledger.spent(client), delta, Threat.LOCAL).epsilon
    except UnsupportedEventError:
        return "unsupported"
    return _finite(spend)


def _left(spent: Event, policy: Policy | None) -> dict[str, float | str | None]:
    """Returns the ε that the policy counts of ``spent``, and the ε that it still allows.

    An unsupported event or an infinite ε leaves nothing.

    Returns:
        ``pluralize`` and ``left``, of which None is infinite; {} without a policy.
    """
    if policy is None:
        return {}
    try:
        pluralize = policy.spend(spent)
    except UnsupportedEventError:
        return {"counted": "unsupported", "left": 0.0}
    left = 0.0
    if pluralize < math.inf:
        left = max(0.0, policy.epsilon_per_lifetime - pluralize)
    return {"counted": _finite(pluralize), "left": _finite(left)}


def _finite(spend: float) -> float | None:
    """``spend`` as JSON can hold it; None where it is infinite."""
    if spend == math.inf:
        return None
    return spend


def _number(value: float | str | None, up: bool = True) -> str:
    """An ε for people: "infinite" for None, and a word as it is; ``up``: of ``format_number``."""
    if value is None:
        return "infinite"
    if isinstance(value, str):
        return value
    return format_number(value, up)


def _minute(time: object) -> str:
    """A time of an entry (ISO 8601, UTC) to the minute."""
    return str(time)[:16].replace("T", " ")


_SHOWN: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("first", "last", "time"), _minute),
    **dict.fromkeys(("epsilon", "counted"), _number),
    "left": partial(_number, up=False),
}
"""How columns of a table are shown that are not shown as they are."""


def _print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print ``rows``, which all have the same columns, below ``title``.

    Runs, purposes and events may be a server's words: nothing of them moves the cursor.
    """
    from rich.table import Table
    from rich.text import Text

    console = fl_app.console.console(highlight=False)
    if not rows:
        console.print(Text(f"{title}: nothing"))
        return
    console.print(Text(title))
    table = Table()
    for name, value in rows[0].items():
        is_text = isinstance(value, str) and _SHOWN.get(name) is not _number
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        cells = (_SHOWN.get(name, str)(value) for name, value in row.items())
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)
