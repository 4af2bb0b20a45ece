"""The client's half: an app's own function inside, Murmur's protection around it.

``ClientApp`` is Flower's, whose every call goes through ``protect``. Five kinds of messages arrive:
a greeting, the phases of a secure sum that need no data, the question to train or evaluate, a
request for receipts, and whatever is none of these, which is refused. Only the third reaches the
app, and of its reply only the arrays that were sent and the metrics that the ask names are looked
at.

``murmur.round.host`` answers, as it does for Murmur's own algorithms: policy, charge, training,
noise, mask, stored reply. Whose device this is, and so what may leave it, its folder says.

Read from the outside in: ``protect``, whose device this is (``Device``), then what answers one
message (``_answer``) with the app inside it (``_Asked``). Each message is answered on its own: what
must last from one to the next is in the device's folder, never in memory.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp as FlowerClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common import log
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from murmur.compat.flower_messages import with_content
from murmur.flower import ask as protocol
from murmur.flower import trials
from murmur.flower.ask import Ask, AskedCodec, Layout
from murmur.learning.array_bytes import array_from_bytes
from murmur.privacy.events import Event
from murmur.privacy.ledger import Ledger
from murmur.privacy.mechanisms.clipping import clip_l2, truncate
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.policy import Policy
from murmur.round.host import Host
from murmur.round.secure_party import Request, SecureParties
from murmur.round.site import DeviceSite, SimulatedSite, Site
from murmur.round.task import (
    RECEIPTS,
    RECORD,
    REFUSED,
    SIGNED,
    RequestError,
    RunFacts,
    Task,
    log_error,
    reply_to,
    started_with,
)
from murmur.secure_sum.identity import AnyPeers, PinnedKeys, identity_in
from murmur.secure_sum.settings import OwnerRules
from murmur.secure_sum.terms import HONEST, LYING

App = Callable[[Message, Context, str], Message]
"""What answers a message without protection: an app's own function, or a locked child.

