"""The site: where clients live, and what leaves it beside their releases.

A site says in which folder ledger, state and keys lie, under which policy clients answer, and what
a server hears of a refusal. A simulation's site is a run's folder, a device's its owner's.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

from murmur.learning.data.examples import LocalData
from murmur.privacy.policy import Policy
from murmur.round.task import REFUSED, in_words, log_error
from murmur.secure_sum.identity import identity_in, identity_of

SUMS = "secure_sum"  # the folder of what a secure sum needs


@dataclass(frozen=True)
class Site(ABC):
    """Where clients live, and what leaves it beside their releases.

    Attributes:
        folder: Folder of the ledger, the clients' state and the log of errors.
        run: The run's name in the ledger.
        policy: What the owner lets out.
        free_reports: Whether a report that costs nothing may leave, as to the researcher of a
            simulation.
        in_blocks: Whether the ledger has one entry for many clients that are charged alike, and
            the policy is asked once for all of them that have spent the same.
    """

    folder: Path
    run: str
    policy: Policy
    free_reports: bool = field(default=False, kw_only=True)
    in_blocks: ClassVar[bool] = False

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """The folder of what clients remember from round to round, of this run only."""

    @abstractmethod
    def reason(self, about: str, error: Exception) -> str:
        """Returns the reason for a refusal as the server hears it; writes the error to the own log.

        ``about``: the round and the client, for the log.
        """

    @abstractmethod
    def identity(self, client: int) -> bytes:
        """The long-term private key of ``client`` in secure sums, made where there is none."""


@dataclass(frozen=True)
class SimulatedSite(Site):
    """Virtual clients of one run in its folder: its server is the researcher's, who is told why.

    Attributes:
        policy: What a trial is held to; without one all is allowed, and counted all the same.
        free_reports: True unless the trial is to behave as a device with this policy.
    """

    free_reports: bool = field(default=True, kw_only=True)
    in_blocks: ClassVar[bool] = True

    @classmethod
    def of(cls, folder: Path, policy: str | None = None, run: str | None = None) -> SimulatedSite:
        """Returns the site of the run in ``folder``.

        ``policy``: a file, as if a device had this one; None allows all. ``run``: the name in the
        ledger, by default the folder's.
        """
        rules = Policy.simulation()
        if policy is not None:
            rules = Policy.load(policy)
        return cls(folder, run or folder.name, rules, free_reports=policy is None)

    @property
    def state_dir(self) -> Path:
        """The folder is one run's already."""
        return self.folder / "clients"

    def reason(self, about: str, error: Exception) -> str:
        """The error itself."""
        log_error(self.folder, about, error)
        return in_words(error)

    def identity(self, client: int) -> bytes:
        """From the one key of all that live here."""
        return identity_of(self._identity, client)

    @cached_property
    def _identity(self) -> bytes:
        """That key."""
        return identity_in(secure_folder(self.folder) / "identity.key")


@dataclass(frozen=True)
class DeviceSite(Site):
    """A device: its server hears one sentence of whatever goes wrong, and no report is free.

    Attributes:
        folder: The device's own, for all runs together: one ledger counts a client's whole life.
        run: The run's name, in a server's words.
        policy: The owner's. One that is missing or cannot be read refuses everything.
    """

    @property
    def state_dir(self) -> Path:
        """The state's folder, hashed: a run's name comes from the server and must not be a path."""
        return self.folder / "clients" / hashlib.sha256(self.run.encode()).hexdigest()

    def reason(self, about: str, error: Exception) -> str:
        """Always the same words: others would tell of data, or of the owner's files."""
        log_error(self.folder, about, error)
        return REFUSED

    def identity(self, client: int) -> bytes:
        """Its own file, whose public half others may have pinned."""
        return identity_in(identity_file(self.folder, client))


class Data(Protocol):
    """The data of the clients that live here.

    On a device opened once an owner's policy has admitted a release and before it is charged. In a
    simulation they are open.
    """

    def of(self, client: int) -> LocalData:
        """Returns the client's data. Any exception counts as a refusal.

        On a device none may follow from the data: a record that cannot be read is a blank one, and
        all are where nothing can be read.
        """

    def blank(self, client: int) -> LocalData | None:
        """With what a charged client answers where its own data cannot be trained on.

        Whether a device answers must not depend on its data. None: it is refused then, which only a
        simulation may do.
        """


def secure_folder(folder: Path) -> Path:
    """Where the long-term keys of a site's clients are, and which sums these have joined."""
    return folder / "clients" / SUMS


def identity_file(folder: Path, client: int) -> Path:
    """Where the long-term key of ``client`` lies."""
    return secure_folder(folder) / f"{client}.key"
