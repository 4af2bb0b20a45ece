"""The offer: a finished run on devices sends its model to the devices that took part.

An offer is one more message of Flower's to each of them, a record ``offer`` with the files of the
run's ``model/`` as bytes (``FILES``: safetensors, with JSON in their metadata). It asks for nothing
and is answered with one fixed word, whatever a device does with it (``fl_app.device.received``).

Its owner's policy decides on each device, and the server does not know it. So the server offers by
the run's own statement: ``federation.offer_model=finite`` where a finite ε covers whoever sees the
model, ``any`` always. Devices that are away get nothing; ``murmur resume RUN`` offers it again.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from murmur.privacy.statement import Statement
from murmur.round.placement import Enrolment
from murmur.round.signed import NO_SUM, QuestionSigner
from murmur.round.task import question

RECORD = "offer"
ANSWER = "received"
WEIGHTS = "model.safetensors"
FEATURES = "features.safetensors"
FILES = (WEIGHTS, FEATURES)
MAX_SECONDS = 300.0  # for all answers


def content_of(files: Mapping[str, bytes]) -> RecordDict:
    """The message that offers ``files``, by name."""
    arrays = {name: Array(np.frombuffer(content, np.uint8)) for name, content in files.items()}
    return RecordDict({RECORD: ArrayRecord(arrays)})


def digest_of(content: RecordDict) -> bytes:
    """Digest that the server signs of an offer."""
    return question(content, RECORD, "")


def is_offer(content: RecordDict) -> bool:
    """Tells whether a message is an offer."""
    return RECORD in content.array_records


def answer() -> RecordDict:
    """The reply to an offer, the same whatever became of it."""
    return RecordDict({RECORD: ConfigRecord({"answer": ANSWER})})


def is_due(setting: str, statement: Statement) -> bool:
    """Tells whether a run offers its model, by ``federation.offer_model``."""
    return setting == "any" or (setting == "finite" and statement.protects_model)


def signed_content(
    folder: Path, signer: QuestionSigner | None, clients: Collection[int], number: int
) -> RecordDict:
    """The message that offers the model in ``folder``, with the server's signature if it has a key.

    Args:
        folder: the run's ``model/``.
        signer: of the run.
        clients: whom it may reach.
        number: the run's last round.
    """
    paths = {name: folder / name for name in FILES}
    content = content_of({n: path.read_bytes() for n, path in paths.items() if path.exists()})
    if signer is not None:
        signer.sign(content, clients, number, RECORD, digest_of(content), [NO_SUM])
    return content


def send(
    grid: Grid,
    content: RecordDict,
    enrolment: Enrolment,
    clients: Collection[int],
    seconds: float,
) -> tuple[int, int]:
    """Send an offer to the devices of ``clients`` that are online.

    Args:
        grid: by which devices are reached.
        content: the offer (``signed_content``).
        enrolment: which device hosts whom.
        clients: those that took part.
        seconds: to wait for answers.

    Returns:
        How many devices were sent the model, and how many have answered.
    """
    online = enrolment.client_ids(grid.get_nodes())
    messages = [
        Message(content, dst_node_id=node, message_type="query", group_id=RECORD)
        for node, hosted in sorted(online.items())
        if not set(hosted).isdisjoint(clients)
    ]
    replies = grid.send_and_receive(messages, timeout=min(seconds, MAX_SECONDS))
    return len(messages), sum(not reply.has_error() for reply in replies)
