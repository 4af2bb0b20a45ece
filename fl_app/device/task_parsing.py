"""Parses what a server asks of a node, as untrusted input.

Nothing is converted: an id that is not an integer is refused, because two ids that become one
would let a client answer twice for one charge.
"""

from __future__ import annotations

import hashlib

from flwr.app import RecordDict

from clients.base import Task
from fl_app.device.node_settings import DeviceError
from murmur.learning.array_file import array_from_bytes
from murmur.learning.codec import MalformedError
from murmur.privacy.framing import framed

_LAST_ROUND = 2**31
_LONGEST_WORD = 64


def parse_tasks(content: RecordDict, hosted: int) -> list[Task]:
    """One task for each client that a message names, at most ``hosted``.

    DeviceError if the message is malformed; its text repeats nothing but the message.
    """
    record, sent = content.config_records.get("task"), content.array_records.get("model")
    if record is None or sent is None or "model" not in sent:
        raise DeviceError(
            "the message must hold a record `task`, and `model` with an array `model`"
        )
    settings = dict(record)
    number, clients = settings.pop("round", None), settings.pop("clients", None)
    purpose = settings.pop("purpose", "train")
    if type(number) is not int or not 1 <= number <= _LAST_ROUND:
        raise DeviceError(f"round={number!r:.40}: must be an integer in 1..{_LAST_ROUND}")
    if type(purpose) is not str or not purpose or len(purpose) > _LONGEST_WORD:
        raise DeviceError(f"purpose={purpose!r:.40}: must be a word")
    if type(clients) is not list or not 1 <= len(clients) <= hosted:
        found = len(clients) if isinstance(clients, list) else type(clients).__name__
        raise DeviceError(f"clients: {found}; must be a list of those that live here")
    ids = [client for client in clients if type(client) is int]
    if len(set(ids)) != len(clients):
        raise DeviceError("clients: must be distinct integers")
    try:
        arrays = {name: array_from_bytes(array.data) for name, array in sent.items()}
    except MalformedError as error:
        raise DeviceError(f"model: {error}") from error
    model = arrays.pop("model")
    return [Task(number, client, model, arrays, settings, purpose) for client in ids]


def digest(run: str, algorithm: str, noise: str, content: RecordDict) -> str:
    """A hash of everything that a message of ``run`` asks for, the same for the same request.

    Two runs with the same settings and seed ask the same under two names: two requests, of which
    each is charged. What the owner's policy judges by and no event says, the algorithm and the kind
    of noise, are part of it: what was answered under one of them is not given again under another.
    """
    state = hashlib.sha256(framed(run.encode(), algorithm.encode(), noise.encode()))
    for name, record in sorted(content.array_records.items()):
        state.update(framed(b"arrays", name.encode()))
        for key, array in sorted(record.items()):
            form = array.dtype.encode(), repr(tuple(array.shape)).encode()
            values = hashlib.sha256(array.data).digest()
            state.update(framed(b"array", key.encode(), *form, values))
    for name, config in sorted(content.config_records.items()):
        state.update(framed(b"settings", name.encode()))
        for key, value in sorted(config.items()):
            state.update(framed(b"setting", key.encode(), repr(value).encode()))
    return state.hexdigest()
