"""The host: what answers a server's message for the clients that live in one place.

One message asks for any number of clients, and the file reads in the order in which it is answered:

1. *parse*: the message, which may be hostile, becomes one ``Task`` for each client it names.
2. *admit*: the owner's policy says whether a client may answer, its data are opened, and what the
   answer costs is charged in the ledger, durably.
3. *train* and *privatize*: local computation, whose result never leaves, and the mechanism.
4. *collect*: the releases are summed, put side by side, or masked for a secure sum.
5. *seal*: the reply is stored in the ledger, and only what is stored leaves. The same message gets
   the same bytes again, and nothing is trained or charged twice.

A client that refuses or fails is reported by id and reason, and costs the round nothing else. On a
device a charge is followed by an answer, whatever the data do to the training: a refusal never
follows from what lies in a file.

The host is given values and builds nothing. ``fl_app.run.hosts`` and ``fl_app.device.hosts`` build
it from a configuration; a device and a simulation differ in their ``Site`` and ``Data``.

**Anybody's own code** can stand in place of an algorithm's client half:

* ``client``: a value with the methods of ``murmur.round.task.Client``, which says what an answer
  costs (``event``), how it travels (``codec``) and how it counts (``weight``), by the task alone.
  Its ``answer`` is called once for each charged task and gives the release, already protected, for
  ``codec.pack``. It must answer on a device whatever its own code does, so it catches what that
  raises and releases a protected zero (``murmur.flower.client``).
* ``train``: called as ``train(client, task, data, noise)`` in place of ``client.answer``. An audit
  releases by it what its attack draws.
* ``parse``: gives the tasks of a message that is no ``murmur.round.question.Question``; the
  message's other records reach ``train`` as ``task.message``.
* ``data``: anything; the host only hands it on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from murmur.learning.codec import Codec
from murmur.learning.data.examples import LocalData
from murmur.privacy.events import ComposedEvent, NonPrivateEvent, Unit, releases
from murmur.privacy.ledger import Asked, Charge, Ledger, LedgerError
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.policy import Refusal
from murmur.round.collectors import Collector, collector_for, no_contribution
from murmur.round.replies import sealed, unsealed
from murmur.round.secure_party import SecureParties
from murmur.round.signed import read_signed, require_terms
from murmur.round.site import Data, Site
from murmur.round.task import (
    REFUSED,
    Client,
    RunFacts,
    Task,
    TaskError,
    log_error,
    parse_tasks,
    question,
    request_digest,
)
from murmur.secure_sum.terms import SecureSumError

Train = Callable[[Client, Task, LocalData, NoiseGenerator], NDArray]
"""What trains: the release of one client, protected and as its codec packs it."""

Noise = Callable[[Task], NoiseGenerator]
"""Where the noise of one client's release comes from."""

Account = Callable[[int], int]
"""Under which id the ledger counts what a client releases."""

Parse = Callable[[RecordDict, int], list[Task]]
"""A message's tasks, for at most so many clients; raises RequestError if it is malformed."""

_TOGETHER = 2**20  # bytes of releases that are collected together

_local = threading.local()


def noise_of_this_thread(task: Task) -> NoiseGenerator:
    """The operating system's, through a cryptographic generator; one for each thread."""
    if not hasattr(_local, "noise"):
        _local.noise = NoiseGenerator.from_os()
    return _local.noise


@dataclass(frozen=True)
class SeededNoise:
    """Noise that follows from the run's ``seed``, of its own for each client, round and purpose.

    Whoever knows the seed can take it off again: the run's statement is void, and a device's policy
    refuses it unless its owner allows it.
    """

    seed: int

    def __call__(self, task: Task) -> NoiseGenerator:
        """Returns the noise generator of one release."""
        parts = (self.seed, task.purpose, task.round, task.client)
        return NoiseGenerator.seeded("client noise", *parts)


class _Released(NamedTuple):
    """One client's release for a task, packed by its codec, before it is collected."""

    task: Task
    codec: Codec
    packed: NDArray


