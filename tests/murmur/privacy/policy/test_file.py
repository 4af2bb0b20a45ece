"""A policy file with a mistake refuses everything, and no accident makes one allow more."""

import math
from datetime import timedelta

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.events import (
    Adjacency,
    Assumption,
    DiscreteGaussianEvent,
    NonPrivateEvent,
    PureEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    Unit,
)
from murmur.privacy.policy import Policy, Refusal
from tests.murmur.privacy.policy.policy_cases import EXAMPLE, LABELS, NOW, ask, client, refusal
from tests.sums import reported


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("expires", "never", "expires='never': must be a date such as 2027-12-31"),
        ("expires", "2027-13-01", "expires='2027-13-01': month must be"),
        ("expires", "20271231", "must be a date"),
        ("servers", "all", "servers='all': must be any, or a list of the keys that"),
        ("servers", ["hospital.example"], "'hospital.example': must be a public key of 64 small"),
        ("servers", [], "servers=[]: must be any, or a list"),
        ("servers", ["01" + "0" * 62], "is a key of small order, under which anybody can sign"),
        ("algorithms", "privatekt", "algorithms='privatekt': must be a list of names"),
        ("algorithms", [""], "must be a list of names"),
        ("algorithms", ["privatekt"], "'nbafl' in epsilon_per_release is not known"),
        ("algorithms", ["privatekt", "nbafl", "x"], "'x' is missing in epsilon_per_release"),
        ("mechanisms", [], "mechanisms=[]: must be a mapping whose keys are among"),
        ("mechanisms", {"gaussian": "1.0"}, "mechanisms.gaussian='1.0': must be a mapping"),
        ("mechanisms", {"magic": {"max_epsilon": "1"}}, "must be a mapping whose keys are among"),
        (
            "mechanisms",
            {"gaussian": {}},
            "'min_noise_multiplier' is missing in mechanisms.gaussian",
        ),
        ("mechanisms", {"gaussian": {"max_epsilon": "1"}}, "'max_epsilon' in mechanisms.gaussian"),
        ("mechanisms", {"pure": {"max_epsilon": "0"}}, "mechanisms.pure.max_epsilon='0': must be"),
        ("epsilon_per_release", "-1", "epsilon_per_release='-1': must be a number above 0"),
        ("epsilon_per_release", "nan", "must be a number"),
        ("epsilon_per_release", {"privatekt": "5"}, "'nbafl' is missing in epsilon_per_release"),
        ("epsilon_per_release", ["5"], "must be a number"),
        ("epsilon_per_lifetime", "1_000", "epsilon_per_lifetime='1_000': must be a number"),
        ("epsilon_per_lifetime", "1:30", "must be a number"),
        ("epsilon_per_lifetime", "0", "must be a number above 0"),
        ("epsilon_per_lifetime", ".inf", "allow_non_private=false: must be true where"),
        ("delta", "1", "delta='1': must be a number at least 0 and at most 0.5"),
        ("delta", "", "must be a number"),
        ("threat", "central", "threat='central': must be one of local, secure_aggregation"),
        ("unit", "patient", "unit='patient': must be one of client, record"),
        ("adjacency", "near", "adjacency='near': must be one of as_stated, replace_one"),
        ("assumptions", "erm", "assumptions='erm': must be a list of names"),
        ("minimum_surviving_clients", "0", "must be a whole number of at least 1"),
        ("minimum_surviving_clients", "2.5", "must be a whole number"),
        ("allow_seeded_noise", "yes", "allow_seeded_noise='yes': must be true or false"),
        ("allow_non_private", "", "must be true or false"),
        ("allow_non_private", ["true"], "must be true or false"),
        ("clip", "3", "clip='3': must be any, or norms such as {min: 0.01, max: 10}"),
        ("clip", {"min": "1"}, "'max' is missing in clip"),
        ("clip", {"min": "0", "max": "1"}, "clip.min='0': must be a number above 0"),
        ("clip", {"min": "2", "max": "1"}, "clip.min=2: must be at most clip.max=1"),
        ("model", "no", "model='no': must be one of refuse, finite, any"),
        ("model_mib", "0", "model_mib='0': must be a whole number of at least 1"),
        ("receipts", "sizes", "receipts='sizes': must be one of none, run, run, sizes"),
        ("epsilon_per_day", "1", "'epsilon_per_day' in the file is not known"),
    ],
)
def test_a_mistake_in_the_file_refuses_everything_and_is_named(load, plain, key, value, words):
    policy = load({**plain, key: value})
    refused = refusal(policy)
    assert refused.code == "policy-malformed"
    assert words in refused.reason and "everything is refused" in refused.reason


