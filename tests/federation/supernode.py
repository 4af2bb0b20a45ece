"""A SuperNode without a SuperLink: Flower's runtime API, and messages put in by hand."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree, no_object_id_recompute
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message

from fl_app.device.proof import Proving
from tests.federation.loopback import free_port, wait_for

SECRET = b"a secret of this machine"
SUPERLINK = "127.0.0.1:9092"
BUNDLE = b"not even an archive"  # nobody may unpack it
NODE, RUN = 7, 1


class SuperNode:
    """Serves its API on a free port, from construction until ``close``.

    ``bundle``: the code that its server sends. ``secret``: None lets anybody take tasks.
    """

    def __init__(self, bundle: bytes = BUNDLE, secret: bytes | None = SECRET) -> None:
        self.bundle, self.hash = bundle, hashlib.sha256(bundle).hexdigest()
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state: Any = factory.state()  # a task's last sign of life is no part of its interface
        self.state.set_node_id(NODE)
        self.address = f"127.0.0.1:{free_port()}"
        flower = create_app(factory, secret)
        app = flower if secret is None else Proving(flower, secret, SUPERLINK)
        port = int(self.address.rpartition(":")[2])
        config = uvicorn.Config(app, port=port, log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_for(lambda: self.server.started, 60, "the runtime API")

    def close(self) -> None:
        """Stop serving."""
        self.server.should_exit = True
        self.thread.join()

    def run(
        self,
        run_config: dict,
        app: str = "murmur/murmur-fl",
        version: str = "1.0.0",
        config: Mapping[str, Any] = MappingProxyType({"clients": 99}),
    ) -> None:
        """What a server has started here; ``config``: with which the SuperNode was started."""
        fab = Fab(self.hash, self.bundle, {})
        run = Run.create_empty(RUN)
        run.fab_id, run.fab_version, run.fab_hash = app, version, self.hash
        self.state.store_run(run)
        self.state.store_fab(fab)
        context = Context(RUN, NODE, dict(config), RecordDict(), run_config)
        self.state.set_run_series_context(run.series_id, context)

    def ask(
        self,
        content: RecordDict,
        kind: str = "train",
        task_type: TaskType = TaskType.CLIENT_APP,
        late: float = 0.0,
        broken_off: bool = False,
    ) -> int:
        """Put in a task and, ``late`` seconds after it, its message; the task's number.

        ``broken_off``: the SuperLink was gone before the message's content had come.
        """
        TaskIdentity.task_id = TaskIdentity.run_id = RUN
        TaskIdentity.node_id = 1
        message = Message(content, dst_node_id=NODE, message_type=kind, group_id="1")
        message.metadata.__dict__["_run_id"] = RUN
        task = self.state.create_task(task_type.value, RUN, self.hash)
        assert task is not None
        time.sleep(late)
        store = self.state.object_store
        if broken_off:
            with no_object_id_recompute():
                message.metadata.__dict__["_message_id"] = message.object_id
                self.state.store_message(message)
                store.preregister(RUN, get_object_tree(message))
        else:
            _insert_message(message, self.state, store)
        return task

    def reply(self, seconds: float = 60.0) -> Message:
        """The next reply, as the SuperNode would send it on; without its content."""
        found: list[Message] = []

        def look() -> bool:
            found.extend(self.state.get_messages_legacy(is_reply=True))
            return bool(found)

        wait_for(look, seconds, "a reply")
        return found[0]

    def expire(self, task: int) -> None:
        """As if a minute had passed without a sign of life."""
        self.state.task_token_store[task].active_until = datetime.now(UTC) - timedelta(seconds=1)

    def status(self, task: int) -> str:
        """As Flower says it: ``finished:completed``."""
        (found,) = self.state.get_tasks(task_ids=[task])
        return f"{found.status.status}:{found.status.sub_status}"
