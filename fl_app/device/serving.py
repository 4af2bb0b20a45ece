"""A device that answers a run of this Murmur, with the ClientApp that is installed here.

The code that a server sends along with its run (Flower's bundle) is neither unpacked nor imported.
Policy, clients and data are those that the owner has named to this process; what the SuperNode says
about them is ignored. So nothing rests on a server's bundle being honest.

How tasks are taken and answered: ``fl_app.device.resident``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import Context, Message

import fl_app
import fl_app.device.health
import fl_app.device.hosts  # so that forks need not
from fl_app import DISTRIBUTION as APP
from fl_app.client_app import app
from fl_app.device.flower_runtime import Task, TaskInput
from fl_app.device.node_settings import DeviceError, device_folder
from fl_app.device.resident import Resident


class Device(Resident):
    """Answers tasks with the ClientApp that is installed here.

    Args:
        owner: the node-config, as the owner has given it to this process.
        bundles: SHA-256, in lower-case hex, of the bundles whose runs may ask; none: any.
    """

    def __init__(self, owner: Mapping[str, Any], bundles: Collection[str] = ()) -> None:
        super().__init__(owner, device_folder(owner), bundles)

    def reply(self, task_input: TaskInput, context: Context) -> Message:
        """What the ClientApp answers."""
        return app(task_input.message, context)

    def require_answerable(self, task: Task, task_input: TaskInput) -> None:
        """DeviceError where a task is not for the ClientApp that is installed here.

        It must be a ClientApp's, of this app and minor version, and of a bundle that the owner has
        named, if the owner has named any.
        """
        super().require_answerable(task, task_input)
        if task_input.app.rpartition("/")[2] != APP:
            raise DeviceError(
                f"this device runs no code that is sent to it; it answers runs of {APP} only"
            )
        mine = fl_app.version()
        if mine.split(".")[:2] != task_input.version.split(".")[:2]:
            raise DeviceError(
                f"this device has {APP} {mine}, the run is of version {task_input.version:.20}; "
                "both must be of one minor version"
            )
