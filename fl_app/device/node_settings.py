"""What a device's owner says in its node-config, and the site that this makes of the device.

Nothing that the server sends decides whose policy holds, which clients and data are
here, what these data are like, or which files are written: all of it comes from the node-config,
which only the device's owner can set
(``flower-supernode --node-config 'clients=3 data="/srv/data" shape="1,28,28" classes=10
policy="/etc/murmur/policy.yaml" state="/var/lib/murmur"'``). Without a policy a device refuses
everything.
"""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from murmur.learning.objective import Objective
from murmur.privacy.policy import Policy, Refusal
from murmur.round.secure_party import SecureParties
from murmur.round.site import DeviceSite
from murmur.secure_sum.identity import PinnedPeers, read_peers
from murmur.secure_sum.settings import OwnerRules, SecureSumSettings

SIMULATED = "simulated"  # in the node-config of the inline engine's nodes


class DeviceError(Exception):
    """A device cannot take part; the message says why, in the device's own log."""


@dataclass(frozen=True)
class OwnerSettings:
    """Clients, data and secure sums in a device owner's node-config.

    Attributes:
        clients: the ids that this device hosts, in increasing order.
        data: path of the clients' data, see ``fl_app.device.data``; None: the owner names none.
        public: path of this device's copy of the run's public pool; None: there is none.
        compute: what trains.
        precision: of convolutions, see conf/compute.
        sums: what the owner asks of secure sums.
        shape: (C, H, W) of the images; None: not said, and the device then releases nothing.
        classes: how many, or their names in the order of their labels; None: as ``shape``.
        sizes: every client's number of examples, if the owners have published these.
        num_clients: how many clients the federation has, if its owners say so.
        inputs: names of columns, where the data are tables; None: they are no tables.
        label: name of the label's column.
        label_range: the lower and the higher end of labels that are numbers; None: they are none.
        labels: names of several labels, of a table's columns of 0 and 1; None: there is one.
    """

    clients: tuple[int, ...]
    data: str | None
    public: str | None
    compute: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    sums: OwnerRules = field(default_factory=OwnerRules)
    shape: tuple[int, ...] | None = None
    classes: int | tuple[str, ...] | None = None
    sizes: tuple[int, ...] | None = None
    num_clients: int | None = None
    inputs: tuple[str, ...] | None = None
    label: str = "label"
    label_range: tuple[float, ...] | None = None
    labels: tuple[str, ...] | None = None

    @property
    def objective(self) -> Objective:
        """The task that the labels are of."""
        return Objective.of(self.label_range, self.labels)

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> "OwnerSettings":
        """The settings that the node-config holds; DeviceError names the key that is malformed.

        Flower gives numbers, text and truth values; lists are text such as '3,7'. Keys that are not
        known are ignored.
        """
        clients = _numbers(node_config, "clients") or ()
        if len(set(clients)) != len(clients):
            raise DeviceError("clients in this device's node-config: names one twice")
        compute = node_config.get("compute", "cpu")
        if compute not in ("cpu", "cuda"):
            raise DeviceError("compute in this device's node-config: must be cpu or cuda")
        precision = node_config.get("precision", "fp32")
        if precision not in ("fp32", "bf16", "auto"):
            raise DeviceError("precision in this device's node-config: must be fp32, bf16 or auto")
        shape = _numbers(node_config, "shape")
        if shape is not None and (len(shape) != 3 or min(shape) < 1):
            raise DeviceError("shape in this device's node-config: must be such as '1,28,28'")
        sizes = _numbers(node_config, "sizes")
        found = cls(
            clients=tuple(sorted(clients)),
            data=_text(node_config, "data"),
            public=_text(node_config, "public"),
            compute=compute,
            precision=precision,
            sums=_sum_rules(node_config),
            shape=shape,
            classes=_classes(node_config),
            sizes=sizes,
            num_clients=_num_clients(node_config, sizes),
            inputs=_names(node_config, "inputs"),
            label=_text(node_config, "label") or "label",
            label_range=_reals(node_config, "label_range"),
            labels=_names(node_config, "labels"),
        )
        found._require_labels()
        return found

    def _require_labels(self) -> None:
        """DeviceError where the words on labels cannot be, or not of data in such files."""
        try:
            task = self.objective
        except ValueError as error:
            name, _, said = str(error).partition("=")
            raise DeviceError(f"{name} in this device's node-config: {said}") from error
        if task.has_classes:
            return
        name = "labels" if self.label_range is None else "label_range"
        if self.classes is not None:
            raise DeviceError(
                f"{name} in this device's node-config: classes is given too; leave one out"
            )
        if self.data is not None and self.inputs is None and not self.data.endswith(".npz"):
            raise DeviceError(
                f"{name} in this device's node-config: is for a table, whose columns must be named "
                "(inputs=), or an .npz file"
            )


def _text(node_config: Mapping[str, Any], key: str) -> str | None:
    """Text as it is; None where ``key`` is not set.

    DeviceError where it is empty, as a shell's variable that is not set: a path would be that of
    the folder in which the process was started.
    """
    if node_config.get(key) is None:
        return None
    text = str(node_config[key])
    if not text.strip():
        raise DeviceError(
            f"{key} in this device's node-config: is empty; give it a value, or leave it out"
        )
    return text


