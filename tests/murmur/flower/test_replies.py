"""Whatever an app returns or raises, and whatever a server asks: what leaves a device."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_app.engines.inline import FIRST_NODE
from murmur.flower import ClientApp, private
from murmur.flower.ask import ASKED, Ask
from murmur.privacy.ledger import Ledger
from murmur.round.secure_summation import SecureSummation
from murmur.round.task import RECORD, started_with
from murmur.secure_sum.terms import SumTerms, release_digest
from tests.murmur.flower.nodes import MODEL, POLICY, Nodes, app_of, changed, record, without_noise

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
TERMS = {"metrics": {"loss": (0, 1)}}


def started(grid, rounds=1, **terms):
    own = private(FedAvg(), **{**BUDGET, **TERMS, **terms})
    return own.start(grid, record(MODEL), num_rounds=rounds, timeout=0.5)


def _array(values):
    return Array(np.asarray(values))


def test_a_reply_is_dated_as_its_question():
    """Flower's metadata have the time at which a reply was made, and how long it is left."""
    asked = []

    def spoil(message, node):
        asked.append((message.metadata.created_at, message.metadata.ttl))
        return message

    grid = Nodes(app_of(), 4, spoil=spoil)
    started(grid)
    (context, *_) = grid._contexts.values()
    grid._arrive(Message(RecordDict(), dst_node_id=FIRST_NODE, message_type="train"), context)
    found = [(reply.metadata.created_at, reply.metadata.ttl) for reply in grid.replies]
    assert sorted(found) == sorted(asked)
    assert [reply.has_error() for reply in grid.replies] == [False] * (len(asked) - 1) + [True]


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
            KeyboardInterrupt("a secret"),
            GeneratorExit("a secret"),
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
        @self.app.evaluate()
        def answer(message, context):
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
    """Each case is a client of a sum, in its own folder, that is asked to train and evaluate."""
    one = _Whatever()
    seen = {"train": [], "evaluate": []}
    cases = 0

    @settings(
        max_examples=sums,
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
        grid._each = map  # ``one`` does what is next, one node after the other
        started(grid, evaluate={"accuracy": (0, 1)})
        for reply in grid.replies:
            if reply.metadata.message_type in seen:
                seen[reply.metadata.message_type].append(_shape(reply))

    tried()
    assert cases >= 10 * sums
    for shapes in seen.values():
        assert len(shapes) >= 10 * sums
        alike = {str({k: v for k, v in shape.items() if k[1] != "clients"}) for shape in shapes}
        assert len(alike) == 1
    assert "secret" not in str(seen)


@pytest.mark.parametrize("loss", [1e300, 1.7e308])
def test_what_no_float_holds_is_answered_as_any_other_reply(tmp_path, loss):
    """Else a server, and a locked-in app that sides with it, would read a bit of the data."""
    grid = Nodes(app_of(metrics={"loss": loss}), devices=tmp_path)
    with np.errstate(all="ignore"):
        started(grid, metrics={"loss": (0, 1e300)})
    reports = [r.content["report"] for r in grid.replies if r.metadata.message_type == "train"]
    assert [len(report["clients"]) for report in reports] == [1] * 8


FIELDS = {
    "noise_multiplier": 100.0,
    "minimum": 9,
    "purpose": "evaluate",
    "frozen": ["encoder"],
    "metrics": [["loss", 0.0, 2.0]],
    "clip": 2.0,
    "round": 2,
    "rounds": 5,
    "colluders": 2,
    "epsilon": 1.0,
    "delta": 1e-6,
    "simulated": True,
    "bit_weight": 0.5,
    "server": "honest",
}


def test_every_field_of_an_ask_is_lied_about():
    assert FIELDS.keys() == {field.name for field in fields(Ask)}


@pytest.mark.parametrize("field", [*FIELDS, "arrays", "config", "kind"])
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
        elif field == "kind":  # another function of the app's
            message.metadata.message_type = "train.other"
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


@pytest.mark.parametrize("whom", [{3}, set(range(8)) - {3}])
@pytest.mark.parametrize("named", [False, True])
def test_who_was_started_with_another_run_config_is_in_no_sum_with_the_others(
    named, whom, tmp_path, caplog
):
    """``named``: the server tells each its own digest, so that nobody refuses."""

    def lie(message, node):
        about = message.content.config_records.get(RECORD)
        if named and about is not None and about["phase"] == "mask":
            started = started_with(configs[node])
            asked = ConfigRecord({**message.content.config_records[ASKED], "started": started})
            message.content = RecordDict({**message.content, ASKED: asked})
        return message

    configs = [{"local-epochs": 5 if place in whom else 1} for place in range(8)]
    grid = Nodes(app_of(), devices=tmp_path, spoil=lie)
    for config, context in zip(configs, grid._contexts.values(), strict=True):
        context.run_config = config
    result = started(grid)
    paid = 0
    for place in range(8):
        with Ledger(tmp_path / str(place) / "ledger.sqlite") as ledger:
            paid += ledger.releases()
    if not named:  # those that most are not with refuse before they pay
        assert paid == 7 and result.arrays["weights"].data != record(MODEL)["weights"].data
        return
    assert "round 1 was lost" in caplog.text
    assert (result.arrays or record(MODEL))["weights"].data == record(MODEL)["weights"].data


def test_terms_without_room_for_the_release_cost_nobody_anything(tmp_path, monkeypatch):
    terms = SecureSummation.proposed
    monkeypatch.setattr(
        SecureSummation,
        "proposed",
        lambda self, clients: [
            replace(each, length=each.length - 1) for each in terms(self, clients)
        ],
    )
    started(Nodes(app_of(), 4, devices=tmp_path))
    for place in range(4):
        with Ledger(tmp_path / str(place) / "ledger.sqlite") as ledger:
            assert ledger.releases() == 0


@pytest.mark.parametrize("whom", [{3}, set(range(8)) - {3}])
@pytest.mark.parametrize("field", ["noise_multiplier", "minimum", "frozen", "metrics", "clip"])
def test_who_is_promised_another_sum_from_the_first_phase_on_sums_with_nobody(
    field, whom, tmp_path, caplog
):
    """Terms and ask agree with each other, but not with what the others are told."""
    honest = private(FedAvg(), **BUDGET, **TERMS)._privacy_settings.ask("train", 1, 6)
    lies = {
        "noise_multiplier": 0.1,
        "minimum": 7,
        "frozen": ("encoder",),
        "metrics": (("loss", 0.0, 2.0),),
        "clip": 2.0,
    }
    lie = replace(honest, **{field: lies[field]})

    def other(message, node):
        about = message.content.config_records.get(RECORD)
        if node not in whom or about is None:
            return message
        changed = RecordDict(dict(message.content))
        if about["phase"] == "advertise":
            terms = SumTerms.read(about["messages"][0]).to_dict()
            size = 16 + (5 if field != "frozen" else 0)  # with the metric
            made = "flower", "train", lie.codec(size), lie.event(), 1, 1
            assert terms["minimum"] == 6 and terms["length"] == 22  # with the weight
            terms.update(release=release_digest(*made), minimum=lie.minimum, length=size + 1)
            changed[RECORD] = ConfigRecord({**about, "messages": [SumTerms.from_dict(terms).sent]})
        elif about["phase"] == "mask":
            changed[ASKED] = ConfigRecord({**changed.config_records[ASKED], "ask": lie.to_json()})
        message.content = changed
        return message

    started(Nodes(app_of(), devices=tmp_path, spoil=other))
    paid = set()
    for place in range(8):
        with Ledger(tmp_path / str(place) / "ledger.sqlite") as ledger:
            if ledger.releases():
                paid.add(place)
    if whom == {3}:  # the others' sum is without it
        assert paid == set(range(8)) - {3}
        return
    assert "round 1 was lost" in caplog.text
    assert not paid


@pytest.mark.parametrize("whom", [{3}, set(range(8)) - {3}])
@pytest.mark.parametrize("phase", ["mask", "confirm"])
def test_who_is_told_of_other_survivors_reveals_no_second_sum(phase, whom, monkeypatch, caplog):
    """The server leaves another client out of the list of some: the sum of all, or none."""
    without_noise(monkeypatch)
    model = {name: a.astype(np.float64) for name, a in MODEL.items() if a.dtype.kind == "f"}

    def other(message, node):
        about = message.content.config_records.get(RECORD)
        if node not in whom or about is None or about["phase"] != phase:
            return message
        listed = np.unpackbits(np.frombuffer(about["messages"][0], np.uint8))
        listed[int(about["clients"] == [0])] = 0
        changed = RecordDict(dict(message.content))
        changed[RECORD] = ConfigRecord({**about, "messages": [np.packbits(listed).tobytes()]})
        message.content = changed
        return message

    own = private(FedAvg(), **BUDGET)
    result = own.start(Nodes(app_of(), spoil=other), record(model), num_rounds=1, timeout=0.5)
    if "round 1 was lost" in caplog.text:
        return
    new = {name: array.numpy() for name, array in result.arrays.items()}
    for name, base in model.items():
        steps = [changed(place)(model)[name] - base for place in range(8)]
        np.testing.assert_allclose(new[name] - base, np.mean(steps, axis=0), atol=2.0**-20)


def _imported(line):
    code = f"import sys; {line}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = ["torch", "scipy", "hydra", "ray", "omegaconf", "sklearn", "pandas"]


def test_a_client_imports_nothing_heavy():
    assert _imported("from murmur.flower import ClientApp") == "[]"


def test_a_server_imports_nothing_heavy():
    assert _imported("from murmur.flower import private") == "[]"


FIRST = """
from datetime import UTC, datetime
from murmur.flower import ClientApp
from murmur.flower.ask import Ask
from murmur.privacy.events import ComposedEvent, PureEvent, Release, SummedEvent, Unit
from murmur.privacy.policy import Policy
ask = Ask('train', 1, 3, 8.0, 1e-5, 2.0, 1.0, 7, 1)
event = SummedEvent(ask.event(), 6)
policy = Policy.load('{policy}')
policy.check(algorithm='flower', event=event, spent=ComposedEvent(({spent})), delta=1e-5,
             seeded_noise=False, now=datetime.now(UTC))
"""
OTHER = "Release(PureEvent(0.1), Unit.CLIENT, 'replace_one'),"


@pytest.mark.parametrize(("spent", "loaded"), [("", False), ("event,", False), (OTHER, True)])
def test_a_first_gaussian_release_is_admitted_without_the_accountant(tmp_path, spent, loaded):
    (tmp_path / "policy.yaml").write_text(POLICY)
    code = FIRST.format(policy=tmp_path / "policy.yaml", spent=spent)
    assert ("scipy" in _imported(f"exec({code!r})")) == loaded