@dataclass
class Host:
    """Everything that lives once per process and thread, and serves every client asked for.

    Attributes:
        site: Where clients live.
        client_ids: The clients that live here.
        facts: Facts that all answers of the run have in common.
        client: The algorithm's client half.
        data: The clients' data.
        ledger: In which every release is charged before it leaves.
        secure: The clients' part in secure sums, with their secrets.
        evaluator: Answers the purposes of an evaluation, which the client half does not have.
        noise: Where each release's noise comes from.
        train: What trains in place of the client half; see the head of this file.
        parse: Gives a message's tasks.
        account: Under which id the ledger counts what a client releases, where messages name
            clients by their places in a cohort.
        stack: How many clients may train at once.
    """

    site: Site
    client_ids: Collection[int]
    facts: RunFacts
    client: Client
    data: Data
    ledger: Ledger
    secure: SecureParties
    evaluator: Client | None = None
    noise: Noise = noise_of_this_thread
    train: Train | None = None
    parse: Parse = parse_tasks
    account: Account = int
    stack: int = 1

    def answer(self, content: RecordDict, kind: str = "") -> RecordDict:
        """The reply to one message, for all the clients that it names.

        What returns is what the ledger has stored: no byte leaves that is not committed. Refusals
        and failures of single clients are in the reply. An invalid policy or a ledger that cannot
        be trusted refuses all of them. ``kind``: Flower's type of the message, to which a secure
        sum is bound.

        RequestError where the message is malformed: there is nobody to answer for then.
        """
        if self.secure.answers(content):
            return self.secure.answer(content)
        facts = self.facts
        try:
            self.site.policy.require_valid(datetime.now(UTC))
            tasks = self._tasks(content)
            asked = self._asked(tasks[0], content, kind)
            if asked.header is not None and tasks[0].message is not None:
                server = asked.header.header.server
                tasks = [replace(task, server=server) for task in tasks]
            request = request_digest(self.site.run, facts.algorithm, facts.noise, content)
            stored = self.ledger.reply(request, self._allow)
            if stored is None:
                is_charged = partial(self.ledger.is_charged, request)
                summed = self._half(tasks[0]).summed
                collector = collector_for(self.secure, content, kind, facts, is_charged, summed)
                refused: dict[int, str] = {}
                admitted = self._charged(tasks, request, asked, collector, refused)
                self._release_all(admitted, collector, refused)
                collector.keep()
                reply = sealed(collector, refused)
                return unsealed(self.ledger.store_reply(request, reply, self._allow))
            return unsealed(stored)
        except (Refusal, LedgerError, SecureSumError) as refusal:
            # An invalid policy, a ledger that cannot be trusted, or a sum's state that another
            # message has changed: nothing at all may leave.
            reason = self.site.reason("everything", refusal)
            everybody = {task.client: reason for task in self._tasks(content)}
            return unsealed(sealed(no_contribution(), everybody))

    # Parse

    def _tasks(self, content: RecordDict) -> list[Task]:
        return self.parse(content, len(self.client_ids))

    def _half(self, task: Task) -> Client:
        """Returns the client half that answers: the algorithm's, or the evaluation's."""
        if self.evaluator is not None and task.purpose in self.evaluator.purposes:
            return self.evaluator
        return self.client

    # Admit: policy, data, charge

    def _asked(self, task: Task, content: RecordDict, kind: str) -> Asked:
        """Reads the question and who has signed it; Refusal where the policy wants another."""
        site = self.site
        digest = question(content, kind, self.secure.started)
        asked = read_signed(content, task, digest, site.run, self.ledger, site.policy)
        if asked.header is not None and asked.is_binding:
            try:
                asked.header.header.require_run(
                    self.facts.algorithm, self.facts.delta, self.facts.settings, task.purpose
                )
            except ValueError as error:
                raise Refusal(str(error), "unplanned") from error
        return asked

    def _charged(
        self,
        tasks: list[Task],
        request: str,
        asked: Asked,
        collector: Collector,
        refused: dict[int, str],
    ) -> list[Task]:
        """Returns the tasks that may be computed, all charged in one durable commit.

        ``request``: the message's digest, under which they are charged. ``asked``: what it says
        that they are for. ``refused`` gets the others, by client. Charged before and never answered
        counts as paid: it is computed again.
        """
        charges: dict[int, Charge] = {}
        admitted = set()
        for task in tasks:
            try:
                charge = self._charge(task, request, asked, collector)
            except Exception as error:
                refused[task.client] = self._reason(task, error)
                continue
            if charge is None:
                admitted.add(task.client)
            else:
                charges[task.client] = charge
        admit = self._admit
        if self.site.in_blocks:
            admit = self._allow  # a simulation's data are open
        new = list(charges.values())
        names = {client: charge.client for client, charge in charges.items()}
        asked = replace(asked, sums=collector.sums(names))
        outcomes = self.ledger.charge(new, admit, asked=asked, blocks=self.site.in_blocks)
        for (client, charge), outcome in zip(charges.items(), outcomes, strict=True):
            if outcome.may_compute:
                admitted.add(client)
            else:
                about = f"round {charge.round}, client {client}"
                why = Refusal(outcome.reason, outcome.code)
                refused[client] = self.site.reason(about, why)
        return [task for task in tasks if task.client in admitted]

    def _charge(
        self, task: Task, request: str, asked: Asked, collector: Collector
    ) -> Charge | None:
        """Returns the charge for an answer; None for a report to a simulation's researcher.

        TaskError, or whatever the client half raises, where the task may not be answered: nothing
        of it depends on data.
        """
        half = self._half(task)
        facts = self.facts
        if task.purpose not in half.purposes:
            raise TaskError(f"purpose={task.purpose}: must be one of {', '.join(half.purposes)}")
        if task.round > facts.rounds:
            # A budget for the whole run is shared out over so many rounds.
            raise TaskError(f"round={task.round}: this run has {facts.rounds} rounds")
        if task.client not in self.client_ids:
            raise TaskError(f"client={task.client}: is not hosted here")
        event = half.event(task)
        if event is None:
            if not self.site.free_reports:
                raise TaskError("reports without a charge exist in simulations only")
            return None
        if asked.header is not None and asked.is_binding:
            asked.header.header.require_planned(task.purpose, task.round, event)
            require_terms(asked, collector.terms([task.client]))
        event = collector.event(task, half.codec(task), event, half.weight(task.client))
        account = self.account(task.client)
        return Charge(account, self.site.run, task.round, task.purpose, request, event)

    def _admit(self, charge: Charge, spent: ComposedEvent) -> None:
        """Asked under the ledger's lock: the owner's policy, then the data; raises Refusal."""
        self._allow(charge, spent)
        try:
            self.data.of(int(charge.client))  # opened after the policy's word, before the charge
        except Exception as error:
            log_error(self.site.folder, f"the data of client {charge.client}", error)
            raise Refusal(REFUSED, "refused") from error

    def _allow(self, charge: Charge, spent: ComposedEvent) -> None:
        """Raises Refusal if the owner's policy rejects ``charge``, for a new or a stored answer."""
        self.site.policy.check(
            algorithm=self.facts.algorithm,
            event=charge.event,
            spent=spent,
            delta=self.facts.delta,
            seeded_noise=self.facts.seeded and not isinstance(charge.event, NonPrivateEvent),
            now=datetime.now(UTC),
        )

    # Train, privatize, collect

    def _release_all(
        self, tasks: Sequence[Task], collector: Collector, refused: dict[int, str]
    ) -> None:
        """Let every client of ``tasks`` train and add its release to ``collector``."""
        for start in range(0, len(tasks), self.stack):
            group = tasks[start : start + self.stack]
            opened = self._train_ahead(group)
            waiting: list[_Released] = []
            size = 0
            for task in group:
                try:
                    self._release(task, waiting, opened.get(task.client))
                    size += waiting[-1].packed.nbytes
                except Exception as error:
                    refused[task.client] = self._reason(task, error)
                # Small ones are added together: what masks take of the processor's cache, training
                # would fetch anew for each client.
                if task is not group[-1] and size <= _TOGETHER:
                    continue
                for one, codec, packed in waiting:
                    try:
                        collector.add(one.client, codec, packed, self._half(one).weight(one.client))
                    except Exception as error:
                        refused[one.client] = self._reason(one, error)
                    del packed  # else it is kept while the next client trains
                waiting.clear()
                size = 0

    def _train_ahead(self, group: Sequence[Task]) -> dict[int, LocalData]:
        """Let all of ``group`` train together, where they can; the data that were opened for it.

        Whoever cannot is told so when it trains by itself, and costs the others nothing.
        """
        if self.stack == 1 or self.train is not None:
            return {}
        try:
            asked = [(task, self.data.of(task.client)) for task in group]
            self._half(group[0]).train_ahead(asked)
        except Exception as error:
            about = f"round {group[0].round}, {len(group)} clients together"
            log_error(self.site.folder, about, error)
            return {}
        return {task.client: data for task, data in asked}

    def _release(self, task: Task, waiting: list[_Released], opened: LocalData | None) -> None:
        """Let one client train, and add its release to those ``waiting``.

        ``opened``: its data, where they were opened before. Where a device's own data cannot be
        trained on, the release is that of blank records: it was charged, and whether a client
        answers must not depend on its data. That is one answer for all records at once, which a
        client's unit covers and a record's does not: no record may bring it about where records are
        protected (``Client.units``), and the owner is told if anything has.
        """
        half = self._half(task)
        codec = half.codec(task)
        train = half.answer
        if self.train is not None:
            train = partial(self.train, half)
        try:
            data = self.data.of(task.client) if opened is None else opened
            release = train(task, data, self.noise(task))
        except Exception as error:
            blank = self.data.blank(task.client)
            if blank is None:
                raise
            about = f"round {task.round}, client {task.client}, answered with blank records"
            event = half.event(task)
            if event is not None and any(each.unit is Unit.RECORD for each in releases(event)):
                about += ", which is not covered if a record has brought it about"
            log_error(self.site.folder, about, error)
            release = train(task, blank, self.noise(task))
        packed = codec.pack(release)
        del release  # before what is made of it: a model may have 10⁷ parameters
        # It is not summed yet: a client that used its memory again would change what it released.
        if isinstance(packed.base, np.ndarray):
            packed = packed.copy()
        packed.flags.writeable = False
        waiting.append(_Released(task, codec, packed))

    def _reason(self, task: Task, error: Exception) -> str:
        return self.site.reason(f"round {task.round}, client {task.client}", error)
