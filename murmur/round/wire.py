"""What travels between server and nodes: how large it is, and a grid as a run on devices needs it.

**Sizes** are counted as if each client had a node of its own: a simulation puts many clients on one
node, which sums them, and devices do not. What counts is the content of each client's own messages,
without the transport's framing. They are the ``bytes_down`` and ``bytes_up`` of a round.

**The limit** (``limit_replies``) is about Flower 1.41, which sends equal parts of an array once,
however often they occur: 1.2 GB of zeros travel as a few kilobytes and take 3 GB when they are
decoded, before a strategy sees the reply. So Flower's two decoding functions are replaced by ones
that count first; a reply that is too large becomes an error of its node, as if that had failed.

**The grid** that Flower gives to the ServerApp gets two things around it, each in a class that
passes on everything else: replies that prove themselves (``with_tokens``), and messages that are
sent again (``with_redelivery``). Both are about Flower 1.41, of which the tests say what they rely
on.
"""

import json
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, cast

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.app.message.array import Array
from flwr.common.constant import ErrorCode
from flwr.common.serde import metadata_from_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import Grid
from flwr.supercore.inflatable import inflatable_object
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from murmur.learning.codec import Codec
from murmur.round.cohorts import Weigh
from murmur.round.task import PART_SECONDS

_HEADER = 128  # bytes before an array in NumPy's format
_TOO_LARGE = "a reply is larger than this round's contributions can be"
_ROOM = 4 * 2**20  # bytes for reports, keys and shares of a few thousand clients
AGAIN = 0.5  # share of the wait after which whoever is silent is asked once more
FIRST_LOOK = 0.05  # seconds between the first looks for answers
LOOK_SECONDS = 3  # between later ones at most, as in Flower's own grid


# What messages weigh --------------------------------------------------------------------------


def message_size(content: RecordDict) -> int:
    """Bytes of the arrays and records of one client's message."""
    return _array_bytes(content) + sum(len(r.deflate()) for r in content.config_records.values())


def request_size(content: RecordDict, clients: Sequence[int]) -> int:
    """Bytes of what a node is sent for ``clients``, had each a node of its own.

    Every array is counted once for each client. In a record, ``which`` says which of ``messages``
    is whose, for each of ``clients``; all else is sent to each.
    """
    total = len(clients) * _array_bytes(content)
    for record in content.config_records.values():
        plain: dict[str, Any] = dict(record)
        messages = plain.pop("messages", None)
        alone = _Alone(plain)
        for place, client in enumerate(clients):
            own: dict[str, Any] = {"clients": [client]}
            if messages is not None:
                own |= {"messages": [messages[plain["which"][place]]], "which": [0]}
            alone.add(own)
        total += alone.total
    return total


def reply_size(
    content: RecordDict, name: str, codec: Codec | None = None, weigh: Weigh | None = None
) -> int:
    """Bytes of an accepted reply, had each of the node's clients a node of its own.

    Parameters
    ----------
    content : RecordDict
        The reply.
    name : str
        The record that says who answered.
    codec : Codec, optional
        The form in which one client's release travels, where its node sums.
    weigh : callable, optional
        A client's public weight, where its node sums; 1 by default.
    """
    plain: dict[str, Any] = dict(content.config_records[name])
    nobody: dict[str, Any] = {"clients": [], "refused": [], "reasons": []}
    messages = plain.pop("messages", None)
    alone = _Alone(plain | nobody)
    summed = codec is not None and "sum" in content.array_records.get("contribution", {})
    for place, client in enumerate(plain["clients"]):
        own: dict[str, Any] = {"clients": [client]}
        if messages is not None:
            own["messages"] = [messages[place]]
        if summed:
            own |= {"weight": weigh(client) if weigh else 1, "packed": True}
        alone.add(own)
    for client, reason in zip(plain["refused"], plain["reasons"], strict=True):
        own = {"refused": [client], "reasons": [reason]}
        if messages is not None:
            own["messages"] = []
        if "weight" in plain:
            own |= {"weight": 0, "packed": False}
        alone.add(own)
    answered = len(plain["clients"])
    if not answered or not content.array_records:
        return alone.total
    if codec is not None and summed:
        return alone.total + answered * (_HEADER + codec.packed_bytes)
    return alone.total + (answered - 1) * _HEADER + _array_bytes(content)  # a row for each


def _array_bytes(content: RecordDict) -> int:
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


class _Alone:
    """Adds up records; those that differ in a number of the same length are measured once.

    ``alike``: what all of them hold, where they hold nothing else of that name.
    """

    def __init__(self, alike: dict[str, Any]) -> None:
        self.alike = alike
        self.total = 0
        self._known: dict[tuple, int] = {}

    def add(self, own: dict[str, Any]) -> None:
        key = tuple([(name, _length(value)) for name, value in own.items()])
        if key not in self._known:
            self._known[key] = len(ConfigRecord(self.alike | own).deflate())
        self.total += self._known[key]


