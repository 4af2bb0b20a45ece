"""What Flower, Hydra and Ray do by themselves, for each thing that murmur/compat mends or replaces.

A test that fails here says that a mend is no longer needed: take it out, with its test.
"""

import argparse
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import httpx
import hydra
import numpy as np
import pytest
import yaml
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode, Status
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node as NodeMessage
from flwr.proto.runtime_pb2 import SendTaskHeartbeatResponse
from flwr.server.superlink.fleet.vce.vce_api import worker
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.heartbeat import make_task_heartbeat_fn_http
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.supernode import start_client_internal as flower
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from omegaconf._utils import get_yaml_loader

from fl_app.config.groups import CONF
from fl_app.device.proof import PATH
from murmur.compat.flower_messages import PART_SECONDS, identify, inflated_size
from murmur.compat.hydra_parser import hydra_parser, reading_by_libyaml
from tests.murmur.compat.supernodes import (
    BROKEN,
    NO_ARCHIVE,
    NO_SIGNATURE,
    Node,
    an_answer_that_nobody_waits_for,
    invoke,
    question,
)
from tests.murmur.compat.test_reply_limit import deflated, repeated

ASKED, OTHER = 101, 102


@pytest.fixture(autouse=True)
def identity():
    identify()


def a_message(node=ASKED):
    message = Message(RecordDict(), dst_node_id=node, message_type="train", group_id="7")
    message.metadata.__dict__["_message_id"] = f"m{node}"
    return message


# flower_messages ---------------------------------------------------------------------------------


def test_a_process_that_says_no_task_can_make_no_message(monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_node_id", None)
    with pytest.raises(RuntimeError, match="node_id is not set"):
        Message(RecordDict(), dst_node_id=ASKED, message_type="train")


def test_a_message_has_no_way_to_be_given_its_id_or_that_of_its_question():
    for name in ("message_id", "reply_to_message_id"):
        with pytest.raises(AttributeError):
            setattr(a_message().metadata, name, "m")


def test_flower_decodes_a_reply_that_swells():
    name, contents = deflated(np.zeros(2**10))
    swelling = repeated(contents, 500)
    travels = sum(map(len, swelling.values()))
    assert inflated_size(swelling) > 100 * travels
    message = inflatable_utils.inflate_object_from_contents(name, swelling)
    assert len(message.content["contribution"]["sum"].data) > 100 * travels


def test_flower_raises_for_a_reply_that_cannot_be_decoded():
    name, contents = deflated(np.zeros(10))
    broken = {key: content for key, content in contents.items() if content[:6] != b"ArrayC"}
    with pytest.raises(KeyError):
        inflatable_utils.inflate_object_from_contents(name, broken)


def test_flower_looks_for_a_part_that_is_on_its_way_after_most_of_a_second(monkeypatch):
    waits = []
    monkeypatch.setattr(
        threading.Event, "wait", lambda self, timeout=None: waits.append(timeout) or True
    )
    looks = []

    def pull(object_id):
        looks.append(object_id)
        if len(looks) == 1:
            raise inflatable_utils.ObjectUnavailableError(object_id)
        return b"content"

    assert inflatable_utils.pull_objects(["a"], pull) == {"a": b"content"}
    assert max(each for each in waits if each is not None) > 5 * PART_SECONDS


# flower_grid -------------------------------------------------------------------------------------


def test_flowers_superlink_takes_a_reply_in_another_nodes_name():
    reply = Message(RecordDict(), reply_to=a_message(ASKED))
    reply.metadata.__dict__["_message_id"] = "r"
    request = PushMessagesRequest(
        node=NodeMessage(node_id=OTHER),  # whose key has signed
        messages_list=[message_to_proto(reply)],
        message_object_trees=[ObjectTree()],
    )
    state = MagicMock()
    state.get_run_status.return_value = {1: SimpleNamespace(status=Status.RUNNING)}
    state.start_session.return_value = "session"
    state.store_message_and_object_tree.return_value = (True, [])
    fleet_handlers.push_messages(request, state)
    (stored, *_), _ = state.store_message_and_object_tree.call_args
    assert stored.metadata.src_node_id == ASKED


def test_flowers_superlink_hands_out_a_message_once():
    federation = MagicMock()
    federation.filter_nodes.side_effect = lambda nodes, _: nodes
    state = InMemoryLinkState(federation, ObjectStoreFactory().store())
    run = SimpleNamespace(run=SimpleNamespace(federation_id="f"))
    state.run_ids[1] = run
    message = a_message()
    message.metadata.__dict__["_run_id"] = 1
    state.message_ins_store[message.metadata.message_id] = message
    assert len(state.get_message_ins(ASKED, 1)) == 1
    assert state.get_message_ins(ASKED, 1) == []


def test_flowers_grid_ends_the_run_where_the_superlinks_database_is_locked():
    def locked(request):
        response = httpx.Response(500, request=httpx.Request("POST", "https://superlink/pull"))
        response.raise_for_status()

    grid = object.__new__(HttpGrid)
    grid._run = SimpleNamespace(run_id=1)
    grid._client = SimpleNamespace(PullMessages=locked)
    with pytest.raises(httpx.HTTPStatusError):
        grid.pull_messages(["m"])


def test_flowers_simulation_reports_a_lost_worker_as_an_error_of_the_node():
    stop = threading.Event()
    replies = []

    def lost(message, context):
        raise OSError("the worker is gone")

    def put(reply):
        replies.append(reply)
        stop.set()

    questions = SimpleNamespace(get=lambda timeout: a_message())
    contexts = {ASKED: SimpleNamespace(retrieve_context=lambda run_id: None)}
    backend = SimpleNamespace(process_message=lost)
    worker(questions, SimpleNamespace(put=put), contexts, backend, stop, MagicMock())
    (reply,) = replies
    assert reply.error.code == ErrorCode.UNKNOWN


# flower_runtime ----------------------------------------------------------------------------------


def test_flowers_sign_of_life_interrupts_the_process_when_its_task_is_no_more(monkeypatch):
    sent = []
    monkeypatch.setattr(signal, "raise_signal", sent.append)
    client = SimpleNamespace(SendTaskHeartbeat=lambda _: SendTaskHeartbeatResponse(success=False))
    make_task_heartbeat_fn_http(client)()
    assert sent == [signal.SIGINT]


def test_flowers_client_of_a_supernode_goes_by_way_of_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = RuntimeHttpClient.from_server_address(
        server_address="127.0.0.1:9094",
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeTokenHttpInterceptor("token")],
    )
    assert client._client.trust_env
    client.close()