def _numbers(node_config: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    """Whole numbers such as '3,7'; None where ``key`` is not set, or empty."""
    words = str(node_config.get(key, "")).replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise DeviceError(f"{key} in this device's node-config: must be such as '3' or '3,7'")
    return tuple(int(word) for word in words) or None


def _reals(node_config: Mapping[str, Any], key: str) -> tuple[float, ...] | None:
    """Finite numbers such as '0,60'; None where ``key`` is not set."""
    text = _text(node_config, key)
    if text is None:
        return None
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise DeviceError(f"{key} in this device's node-config: must be such as '0,60'")
    return found


def _names(node_config: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Names such as 'age,dose'; None where ``key`` is not set."""
    text = _text(node_config, key)
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(","))


def _classes(node_config: Mapping[str, Any]) -> int | tuple[str, ...] | None:
    """How many classes, or their names."""
    text = _text(node_config, "classes")
    if text is not None and text.isdecimal():
        return int(text)
    return _names(node_config, "classes")


def _num_clients(node_config: Mapping[str, Any], sizes: tuple[int, ...] | None) -> int | None:
    """How many clients the federation has; None where its owners do not say."""
    _text(node_config, "num_clients")  # an empty one would let the server say how many there are
    found = _numbers(node_config, "num_clients")
    if found is None:
        return None
    if len(found) > 1 or found[0] == 0 or (sizes and found[0] != len(sizes)):
        raise DeviceError(
            "num_clients in this device's node-config: must be one number of at least 1, and "
            "that of the sizes, where these are given"
        )
    return found[0]


def _sum_rules(node_config: Mapping[str, Any]) -> OwnerRules:
    """Returns the fields of ``OwnerRules`` that are given; ``peers=FILE`` of public keys.

    DeviceError for all of them together: the underlying error is its cause, in the device's log.
    """
    peers = _text(node_config, "peers")
    neighbours = node_config.get("neighbours", "all")
    try:
        return OwnerRules(
            colluders=int(node_config.get("colluders", 0)),
            honest_clients=int(node_config.get("honest_clients", 1)),
            neighbours=None if neighbours == "all" else int(neighbours),
            threshold=float(node_config.get("threshold", 0)),
            server=node_config.get("server", "lying"),
            peers=None if peers is None else PinnedPeers(read_peers(Path(peers).expanduser())),
        )
    except (ValueError, TypeError, OSError) as error:
        raise DeviceError(
            "colluders, honest_clients, neighbours, threshold, server, peers in this device's "
            "node-config: must be whole numbers of at least 0 and 1, one of at least 2 or all, a "
            "share below 1, lying or honest, and a file of clients' ids and public keys"
        ) from error


@dataclass(frozen=True)
class NodeSettings(DeviceSite):
    """A device's site, with what its ``owner`` has put here beside the policy.

    Attributes:
        owner: the owner's words on clients, data and secure sums. Folder, run and policy are those
            of ``DeviceSite``.
    """

    owner: OwnerSettings

    def require_policy(self) -> None:
        """DeviceError unless the policy holds at this instant.

        Asked before anything that a server has sent is read: a device without a policy answers
        alike to whatever it is asked.
        """
        try:
            self.policy.require_valid(datetime.now(UTC))
        except Refusal as refusal:
            raise DeviceError(
                "this device has no policy that is valid now, so everything is refused"
            ) from refusal

    def parties(self, run: SecureSumSettings) -> SecureParties:
        """The clients in secure sums, under their owner's rules.

        Args:
            run: the run's settings of sums. Only whether there are any is taken from it: what a sum
                must be like is the owner's to say.
        """
        return SecureParties(self, self.owner.clients, self.owner.sums, run.is_on)

    @classmethod
    def device(cls, node_config: Mapping[str, Any], run: str) -> "NodeSettings":
        """A device, by what its owner has set in its node-config.

        From here on what this process writes is readable by its user only. A policy that is missing
        or malformed raises nothing: it refuses everything.

        Args:
            node_config: the owner's.
            run: the run's name in the ledger until a better one is known.

        Raises:
            DeviceError: the node-config is malformed; names the key.
        """
        os.umask(0o077)  # decoded data, sums' secrets and logs are their owner's only
        path = _text(node_config, "policy")
        if path is None:
            rules = Policy("this device's node-config", "it names no policy file (policy=PATH)")
        else:
            rules = replace(Policy.load(path), source="this device's policy")
        owner = OwnerSettings.of(node_config)
        return cls(device_folder(node_config), run, rules, owner)


def is_simulated(node_config: Mapping[str, Any]) -> bool:
    """Tells whether the engine, and not a device's owner, started this node.

    Flower's simulation runs clients in Ray actors, and a SuperNode's process is none, also where
    somebody's code starts Ray there. Nothing that a server sends is looked at: a device cannot be
    told that it is simulated.

    Args:
        node_config: the node's; the inline engine marks its own.
    """
    if node_config.get(SIMULATED) is True:
        return True
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


def device_folder(node_config: Mapping[str, Any]) -> Path:
    """The folder in which a device keeps its ledger and its clients' state.

    ``state`` in the node-config, or ``~/.murmur/device``; DeviceError where it is empty.
    """
    return Path(_text(node_config, "state") or "~/.murmur/device").expanduser().absolute()