def _length(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_length, value))
    if isinstance(value, bytes | str):
        return len(value)
    if type(value) is int:
        return value.bit_length()
    return value


# What a reply may weigh -----------------------------------------------------------------------


class ReplyLimit:
    """The largest reply that this process decodes.

    Parameters
    ----------
    least : int
        Bytes that are always allowed.

    Attributes
    ----------
    bytes : int
        Of one reply with all its arrays. What a run needs raises it, for good: it never falls.
    """

    def __init__(self, least: int) -> None:
        self.bytes = least

    def allow(self, codec: Codec, clients: int) -> None:
        """Replies may hold the contributions of ``clients``, side by side, in any form.

        Sixteen bytes for each entry and weight: twice the 64 bits in which sums travel. Called
        before each message of a phase is sent.
        """
        self.allow_bytes(16 * clients * (math.prod(codec.shape) + 1))

    def allow_bytes(self, needed: int) -> None:
        """Replies may have ``needed`` bytes, and 4 MiB for reports, keys and shares beside them."""
        self.bytes = max(self.bytes, _ROOM + needed)

    def pulling(self, pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
        """Flower's ``pull_objects``, which stops at the limit.

        It counts what travels, over all of Flower's threads; ObjectPullError once that is too much.
        """

        @wraps(pull)
        def limited(
            object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any
        ) -> dict[str, bytes]:
            lock = threading.Lock()
            left = self.bytes

            def counted(object_id: str) -> bytes:
                nonlocal left
                content = pull_object_fn(object_id)
                with lock:
                    left -= len(content)
                    if left < 0:
                        raise ObjectPullError(object_id, _TOO_LARGE)
                return content

            return pull(object_ids, counted, **options)

        return limited

    def inflating(self, inflate: Callable[..., Any]) -> Callable[[str, dict[str, bytes]], Any]:
        """Flower's ``inflate_object_from_contents``, of what stays within the limit.

        It counts what would be decoded, before it is. A reply that is too large, or that Flower
        cannot decode, becomes an error reply of its node: one node cannot end a run. One whose head
        is no message's answers none.
        """

        @wraps(inflate)
        def limited(object_id: str, contents: dict[str, bytes]) -> Any:
            sent = MessageProto()
            try:
                head = inflatable_object.get_object_body(contents[object_id], Message)
                sent = MessageProto.FromString(head)
                if inflated_size(contents) > self.bytes:
                    raise ValueError(_TOO_LARGE)
                return inflate(object_id, contents)
            except Exception as error:  # whatever a node has made up, the run goes on without it
                sent.metadata.message_type = "query"  # the node's own may be none that there is
                wrong = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=str(error)[:200])
                return make_message(metadata_from_proto(sent.metadata), error=wrong)

        return limited


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """Bytes of all objects of a reply, and of the arrays that they become."""
    total = sum(map(len, contents.values()))
    for content in contents.values():
        kind, parts, _ = inflatable_object.get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            sizes = [len(contents[part]) for part in parts]
            order = json.loads(inflatable_object.get_object_body(content, Array))["arraychunk_ids"]
            total += sum(sizes[place] for place in order)
    return total


# Of this process: Flower's grid is made before a run knows what it needs.
REPLIES = ReplyLimit(_ROOM)


def limit_replies() -> None:
    """Let Flower's grid of this process keep to ``REPLIES``.

    It replaces two names in Flower's module, once however often it is called. Called where a run
    begins, before anything is received: whoever has that grid has loaded the module, and it takes
    seconds to import for those who have another.
    """
    http_grid = sys.modules.get("flwr.superlink.grid.http_grid")
    if http_grid is None:
        return
    for name, limited in (
        ("pull_objects", REPLIES.pulling),
        ("inflate_object_from_contents", REPLIES.inflating),
    ):
        plain = getattr(http_grid, name)
        if not hasattr(plain, "__wrapped__"):
            setattr(http_grid, name, limited(plain))


# Around Flower's grid ------------------------------------------------------------------------


class GridAround:
    """``grid``, but for what a subclass says."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def with_tokens(grid: Grid) -> Grid:
    """``grid``, which passes on only replies that hold their message's secret token.

    Flower matches a reply with its message by the message's id, a hash over content and time, and
    by the node that the reply says it is from, which it does not compare with the key that signed.
    Here each message carries 128 random bits as its group id: they go into that hash, and come back
    with the reply. So a node that was not asked, and has not seen the message, cannot answer in
    another's place.
    """
    return cast(Grid, _TokenGrid(grid))


class _TokenGrid(GridAround):
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and give back the replies with a valid token, with their own group ids."""
        asked = list(messages)
        groups: dict[str, tuple[int, str]] = {}
        for message in asked:
            token = secrets.token_hex(16)
            groups[token] = (message.metadata.dst_node_id, message.metadata.group_id)
            message.metadata.group_id = token
        return _valid(self._grid.send_and_receive(asked, timeout=timeout), groups)