Its last argument is the public key, in hex, of the server that has signed the message; empty where
none has.
"""

_FOLDER = "murmur"  # of the node-config, and MURMUR_DEVICE of the environment


class ClientApp(FlowerClientApp):
    """Flower's ClientApp, which answers through Murmur only; write ``train`` and so on as always.

    Whether a reply is protected does not depend on what the app's functions return or raise. Under
    a strategy that is not wrapped in ``private`` nothing is computed, and every question is
    refused. Noise of the app's own is not counted, and the statement says so.
    """

    def __init__(self, client_fn: Any = None, mods: list[Any] | None = None) -> None:
        super().__init__(client_fn, mods)
        self._has_noise = _has_noise(mods)

    def train(self, action: str = "default", *, mods: list[Any] | None = None) -> Callable:
        """Registers a function that trains, as Flower's own does."""
        self._has_noise = self._has_noise or _has_noise(mods)
        return super().train(action, mods=mods)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message; Flower calls it, in whichever process the client runs."""
        own_noise = self._has_noise or "opacus" in sys.modules
        app = super().__call__
        return protect(
            message, context, lambda asked, about, _: app(asked, about), own_noise=own_noise
        )


def _has_noise(mods: list[Any] | None) -> bool:
    return any(isinstance(mod, LocalDpMod) for mod in mods or ())


def protect(
    message: Message,
    context: Context,
    call_next: App,
    guarded: bool = False,
    alone: Ask | None = None,
    own_noise: bool = False,
) -> Message:
    """The protected reply to ``message``; every failure becomes an error reply.

    On a device every failure has the same words; in a trial they say what is wrong.

    Args:
        message: from the server, and possibly hostile.
        context: Flower's. Its node-config may name the owner's folder (``Device.of``).
        call_next: the app without protection. Called at most once, and only where the answer is
            charged; the same message again gets the stored reply, without a call.
        guarded: whether the app is locked in, so that nobody needs to trust it.
        alone: what a training costs that a server asks for without Murmur; the client's noise is
            then all that there is (``minimum`` 1, ``colluders`` 0). None: it is refused.
        own_noise: whether the app may add noise of its own, which is not counted.

    Returns:
        The reply, or an error reply where nothing may leave.
    """
    kind = message.metadata.message_type
    try:
        device = replace(Device.of(context, guarded), own_noise=own_noise)
    except Exception as error:  # an owner's folder that cannot be read: nothing is touched
        log(logging.ERROR, "this device's folder: %s", error)
        return _error(message, REFUSED)
    try:
        if kind == protocol.KIND and RECEIPTS in message.content:
            return reply_to(message, _receipts(message.content, device))
        if protocol.ASKED in message.content or kind == protocol.KIND:
            return reply_to(message, _answer(message, context, call_next, device))
        if alone is not None and kind == alone.purpose:
            return reply_to(message, _alone(message, context, call_next, device, alone))
        return _error(
            message,
            f"this client answers through Murmur only and was asked for `{kind}` without it; wrap "
            "the server's strategy: strategy = private(...)",
        )
    except Exception as error:
        return _error(message, device.site.reason(f"run {context.run_id}, {kind}", error))


def _error(message: Message, reason: str) -> Message:
    return reply_to(message, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason))


# Whose device this is --------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """An owner's device, or a trial without one.

    Attributes:
        site: where it keeps what, and what its owner lets out.
        rules: what it asks of a secure sum. An owned device reckons with one colluder and asks for
            shares among all of the cohort.
        owned: whether an owner's folder says so; else it is a trial, whose policy allows everything
            and whose ledger is for that run alone.
        guarded: whether the app is locked in.
        own_noise: whether the app may add noise of its own, as far as is known.
    """

    site: Site
    rules: OwnerRules
    owned: bool
    guarded: bool = False
    own_noise: bool = False

    @classmethod
    def of(cls, context: Context, guarded: bool = False) -> "Device":
        """By the folder that the owner has named, or a trial's.

        The folder is ``murmur`` of the node-config or MURMUR_DEVICE of the environment. It holds
        policy.yaml, and may hold ``peers``: public keys in hexadecimal, one in each line, of the
        devices beside which this one takes part. What the folder proves by itself, the policy need
        not assume: with pinned peers the server cannot invent clients, and with a locked-in app
        nobody relies on the bundle. On an owned device this process's files are from here on
        readable by its user only.

        Raises:
            ValueError, OSError: the folder is named and its name is empty, or ``peers`` cannot be
                read. A policy that cannot be read raises nothing: it refuses everything.
        """
        run = f"run-{context.run_id}"
        named = context.node_config.get(_FOLDER, os.environ.get("MURMUR_DEVICE"))
        if named is None:
            site = SimulatedSite(
                trials.folder_of(context.run_id, context.node_id), run, Policy.simulation()
            )
            rules = OwnerRules(server=HONEST, peers=AnyPeers())
            return cls(site, rules, owned=False, guarded=guarded)
        if not named:
            raise ValueError(
                "murmur, MURMUR_DEVICE: must name the device's folder, or not be there"
            )
        os.umask(0o077)
        folder = Path(str(named)).expanduser().absolute()
        policy = replace(Policy.load(folder / "policy.yaml"), source="this device's policy")
        peers = folder / "peers"
        pinned: PinnedKeys = AnyPeers()
        granted = set(policy.assumptions or ())
        if peers.exists():
            pinned = PinnedKeys(_keys(peers))
            granted.add(protocol.INVENTS_NOBODY.name)
        if guarded:
            granted.add(protocol.HONEST_APP.name)
        policy = replace(policy, assumptions=sorted(granted))
        owned = DeviceSite(folder, run, policy)
        server = HONEST if protocol.HONEST_SERVER.name in granted else LYING
        rules = OwnerRules(colluders=1, server=server, peers=pinned)
        return cls(owned, rules, owned=True, guarded=guarded)

    def facts(self) -> dict[str, bool]:
        """Returns facts for the server's statement; a device's own word, which nobody checks.

        Names are those of ``murmur.flower.statement.FACTS``, and ``OWN_NOISE``.
        """
        return {
            "owned": self.owned,
            "pinned": type(self.rules.peers) is PinnedKeys,
            "guarded": self.guarded,
            protocol.OWN_NOISE: self.own_noise,
        }


def _keys(path: Path) -> list[bytes]:
    """The public keys in a file, 32 bytes each; what follows a key in its line is a remark.

    ValueError for a line that begins with no key, and for a file without any; OSError where it
    cannot be read.
    """
    lines = [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
    keys = [bytes.fromhex(words[0]) for words in lines]
    if not keys or any(len(key) != 32 for key in keys):
        raise ValueError(f"{path}: must have a public key of 64 hex digits in each line")
    return keys


# Answering -------------------------------------------------------------------------------------


def _answer(
    message: Message, context: Context, call_next: App, device: Device, alone: bool = False
) -> RecordDict:
    """The reply's content, by the kind of message; see the head of this file.

    ``alone``: the ask is the device's own, and nobody else's noise is counted on.

    Raises:
        RequestError, ValueError: it is malformed, or asks for what a device does not do.
        Refusal: the owner's policy lets out nothing of this algorithm, or nothing at all.
    """
    content = message.content
    site = device.site
    kind = message.metadata.message_type
    if kind == protocol.KIND and protocol.ASKED in content.config_records:
        facts: dict[str, Any] = {
            **device.facts(),
            protocol.STARTED: started_with(context.run_config),
        }
        return RecordDict({protocol.DEVICE: ConfigRecord(facts)})
    if kind == protocol.KIND:
        # No phase but the masking one is charged, and so asks the policy.
        site.policy.require_algorithm(protocol.ALGORITHM, datetime.now(UTC))
        return _parties(device, content).answer(content)
    ask = Ask.in_message(content)
    named = content.config_records[protocol.ASKED]
    if kind.partition(".")[0] != ask.purpose or kind != named.get("kind"):
        raise RequestError(f"{ask.purpose} is asked for in a message of type {kind}")
    if named.get(protocol.STARTED) != started_with(context.run_config):
        raise RequestError("run_config: this client was started with another than the others")
    if ask.purpose == "train":
        site.policy.check_clip(ask.clip)
    if ask.simulated and device.owned and not alone:
        raise RequestError("simulated=True: a device masks what it releases")
    parties = _parties(device, content)
    # What is charged is what this ask says of the server, whatever else the owner would take.
    rules = replace(device.rules, server=ask.server)
    app = partial(_reply, message, context, call_next)
    with Ledger(site.folder / "ledger.sqlite", expected=site.policy.ledger) as ledger:
        host = Host(
            site=site,
            client_ids=[parties.place],
            facts=RunFacts(protocol.ALGORITHM, ask.delta, ask.rounds, settings=ask.run_settings()),
            client=_Asked(ask, content, device, app),
            data=_AppsOwn(),
            ledger=ledger,
            secure=replace(parties, is_on=not ask.simulated, rules=rules),
            parse=lambda content, hosted: [_task(ask, content, parties.place)],
            account=lambda client: protocol.OWNER,
        )
        return host.answer(content, kind)


def _receipts(content: RecordDict, device: Device) -> RecordDict:
    """The reply to a server that asks for receipts of a run that is over."""
    from murmur.round.receipts import give  # loads SciPy

    site = device.site
    peers = device.rules.peers_rule
    return give(content, site.run, site.folder, site.policy, [str(protocol.OWNER)], peers)


def _alone(
    message: Message, context: Context, call_next: App, device: Device, ask: Ask
) -> RecordDict:
    """The reply to a server that knows nothing of Murmur: the model that it sent, moved and noised.

    It has the arrays that were sent, in their types, and a weight of 1 (Flower's ``num-examples``).
    RequestError, before the charge or at it, where nothing may leave; the log says why.
    """
    kind = message.metadata.message_type
    about: dict[str, Any] = {"ask": ask.to_json(), "kind": kind, "clients": [protocol.OWNER]}
    own = ConfigRecord({**about, protocol.STARTED: started_with(context.run_config)})
    content = RecordDict({**dict(message.content.items()), protocol.ASKED: own})
    asked = with_content(message.metadata, content)
    answered = _answer(asked, context, call_next, device, alone=True)
    if "contribution" not in answered:
        raise RequestError("nothing may leave")
    name, record = protocol.array_record(message.content)
    base = protocol.arrays_of(record)
    layout = Layout(base, ask.frozen)
    codec = ask.codec(layout.size)
    packed = array_from_bytes(answered.array_records["contribution"]["sum"].data)
    moved = layout.moved(base, codec.mean(codec.expand(packed, 1), 1))
    arrays = {name: Array(moved.get(name, kept)) for name, kept in base.items()}
    return RecordDict({name: ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})})


@dataclass(frozen=True)
class _Owner(SecureParties):
    """The one party of this device, wherever the server has placed it in a sum's cohort.

    Attributes:
        place: under which id the sum knows it, in this message. It may be another in each round, so
            state and key do not depend on it.
    """

    place: int = 0

    def resident(self, client: int) -> int:
        """The one, whatever its place is."""
        return protocol.OWNER

    @property
    def names(self) -> Path:
        """Where it stands which sums this device has joined, at whatever place."""
        return self.site.folder / "sum.joined"

    def identity(self, client: int) -> bytes:
        """The device's own key, by which its peers know it."""
        return identity_in(self.site.folder / "identity.key")

    def placed(self, request: Request) -> SecureParties:
        """The device at the place that ``request`` names; RequestError as for ``_parties``."""
        return _at_place(self, list(request.messages))


def _parties(device: Device, content: RecordDict) -> _Owner:
    """The device in a message's sum, at the place that the message names.

    RequestError where it names none, or more than one: a node hosts one client here.
    """
    records = content.config_records
    clients: Any = records.get(RECORD, records.get(protocol.ASKED, ConfigRecord())).get("clients")
    return _at_place(_Owner(device.site, (), device.rules, is_on=True), clients)


def _at_place(owner: _Owner, clients: Any) -> _Owner:
    """``owner`` at the one place in ``clients``; RequestError where it is no list of one."""
    if not (isinstance(clients, list) and len(clients) == 1 and type(clients[0]) is int):
        raise RequestError("clients: must be a list of one place")
    return replace(owner, client_ids=clients, place=clients[0])


def _task(ask: Ask, content: RecordDict, place: int) -> Task:
    """Returns the task of the one client here.

    The model is empty and stays in the message, for the app reads that.
    """
    return Task(ask.round, place, np.zeros(0, np.float32), {}, {}, ask.purpose, content)


def _reply(message: Message, context: Context, call_next: App, server: str) -> Message:
    """The app's own answer to its strategy's own message, which has none of our records.

    ``server``: the key of the one that has signed the message, as ``App`` has it.
    RuntimeError where the app ends its process: what it does then is as much data as a reply.
    """
    own = {
        name: record
        for name, record in message.content.items()
        if name not in (protocol.ASKED, RECORD, SIGNED)
    }
    asked = with_content(message.metadata, RecordDict(own))
    try:
        return call_next(asked, context, server)
    except SystemExit as error:
        raise RuntimeError(f"the app ended with sys.exit({error.code!r})") from error


class _Asked:
    """A ``murmur.round.task.Client`` for one message: what the ask costs, its form, the answer.

    Everything but ``answer`` follows from the message alone, so that nothing is told of the data by
    what is charged or refused.

    Attributes:
        summed: True: answers are added up, in every case.
        ask: what the round asks.
        device: whose answer it is.
        app: gives the app's own reply to the server of a key, as ``App`` has it.
        purposes: the ask's one.
        name: of the record in which the message has the model, and the reply its arrays.
        base: the arrays that were sent.
        layout: their order in the vector.
    """

    summed = True

    def __init__(
        self, ask: Ask, content: RecordDict, device: Device, app: Callable[[str], Message]
    ) -> None:
        self.ask = ask
        self.device = device
        self.app = app
        self.purposes: tuple[str, ...] = (ask.purpose,)
        self.name, record = protocol.array_record(content)
        self.base = protocol.arrays_of(record)
        self.layout = Layout(self.base, ask.frozen)

    def codec(self, task: Task) -> AskedCodec:
        """One number for each float that is trained, and for each metric.

        ValueError where 32 bits cannot hold the noise; the host then refuses, uncharged.
        """
        size = self.ask.num_extra_entries
        if self.ask.purpose == "train":
            size += self.layout.size
        return self.ask.codec(size)

    def event(self, task: Task) -> Event:
        """One share of the noise, which is all that the ask alone says of it (``Ask.event``)."""
        return self.ask.event()

    def weight(self, client: int) -> int:
        """All count alike: how many examples a client has is not sent."""
        return 1

    def train_ahead(self, asked: Sequence[Any]) -> None:
        """Nothing is trained together: the app is called in ``answer``."""

    def answer(self, task: Task, data: Any, noise: NoiseGenerator) -> NDArray[np.int64]:
        """Returns the noised release of the app's reply: ``codec(task).size`` grid steps.

        The host calls it once for a charged answer, and the app is called once. On a device
        whatever goes wrong is logged there, and a protected zero is released: the answer was
        charged, and whether there is one would tell of the data. A trial's researcher is told.

        Args:
            task: of this message.
            data: None, for the app opens its own.
            noise: the device's own, of which its share of the sum's noise is drawn.
        """
        steps = np.zeros(self.codec(task).size, np.int64)
        try:
            # A server may name a norm, or a metric's range, in which some numbers overflow.
            steps = truncate(self._vector(self.app(task.server)), self.ask.radius)
        except BaseException as error:  # also an interrupt: it may be the app's own
            if not self.device.owned:
                raise
            log_error(self.device.site.folder, f"round {task.round}, the app", error)
        return self.ask.mechanism.privatize_integers(steps, noise)

    def _vector(self, reply: Message) -> NDArray[np.float64]:
        """Returns the clipped change of the app's ``reply`` (size,), its metrics (m,), and the bit.

        Metrics are looked for in every metric record of the reply; arrays in the record of the name
        that was sent, or else in its only one. ValueError for what is no answer.
        """
        if reply.has_error():
            raise ValueError(f"the app's reply is an error: {reply.error.reason}")
        found: dict[str, object] = {}
        for named in reply.content.metric_records.values():
            found.update(named)
        metrics = self.ask.metric_vector(found)
        if self.ask.purpose == "evaluate":
            return metrics
        records = reply.content.array_records
        if self.name in records:
            record = records[self.name]
        else:
            _, record = protocol.array_record(reply.content)
        arrays = protocol.arrays_of(record)
        change = self.layout.change(self.base, arrays)
        self._advise(arrays)
        if not self.device.owned:
            trials.note_length(self.device.site.folder, float(np.linalg.norm(change)))
        clipped = clip_l2(change, self.ask.clip)
        bit = self.ask.bit_vector(np.array_equal(clipped, change))
        return np.concatenate([clipped, metrics, bit])

    def _advise(self, arrays: Mapping[str, NDArray]) -> None:
        """Say on this machine's own log what would take noise for nothing."""
        trained = [name for name in self.layout.trained if self.base[name].size]
        still = [name for name in trained if np.array_equal(arrays[name], self.base[name])]
        if still:
            log(
                logging.WARNING,
                "training has not changed %s; named in frozen=[...] it takes no noise",
                ", ".join(still[:8]),
            )
        if "opacus" in sys.modules and not self.device.own_noise:  # loaded by this training
            log(logging.WARNING, protocol.NOT_COUNTED)


class _AppsOwn:
    """The data of somebody else's app: it opens them itself, within its own function."""

    def of(self, client: int) -> Any:
        """None: nothing is known of them."""

    def blank(self, client: int) -> None:
        """None: a protected zero is released without them."""
