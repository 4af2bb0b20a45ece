"""Replies are counted before they are read: what repeats itself swells nobody's memory."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.array import Array as ArrayObject
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid

from murmur.compat.flower_messages import (
    PART_SECONDS,
    ReplyLimit,
    inflated_size,
    limit_replies,
    pull_parts_soon,
)

MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def deflated(values):
    """A node's reply as it travels: its id, and {object id: bytes}."""
    content = RecordDict({"contribution": ArrayRecord({"sum": Array(values)})})
    message = Message(content, dst_node_id=1, message_type="train", group_id="7")
    objects = get_all_nested_objects(message)
    return message.object_id, {name: found.deflate() for name, found in objects.items()}


def repeated(contents, times):
    """The same reply with an array that says its one part comes ``times`` times."""
    (name, array) = next((n, c) for n, c in contents.items() if c.startswith(b"Array "))
    body = json.loads(get_object_body(array, ArrayObject))
    _, _, old_body = array.partition(b"\x00")
    new_body = json.dumps(body | {"arraychunk_ids": [0] * times}).encode()
    head = array[: len(array) - len(old_body) - 1].rsplit(b" ", 1)[0]
    return contents | {name: head + b" " + str(len(new_body)).encode() + b"\x00" + new_body}


def test_an_honest_reply_comes_through():
    limit, values = ReplyLimit(MEGABYTE), np.arange(1000)
    name, contents = deflated(values)
    message = limit.inflating(inflate_object_from_contents)(name, dict(contents))
    assert np.array_equal(message.content["contribution"]["sum"].numpy(), values)


def test_a_reply_that_would_swell_is_its_nodes_error_and_takes_no_memory():
    limit = ReplyLimit(4 * MEGABYTE)
    name, contents = deflated(np.zeros(MEGABYTE // 8))
    swelling = repeated(contents, 1200)
    assert inflated_size(swelling) > 1200 * MEGABYTE > 500 * sum(map(len, swelling.values()))
    tracemalloc.start()
    message = limit.inflating(inflate_object_from_contents)(name, swelling)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.has_error() and "larger than" in message.error.reason
    assert message.metadata.group_id == "7" and peak < 10 * MEGABYTE


def test_a_reply_that_makes_no_sense_is_its_nodes_error_too():
    name, contents = deflated(np.zeros(10))
    broken = {key: content for key, content in contents.items() if content[:6] != b"ArrayC"}
    message = ReplyLimit(MEGABYTE).inflating(inflate_object_from_contents)(name, broken)
    assert message.has_error()


def test_what_is_no_message_is_an_answer_to_none():
    # A SuperLink's store takes all three; Flower's next line is about the message that was read.
    record = ConfigRecord({"a": 1})
    heads = [b"noise", record.deflate(), b"Message  5\x00\xff\xff\xff\xff\xff"]
    for head in heads:
        message = ReplyLimit(MEGABYTE).inflating(inflate_object_from_contents)("it", {"it": head})
        assert message.has_error() and message.metadata.reply_to_message_id == ""


def test_no_more_is_fetched_than_may_be_read():
    fetched = []

    def fetch(name):
        fetched.append(name)
        return bytes(MEGABYTE)

    pull = ReplyLimit(3 * MEGABYTE).pulling(pull_objects)
    assert len(pull(["a", "b"], fetch)) == 2
    with pytest.raises(ObjectPullError, match="larger than"):
        pull([str(i) for i in range(500)], fetch)
    assert len(fetched) < 100


def test_what_a_round_needs_raises_the_limit_and_nothing_lowers_it():
    limit = ReplyLimit(MEGABYTE)
    limit.allow(10 * MEGABYTE, 2)
    most = limit.bytes
    assert most > 2 * 8 * 10 * MEGABYTE
    limit.allow(1, 1)
    assert limit.bytes == most


@pytest.fixture
def unmended(monkeypatch):
    monkeypatch.setattr(http_grid, "pull_objects", pull_objects)
    monkeypatch.setattr(http_grid, "inflate_object_from_contents", inflate_object_from_contents)


def test_flowers_own_grid_keeps_to_it(unmended):
    limit_replies()
    limit_replies()
    assert http_grid.pull_objects.__wrapped__ is pull_objects
    assert http_grid.inflate_object_from_contents.__wrapped__ is inflate_object_from_contents


def test_flowers_own_grid_looks_soon_for_parts_that_are_on_their_way(unmended, monkeypatch):
    waits = []
    monkeypatch.setattr(http_grid, "pull_objects", lambda *_, **options: waits.append(options))
    for _ in range(2):
        limit_replies()
        pull_parts_soon()
    http_grid.pull_objects(["a"], None)
    assert waits == [{"initial_backoff": PART_SECONDS}]


def test_a_simulation_does_not_wait_for_the_grid_of_a_superlink(tmp_path):
    run = ["strategy=fedavg", "federation.num_rounds=1", "tracking=none", f"run_dir={tmp_path}/run"]
    code = (
        "import sys; from fl_app.cli import main; "
        f"status = main({run}); "
        "sys.exit(status or 'flwr.superlink.grid' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