def _valid(replies: Iterable[Message], groups: dict[str, tuple[int, str]]) -> Iterator[Message]:
    """Those of ``replies`` that ``groups`` expects: by token, the node and the group's own id."""
    for reply in replies:
        token = reply.metadata.group_id
        node, group = groups.get(token, (None, ""))
        if node == reply.metadata.src_node_id:
            del groups[token]  # one reply to one message
            reply.metadata.group_id = group
            yield reply


def with_redelivery(grid: Grid) -> Grid:
    """``grid``, which asks once more whoever is silent for half of the time that it waits.

    Flower hands out each message, and each answer, once. Where a connection breaks off or a process
    ends before it has arrived, nobody is told, and a round would wait for nothing until its
    deadline. A device that is asked again gives its stored answer, or computes it under the charge
    that it has made: nothing is paid twice.

    Whom Flower reports as gone has answered, with that error. A reply names the message that was
    sent first. What is sent again is not in ``bytes_down``.

    It first looks for answers after half of the shortest time in which all have come until then.
    Between two looks it waits a quarter of what it has waited in all, ``LOOK_SECONDS`` at most:
    little is added to a short phase, of which a secure sum has five, and each look costs the
    SuperLink a request.
    """
    return cast(Grid, _RepeatingGrid(grid))


class _RepeatingGrid(GridAround):
    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._shortest = math.inf

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait at most ``timeout`` seconds, and give back one reply to each message."""
        return self._receive(self._send(list(messages)), time.monotonic(), timeout)

    def _receive(
        self, open_ids: dict[str, Message], begin: float, timeout: float | None
    ) -> Iterator[Message]:
        """The replies as they come, to messages that were sent at ``begin``, by their ids."""
        names = {id(message): name for name, message in open_ids.items()}
        if timeout is None:
            repeat_after = None
        else:
            repeat_after = AGAIN * timeout
        if open_ids:
            time.sleep(self._first_look(timeout))
        while open_ids:
            found = self._pull(list(open_ids))
            # Not counting the time for which whoever takes the replies is at work on them.
            waited = time.monotonic() - begin
            while found:
                reply = found.pop(0)
                asked = open_ids.get(reply.metadata.reply_to_message_id)
                if asked is None:
                    continue  # its message was sent twice and is answered
                open_ids = {name: each for name, each in open_ids.items() if each is not asked}
                reply.metadata.__dict__["_reply_to_message_id"] = names[id(asked)]
                yield reply
            if not open_ids:
                self._shortest = min(self._shortest, waited)
                break
            if timeout is not None and waited >= timeout:
                break
            if repeat_after is not None and waited >= repeat_after:
                again = [_copy(message) for message in open_ids.values()]
                open_ids |= dict(
                    zip(self._grid.push_messages(again), open_ids.values(), strict=True)
                )
                repeat_after = None
            time.sleep(min(max(FIRST_LOOK, waited / 4), LOOK_SECONDS))

    def _pull(self, ids: Sequence[str]) -> list[Message]:
        """The replies that have come.

        Flower hands out a reply while parts of it are on their way, and looks for those again after
        a second; here it looks sooner.
        """
        module = sys.modules[type(self._grid).__module__]
        own = getattr(module, "pull_objects", None)
        if own is None:  # not the grid of a SuperLink
            return self._look(ids)
        module.pull_objects = partial(own, initial_backoff=PART_SECONDS)  # type: ignore[attr-defined]
        try:
            return self._look(ids)
        finally:
            module.pull_objects = own  # type: ignore[attr-defined]

    def _look(self, ids: Sequence[str]) -> list[Message]:
        """What Flower's grid has; nothing where the SuperLink says that it failed (HTTP 5xx).

        Its database is locked for a while where many nodes fetch a large model at a time. It is
        asked again at the next look, until the deadline.
        """
        try:
            return list(self._grid.pull_messages(ids))
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status < 500:
                raise
            return []

    def _first_look(self, timeout: float | None) -> float:
        """Seconds until then."""
        if math.isinf(self._shortest):
            return 0.0
        limits = [self._shortest / 2, LOOK_SECONDS]
        if timeout is not None:
            limits.append(timeout)
        return min(limits)

    def _send(self, messages: Sequence[Message]) -> dict[str, Message]:
        """``messages`` by the ids under which they are sent."""
        if not messages:
            return {}
        return dict(zip(self._grid.push_messages(messages), messages, strict=True))


def _copy(message: Message) -> Message:
    """The same question in a message of its own: Flower answers each message once."""
    about = message.metadata
    return Message(
        message.content,
        dst_node_id=about.dst_node_id,
        message_type=about.message_type,
        ttl=about.ttl,
        group_id=about.group_id,
    )