@pytest.mark.parametrize("value", ["", "none", "AB" * 16, "ab" * 15, ["ab" * 16]])
def test_a_ledger_is_named_by_its_id(load, plain, value):
    assert load({**plain, "ledger": "ab" * 16}).ledger == "ab" * 16
    assert load({**plain, "ledger": "any"}).ledger is None
    assert "must be any, or the id" in refusal(load({**plain, "ledger": value})).reason


def test_no_key_may_be_missing(load, plain):
    optional = {"unit", "adjacency", "assumptions", "ledger", "clip"}
    optional |= {"model", "model_mib", "receipts"}
    for key in plain.keys() - optional:
        policy = load({name: value for name, value in plain.items() if name != key})
        assert f"'{key}' is missing in the file" in refusal(policy).reason


def test_norms_are_any_or_lie_between_two(load, plain):
    for policy in (load(plain), load({name: plain[name] for name in plain.keys() - {"clip"}})):
        policy.check_clip(1e-30)
        policy.check_clip(1e30)
    policy = load({**plain, "clip": {"min": "0.01", "max": "1e1"}})
    for norm in (0.01, 0.1, 10.0):
        policy.check_clip(norm)
    for norm in (0.009, 10.1, math.nan):
        with pytest.raises(Refusal, match=r"clipping norms from 0\.01 to 10; the device's owner"):
            policy.check_clip(norm)


def test_without_a_word_models_with_a_finite_epsilon_are_kept_up_to_a_size(load, plain):
    for key in ("model", "model_mib"):
        plain.pop(key)
    policy = load(plain)
    policy.check_model_size(256 * 2**20)
    policy.check_model_privacy(protects_model=True)
    with pytest.raises(Refusal, match="model_mib"):
        policy.check_model_size(256 * 2**20 + 1)
    with pytest.raises(Refusal, match="without a finite ε"):
        policy.check_model_privacy(protects_model=False)
    with pytest.raises(Refusal, match="no model"):
        Policy.simulation().check_model_size(1)


def test_without_a_word_no_receipt_is_given(load, plain):
    with pytest.raises(Refusal, match="none to be given"):
        load({key: value for key, value in plain.items() if key != "receipts"}).require_receipts()
    load({**plain, "receipts": "run, sizes"}).require_receipts()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"- a\n",
        b"just text",
        b"{",
        b"\xff\xfe\x00",
        b"a: \x00",
        b"[" * 5000,
        b"a: &x [1]\nb: *x\n",
        b"? [a, b]\n: 1\n",
        b"# " + b"x" * 70_000,
        EXAMPLE.read_bytes() + b"\n---\n" + EXAMPLE.read_bytes(),
        EXAMPLE.read_bytes() + b"\nepsilon_per_lifetime: 1000000\n",
    ],
)
def test_a_file_that_is_no_policy_refuses_everything(load, content):
    assert refusal(load(content)).code == "policy-malformed"


def test_a_policy_that_cannot_be_read_refuses_everything(tmp_path):
    for path in (tmp_path / "missing.yaml", tmp_path, "\0"):
        assert refusal(Policy.load(path)).code == "policy-malformed"


def test_numbers_may_be_written_in_the_ways_that_people_write_them(load, plain):
    for delta in ("1e-5", "1.0e-5", "1E-05", "0.00001"):
        assert load({**plain, "delta": delta}).delta == 1e-5


# Whatever happens to the file, it never allows more than it did ------------------------------

PROBES = [
    {},
    {"event": RandomizedResponseEvent(2.5, 10)},
    {"event": RepeatedEvent(RandomizedResponseEvent(2.5, 10), 3)},
    {"event": client(PureEvent(0.1))},
    {"event": NonPrivateEvent()},
    {"event": reported(RandomizedResponseEvent(1.0, 10), 20)},
    {"event": reported(RandomizedResponseEvent(1.0, 10), 2)},
    {"algorithm": "nbafl", "event": client(DiscreteGaussianEvent(768.0, 1024.0))},
    {"algorithm": "nbafl", "event": client(DiscreteGaussianEvent(102.0, 1024.0))},
    {"algorithm": "nba", "event": client(DiscreteGaussianEvent(768.0, 1024.0))},
    {"event": Release(RandomizedResponseEvent(1.0, 10), Unit.RECORD, Adjacency.REPLACE_ONE)},
    {"event": client(RandomizedResponseEvent(1.0, 10), Assumption("coin", "the coin is fair"))},
    {"algorithm": "", "delta": 0.0},
    {"delta": 1e-3},
    {"seeded_noise": True},
    {"spent": RandomizedResponseEvent(2.5, 10)},
    {"spent": RepeatedEvent(LABELS, 60)},
    {"now": NOW + timedelta(days=1000)},
]