# flower_supernode --------------------------------------------------------------------------------


def test_flowers_supernode_proves_nothing():
    factory = NodeStateFactory(ObjectStoreFactory())
    assert PATH not in {getattr(route, "path", "") for route in create_app(factory, b"s").routes}


@pytest.mark.parametrize("error", BROKEN)
def test_flowers_supernode_gives_up_where_a_connection_breaks_off(error):
    assert invoke(make_simple_http_retry_invoker, error) == 1


def test_flowers_supernode_sends_an_answer_that_nobody_waits_for_instead_of_the_next(monkeypatch):
    node = Node(question(1), question(2))
    first, _ = node.messages
    monkeypatch.setattr(flower.time, "sleep", lambda seconds: pytest.fail("it waits"))
    an_answer_that_nobody_waits_for(node, flower._pull_and_store_message)
    node.push(flower._push_messages)
    assert [m.metadata.reply_to_message_id for m in node.sent] == [first.metadata.message_id]


@pytest.mark.parametrize(("bundle", "trusted"), [(NO_ARCHIVE, None), (NO_SIGNATURE, {"fpk_1": ""})])
def test_flowers_supernode_ends_at_a_bundle_that_cannot_be_read(bundle, trusted):
    node = Node(question(1))
    node.messages[0].metadata.__dict__["_run_id"] = 2  # a run that it does not know yet
    node.trusted = trusted
    with pytest.raises(Exception, match=r"zip|Expecting value"):
        node.pull(flower._pull_and_store_message, bundle)


def test_flowers_supernode_waits_three_seconds_between_two_looks(monkeypatch):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(flower, "_pull_and_store_message", lambda **_: None)
    monkeypatch.setattr(flower, "register_signal_handlers", lambda **_: None)
    connection = MagicMock()
    connection.__enter__.return_value = (7, *[None] * 7)
    monkeypatch.setattr(flower, "_init_connection", lambda **_: connection)
    monkeypatch.setattr(flower.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        flower.start_client_internal(
            state_factory=NodeStateFactory(ObjectStoreFactory()),
            server_address="127.0.0.1:9",
            node_config={},
            insecure=True,
            isolation="process",
        )
    assert waits == [3]


# hydra_parser ------------------------------------------------------------------------------------


def test_hydra_has_no_public_parser():
    public = {name for name in vars(hydra) if not name.startswith("_")}
    assert not any("pars" in name for name in public)
    assert isinstance(hydra_parser(), argparse.ArgumentParser)


def test_omegaconf_reads_yaml_in_python_and_the_same_by_libyaml():
    files = sorted(CONF.rglob("*.yaml"))
    usual = yaml.SafeLoader
    slowly = [repr(yaml.load(path.read_bytes(), get_yaml_loader())) for path in files]
    assert not issubclass(get_yaml_loader(), yaml.CSafeLoader)
    with reading_by_libyaml():
        assert issubclass(get_yaml_loader(), yaml.CSafeLoader)
        assert [repr(yaml.load(path.read_bytes(), get_yaml_loader())) for path in files] == slowly
    assert yaml.SafeLoader is usual


# ray_workers -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_ray_starts_agents_and_workers_that_import_everything_anew():
    code = """
import sys
import json, psutil, ray
sys.modules["warm"] = json  # stands for what this process has imported
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
is_warm = ray.remote(lambda: "warm" in __import__("sys").modules)
print(ray.get(is_warm.remote()))
for child in psutil.Process().children(recursive=True):
    print(" ".join(child.cmdline()))
ray.shutdown()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    is_warm, *processes = done.stdout.splitlines()
    assert is_warm == "False", done.stderr
    assert any("agent" in line for line in processes)
