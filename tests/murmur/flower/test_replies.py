"""Whatever an app returns or raises, and whatever a server asks: what leaves a device."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from murmur.flower import ClientApp, private
from murmur.flower.ask import ASKED
from murmur.privacy.ledger import Ledger
from murmur.round.task import RECORD
from tests.murmur.flower.nodes import MODEL, Nodes, app_of, record

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
TERMS = {"metrics": {"loss": (0, 1)}}


def started(grid, rounds=1, **terms):
    own = private(FedAvg(), **{**BUDGET, **TERMS, **terms})
    return own.start(grid, record(MODEL), num_rounds=rounds, timeout=0.5)


def _array(values):
    return Array(np.asarray(values))


numbers = st.sampled_from([0.0, 1.0, -3.0, 1e30, float("nan"), float("inf")])
arrays = st.builds(
    lambda shape, value, kind: _array(np.full(shape, value).astype(kind, casting="unsafe")),
    st.sampled_from([(4, 3), (3,), (), (0,), (5,), (2, 2)]),
    st.sampled_from([0.0, 1.0, 7.0, float("nan"), float("inf")]),
    st.sampled_from(["float32", "float64", "float16"]),
)
array_records = st.dictionaries(
    st.sampled_from([*MODEL, "extra", "", "murmur"]), arrays, max_size=7
).map(ArrayRecord)
metric_records = st.dictionaries(
    st.sampled_from(["loss", "num-examples", "secret"]),
    st.one_of(numbers, st.integers(-(2**60), 2**60), st.lists(numbers, max_size=3)),
).map(MetricRecord)
config_records = st.dictionaries(
    st.sampled_from(["a", "secret"]), st.one_of(st.text(max_size=20), st.binary(max_size=20))
).map(ConfigRecord)
contents = st.dictionaries(
    st.sampled_from(["arrays", "metrics", "config", "murmur", "secure_sum", "report", "secret"]),
    st.one_of(array_records, metric_records, config_records),
    max_size=4,
)
whatever = st.one_of(
    contents,
    st.sampled_from(
        [
            ValueError("a secret"),
            KeyError("a secret"),
            MemoryError("a secret"),
            RecursionError(),
            SystemExit("a secret"),
        ]
    ),
    st.sampled_from(["none", "text", "error", "itself"]),
)


class _Whatever:
    """An app that does what it is given next."""

    def __init__(self):
        self.next = None
        self.app = ClientApp()

        @self.app.train()
        def train(message, context):
            if isinstance(self.next, BaseException):
                raise self.next
            context.state["secret"] = ConfigRecord({"secret": 1})
            match self.next:
                case "none":
                    return None
                case "text":
                    return "a secret"
                case "error":
                    return Message(Error(0, "a secret"), reply_to=message)
                case "itself":
                    return message
            return Message(RecordDict(self.next), reply_to=message)


def _shape(reply):
    """Names and lengths of all that leaves in a reply."""
    assert not reply.has_error()
    shape = {}
    for name, held in reply.content.items():
        for key, value in held.items():
            size = len(value.data) if isinstance(value, Array) else json.dumps(value)
            shape[name, key] = size
    return shape


@pytest.mark.parametrize("sums", [5, pytest.param(100, marks=pytest.mark.long)])
def test_every_reply_of_a_device_has_the_same_names_and_lengths(tmp_path, sums):
    """Each case is a client of a sum of its own, in its own folder, that is asked to train."""
    one = _Whatever()
    seen = []
    cases = 0

    @settings(
        max_examples=sums,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(whatever, min_size=10, max_size=10))
    def tried(given_replies):
        nonlocal cases
        cases += len(given_replies)
        queue = list(given_replies)

        def app(message, context):
            one.next = queue[context.node_config["partition-id"]]
            return one.app(message, context)

        grid = Nodes(app, 10, devices=tmp_path / str(cases))
        grid._pool = ThreadPoolExecutor(1)  # ``one`` does what is next, one node after the other
        started(grid)
        for reply in grid.replies:
            if reply.metadata.message_type == "train":
                seen.append(_shape(reply))

    tried()
    assert cases >= 10 * sums and len(seen) >= 10 * sums
    alike = {json.dumps({str(k): v for k, v in s.items() if k[1] != "clients"}) for s in seen}
    assert len(alike) == 1
    assert "secret" not in str(seen)


FIELDS = {
    "noise_multiplier": 100.0,
    "minimum": 9,
    "purpose": "evaluate",
    "frozen": ["encoder"],
    "metrics": [["loss", 0.0, 2.0]],
    "clip": 2.0,
    "rounds": 5,
    "colluders": 2,
}


@pytest.mark.parametrize("field", [*FIELDS, "arrays", "config"])
@pytest.mark.parametrize("whom", [{3}, set(range(8)) - {3}])
def test_who_is_asked_something_else_ends_the_sum(field, whom, tmp_path, caplog):
    def other(message, node):
        about = message.content.config_records.get(RECORD)
        if node not in whom or about is None or about["phase"] != "mask":
            return message
        changed = RecordDict(dict(message.content))
        if field == "arrays":
            model = {**MODEL, "weights": MODEL["weights"] + 1}
            changed["arrays"] = record(model)
        elif field == "config":
            changed["config"] = ConfigRecord({"lr": 1.0})
        else:
            asked = ConfigRecord(dict(changed[ASKED]))
            plain = json.loads(asked["ask"])
            plain[field] = FIELDS[field]
            asked["ask"] = json.dumps(plain, sort_keys=True)
            changed[ASKED] = asked
        message.content = changed
        return message

    result = started(Nodes(app_of(), devices=tmp_path, spoil=other))
    model = result.arrays or record(MODEL)
    if field not in ("arrays", "config") and whom == {3}:
        # It refuses before it pays, and the others' sum is without it.
        with Ledger(tmp_path / "3" / "ledger.sqlite") as ledger:
            assert ledger.releases() == 0
        with Ledger(tmp_path / "4" / "ledger.sqlite", create=False) as ledger:
            assert ledger.releases() == 1
        return
    assert "round 1 was lost" in caplog.text
    assert model["weights"].data == record(MODEL)["weights"].data


def _imported(line):
    code = f"import sys; {line}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = ["torch", "scipy", "hydra", "ray", "omegaconf", "sklearn", "pandas"]


def test_a_client_imports_nothing_heavy():
    assert _imported("from murmur.flower import ClientApp") == "[]"


def test_a_server_imports_no_torch():
    assert "torch" not in _imported("from murmur.flower import private")
    assert "hydra" not in _imported("from murmur.flower import private")
