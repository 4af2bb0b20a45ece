"""One message for a foreign ClientApp, in a process that is locked in; a script, started alone.

``murmur_guard.guard`` starts it as ``python -I guarded.py``, locked in (``sandbox``), with what is
asked as its standard input. It unpacks the app in the folder in which it starts, calls its function
once, and writes the reply to its standard output. From there on it is as hostile as the app, so
whoever started it believes nothing of what comes out.

What goes in, and what comes out, are frames: the length of all (8 bytes), the length of the head
(4 bytes), the head as JSON, whose ``sizes`` are those of the parts, and the parts.
"""

import importlib
import io
import json
import os
import struct
import sys
import zipfile
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message

HEAD = struct.Struct("<QI")


def pack_frame(head: dict[str, Any], parts: Sequence[bytes]) -> bytes:
    """One frame; ``head`` gets the parts' sizes."""
    text = json.dumps({**head, "sizes": [len(part) for part in parts]}).encode()
    length = 4 + len(text) + sum(len(part) for part in parts)
    return b"".join([HEAD.pack(length, len(text)), text, *parts])


def unpack_frame(frame: bytes, largest_head: int) -> tuple[dict[str, Any], list[bytes]]:
    """Head and parts of a whole frame, which may be hostile.

    Args:
        frame: all of it.
        largest_head: bytes of a head that is read; it bounds what reading it takes.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    length, size = HEAD.unpack_from(frame)
    if length != len(frame) - 8 or size > largest_head:
        raise ValueError("the frame's lengths are not its own")
    start = HEAD.size + size
    head = json.loads(frame[HEAD.size : start])
    parts = []
    for size in head.pop("sizes"):
        if type(size) is not int or not 0 <= size <= len(frame) - start:
            raise ValueError("a part's size is not its own")
        parts.append(frame[start : start + size])
        start += size
    return head, parts


def main() -> None:
    """Answer, and end."""
    with os.fdopen(0, "rb", closefd=False) as given:
        head, parts = unpack_frame(given.read(), 1 << 20)
    answers = os.dup(1)
    os.dup2(2, 1)  # what the app prints is no answer
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # takes its place
    # Tensors go between processes by value: to pass descriptors on takes a socket.
    for registers in (reduction, ForkingPickler):
        setattr(registers, "register", lambda *_: None)  # noqa: B010 - both are types to mypy
    reply = _answered(head, *parts)
    while reply:
        reply = reply[os.write(answers, reply) :]


def _answered(
    head: dict[str, Any], message: bytes, context: bytes, state: bytes, bundle: bytes
) -> bytes:
    """The frame that answers one message.

    Args:
        head: whose message it is, and the names of the arrays that are looked for.
        message: as Flower's protobuf has it.
        context: the same, without a state.
        state: the same, as the run's last message has left it; may be empty.
        bundle: Flower's archive of the app.
    """
    from flwr.app import RecordDict

    from murmur.compat import flower_wire
    from murmur.compat.flower_messages import identify

    asked = flower_wire.message_of(message)
    about = flower_wire.context_of(context)
    about.state = RecordDict()
    if state:
        about.state = flower_wire.record_of(state)
    identify(about.run_id, about.node_id)
    reply = _app(Path.cwd() / "app", bundle)(asked, about)
    if reply.has_error():
        raise RuntimeError(f"the app's reply is an error: {reply.error.reason}")
    arrays = _arrays(reply, head["record"], head["names"])
    remembered = flower_wire.record_bytes(about.state)
    return pack_frame({"metrics": _metrics(reply)}, [remembered, *arrays])


def _app(folder: Path, bundle: bytes) -> Any:
    """The bundle's ClientApp, imported from ``folder``, which is on the path and where it runs."""
    import tomllib

    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        archive.extractall(folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    place = settings["tool"]["flwr"]["app"]["components"]["clientapp"]
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _arrays(reply: "Message", record: str, names: Sequence[str]) -> list[bytes]:
    """Bytes of the arrays ``names``, from the record that was sent or else from the only one."""
    if not names:
        return []
    records = reply.content.array_records
    if record not in records and len(records) == 1:
        record = next(iter(records))
    arrays = records[record]
    if set(arrays) != set(names):
        raise ValueError(f"the app's reply has other arrays than it was sent: {sorted(arrays)}")
    return [arrays[name].data for name in names]


def _metrics(reply: "Message") -> dict[str, float]:
    """All metrics that are one number, by name."""
    found = {}
    for record in reply.content.metric_records.values():
        for name, value in record.items():
            if isinstance(value, int | float):
                found[name] = value
    return found


if __name__ == "__main__":
    main()
