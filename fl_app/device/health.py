"""A device's health: ``metrics.prom`` in its state folder, replaced after each message.

It is for a monitoring system, which is not trusted with the owner's data: every figure is computed
from the ledger, from what the server has sent, and from the reply that the server gets. So it tells
nothing but what was charged or is public. Counts that are not in the ledger are read from the
previous file, since every message has its own process; if that file is lost they restart at 0.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict

from fl_app.device.node_settings import device_folder
from fl_app.prometheus_file import NAME, Figures, read, write
from murmur.files import owner_only_folder
from murmur.privacy.policy import Policy
from murmur.round.task import log_error
from murmur.round.wire import message_size

if TYPE_CHECKING:
    from murmur.privacy.ledger import Ledger
    from murmur.round.host import Host

MEANINGS = {
    "murmur_device_messages_total": "Messages that a server has sent",
    "murmur_device_refusals_total": "Clients' refusals, and messages refused as a whole",
    "murmur_device_received_bytes_total": "Bytes of these messages",
    "murmur_device_sent_bytes_total": "Bytes of the replies",
    "murmur_device_last_answer_timestamp_seconds": (
        "When the last message arrived that a client answered, as Unix time"
    ),
    "murmur_device_releases_total": "Releases that the ledger has charged, of all clients, ever",
    "murmur_device_epsilon_spent": (
        "Epsilon of the most exposed client's life, as the policy counts it"
    ),
}


class Health:
    """The figures of one message, made when it arrives.

    Args:
        node_config: the owner's; names the folder and the clients.

    Attributes:
        folder: where ``metrics.prom`` is.
        arrived: when the message did, Unix time in seconds.
        clients: the ids that live here, as the owner has written them: the figures' label.
        host: what computes the answer, once there is one; until then nothing is read from a ledger.
    """

    def __init__(self, node_config: Mapping[str, Any]) -> None:
        self.folder = device_folder(node_config)
        self.arrived = time.time()
        self.clients = str(node_config.get("clients", ""))
        self.host: Host | None = None

    def replied(self, question: RecordDict, reply: Message) -> None:
        """Write the file; what goes wrong is logged, and the reply leaves nonetheless.

        Called once for each message that the ClientApp gets, refused ones too, when its reply is
        complete.

        Args:
            question: the message's content.
            reply: what the server is about to get.
        """
        try:
            self._write(question, reply)
        except Exception as error:
            log_error(self.folder, NAME, error)

    def _write(self, question: RecordDict, reply: Message) -> None:
        """Replace the file: the counts of before, and this message's.

        Refusals are counted as the reply lists them, and a message refused as a whole as one.
        """
        path = self.folder / NAME
        before = read(path)
        values = {name: before.get(name, 0.0) for name in MEANINGS}
        values["murmur_device_messages_total"] += 1
        values["murmur_device_received_bytes_total"] += message_size(question)
        if reply.has_error():
            values["murmur_device_refusals_total"] += 1
        else:
            values["murmur_device_sent_bytes_total"] += message_size(reply.content)
            for record in reply.content.config_records.values():
                values["murmur_device_refusals_total"] += _count(record.get("refused"))
                if _count(record.get("clients")):
                    values["murmur_device_last_answer_timestamp_seconds"] = self.arrived
        if self.host is not None:
            values |= _spent(self.host.ledger, self.host.site.policy)
        owner_only_folder(self.folder)
        write(path, Figures(MEANINGS, values, ("clients", self.clients)))
        # Monitoring passes a file's time on, and how long training took may depend on the data.
        os.utime(path, (self.arrived, self.arrived))


def _count(listed: object) -> int:
    """How many clients a reply's record lists; 0 where it has no such list."""
    if isinstance(listed, list):
        return len(listed)
    return 0


def _spent(ledger: "Ledger", policy: Policy) -> dict[str, float]:
    """Releases, and ε of the most exposed client; infinite where it cannot be accounted for.

    As the owner's policy counts it: at its δ, against its threat, for its unit.
    """
    lives = [ledger.spent(client) for client in ledger.clients()]
    try:
        epsilon = max((policy.spend(life) for life in lives), default=0.0)
    except ValueError:  # an event that this version cannot account for
        epsilon = math.inf
    return {
        "murmur_device_releases_total": ledger.releases(),
        "murmur_device_epsilon_spent": epsilon,
    }
