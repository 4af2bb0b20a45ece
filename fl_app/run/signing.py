"""The run's header and the key that signs it, as the server of a run has them.

A device refuses a second header of a run, so the first one lies in the run's folder before anybody
is asked, and a resumed run goes on under it.
"""

from collections.abc import Sequence
from pathlib import Path

from fl_app.config.client_half import settings_of
from fl_app.config.errors import ConfigError
from fl_app.config.settings import FederationSettings
from fl_app.run.validated import ValidatedRun
from murmur.files import replace_file
from murmur.privacy.roster import Roster
from murmur.privacy.run_header import RunHeader, ServerKey
from murmur.round.signed import QuestionSigner

HEADER = "header.json"
KEY = "server.key"
MAX_NAMES = 10  # of a list in an error


def signer_of(run: ValidatedRun, name: str) -> QuestionSigner | None:
    """Signer of the questions of ``run``; None on devices where no key is configured.

    Args:
        run: with a folder.
        name: the run's, for people.

    Raises:
        ConfigError: the key's file holds none, the roster is not that of the run's clients or
            nobody signs it, or the header in the folder is damaged.
    """
    key = _key(run)
    if key is None:
        if run.federation.roster is not None:
            raise ConfigError(
                f"federation.roster={run.federation.roster}: needs federation.server_key=FILE, "
                "which signs its digest"
            )
        return None
    header = header_of(run, name, key)
    path = run.folder.path / HEADER
    if path.exists():
        try:
            kept = RunHeader.read(path.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; start the run anew") from error
        if kept.is_same_plan(header):  # else the run was extended
            header = kept
    replace_file(path, header.to_bytes())
    return QuestionSigner(key, header)


def header_of(run: ValidatedRun, name: str, key: ServerKey) -> RunHeader:
    """Returns a new header of ``run``, with random bits of its own."""
    strategy = run.strategy
    budget = strategy.setup.budget
    cohorts = strategy.setup.cohorts
    return RunHeader(
        name=name,
        server=key.public_key,
        algorithm=str(run.config.strategy.name),
        unit=strategy.unit,
        adjacency=strategy.adjacency,
        delta=float(budget.delta),
        threat=budget.threat,
        schedule={
            "kind": cohorts.kind,
            "clients": cohorts.clients,
            "cohort": cohorts.size,
            "rounds": cohorts.rounds,
        },
        secret=cohorts.kind == "poisson",
        phases=tuple(strategy.rounds.planned_phases(run.clients.client.purposes)),
        settings=settings_of(run.config),
        roster=_roster(run.federation),
        successions=key.successions,
    )


def _roster(federation: FederationSettings) -> str | None:
    """Digest of the configured roster; ConfigError where it does not name the run's clients."""
    path = federation.roster
    if path is None:
        return None
    try:
        roster = Roster.load(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"federation.roster={path}: {error}; each line has NAME SUM_KEY LEDGER_KEY OWNER"
        ) from error
    count = federation.num_clients
    clients = dict.fromkeys(map(str, range(count)))
    missing = [name for name in clients if name not in roster.by_name]
    others = [name for name in roster.by_name if name not in clients]
    if missing or others:
        raise ConfigError(
            f"federation.roster={path}: must name the run's clients, 0 to {count - 1}: it lacks "
            f"{_listed(missing)} and has {_listed(others)} beside them; correct the file, or "
            f"federation.num_clients={count}"
        )
    return roster.digest


def _listed(names: Sequence[str]) -> str:
    """The first of ``names``, and how many others there are."""
    shown = ", ".join(names[:MAX_NAMES]) or "none"
    if len(names) > MAX_NAMES:
        shown += f" and {len(names) - MAX_NAMES} more"
    return shown


def _key(run: ValidatedRun) -> ServerKey | None:
    """The configured key; a simulation has one in its folder where none is."""
    named = run.federation.server_key
    if named is not None:
        try:
            return ServerKey.load(named)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"federation.server_key={named}: {error}; `murmur server-key {named}` makes one"
            ) from error
    if run.federation.devices is not None:
        return None
    path = Path(run.folder.path / KEY)
    if not path.exists():
        ServerKey.generate().save(path)
    return ServerKey.load(path)