def allowed(policy):
    """The probes that ``policy`` lets through; anything but a Refusal fails the test."""
    passed = set()
    for number, probe in enumerate(PROBES):
        try:
            ask(policy, **probe)
        except Refusal:
            continue
        passed.add(number)
    return passed


ORIGINAL = allowed(Policy.load(EXAMPLE))
LINES = EXAMPLE.read_text().splitlines(keepends=True)


def test_the_probes_tell_policies_apart():
    assert {0, 1, 5, 7, 15} == ORIGINAL


def _path_to(tree, draw):
    """A random place in nested mappings: (the mapping, its key)."""
    while True:
        key = draw(st.sampled_from(sorted(tree)))
        if not isinstance(tree[key], dict) or draw(st.booleans()):
            return tree, key
        tree = tree[key]


# What an accident leaves in the place of a value; numbers are left out, for they may be meant.
JUNK = st.one_of(
    st.none(),
    st.text(alphabet="abcxyz~!@-:{}[]#&*", max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["", "any ", "ANY", "True", "yes", "on", "null", "nan", "-.inf", "0x10"]),
)


@st.composite
def damaged(draw):
    """The example policy after an accident, as text."""
    accident = draw(
        st.sampled_from(["cut", "drop lines", "move", "double", "unset", "junk", "add"])
    )
    if accident == "cut":
        text = "".join(LINES)
        return text[: draw(st.integers(0, len(text)))]
    lines = list(LINES)
    place = draw(st.integers(0, len(lines) - 1))
    if accident == "drop lines":
        del lines[place : place + draw(st.integers(1, 4))]
        return "".join(lines)
    if accident in ("move", "double"):
        line = lines.pop(place) if accident == "move" else lines[place]
        lines.insert(draw(st.integers(0, len(lines))), line)
        return "".join(lines)
    plain = yaml.load("".join(LINES), yaml.BaseLoader)
    tree, key = _path_to(plain, draw)
    if accident == "unset":
        del tree[key]
    elif accident == "junk":
        tree[key] = draw(JUNK)
    else:
        tree[draw(st.text(max_size=5))] = draw(st.one_of(JUNK, st.floats(), st.booleans()))
    return yaml.safe_dump(plain)


@settings(max_examples=150, derandomize=True)
@given(damaged())
def test_a_damaged_policy_never_allows_more(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    assert allowed(Policy.load(path)) <= ORIGINAL


@settings(max_examples=150, derandomize=True)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
            ),
            max_leaves=10,
        ).map(lambda value: yaml.safe_dump(value).encode()),
    )
)
def test_an_arbitrary_file_allows_nothing(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_bytes(content)
    assert allowed(Policy.load(path)) == set()


TIGHTER = {
    "epsilon_per_release": 0.9,
    "epsilon_per_lifetime": 0.7,
    "delta": 0.5,
    "minimum_surviving_clients": 2,
}


@settings(max_examples=30, derandomize=True)
@given(st.sets(st.sampled_from([*TIGHTER, "expires", "algorithms", "mechanisms"]), min_size=1))
def test_a_tighter_policy_never_allows_more(tmp_path_factory, keys):
    plain = yaml.load(EXAMPLE.read_text(), yaml.BaseLoader)
    for key in keys & TIGHTER.keys():
        value = "5" if key == "epsilon_per_release" else plain[key]
        tighter = float(value) * TIGHTER[key]
        plain[key] = str(int(tighter)) if key == "minimum_surviving_clients" else str(tighter)
    if "expires" in keys:
        plain["expires"] = "2026-05-31"
    if "algorithms" in keys:
        plain.update(algorithms=["nbafl"], epsilon_per_release="4")
    if "mechanisms" in keys:
        plain["mechanisms"] = {"gaussian": {"min_noise_multiplier": "0.8"}}
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(yaml.safe_dump(plain))
    policy = Policy.load(path)
    assert policy.defect is None
    assert allowed(policy) < ORIGINAL
