"""A thousand generated runs: every lie that can be found is found, and no honest server accused."""

import contextlib
import io
import json
from dataclasses import replace
from random import Random

import pytest

from murmur.privacy.envelope import Envelope
from murmur.privacy.events import PureEvent, Release
from tests.deploy.receipt_worlds import ANY, CLIENT, RELEASES, confirmed_again, make, verifier

RUNS = 1000
BLOCKS = 10  # tests, so that several processes share them
CONTRADICTED, INPUT = 1, 2


def checked(folder, *words):
    """Status and findings."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = verifier.main([str(folder), "--roster", str(folder / "roster.txt"), *words])
    return status, out.getvalue()


def honest(random, folder):
    """Any run."""
    name = random.choice(sorted(RELEASES))
    return make(
        folder,
        seed=random.randrange(2**30),
        name=name,
        clients=random.randint(4, 6),
        rounds=random.randint(2, 4),
        summed=random.random() < 0.6,
        dropouts=random.choice([0.0, 0.2]),
        refusals=random.choice([0.0, 0.2]),
        evaluated=random.random() < 0.3,
        colluders=random.randint(0, 1),
    )


def somebody(random, world):
    """A client and the place of one of its charges."""
    client = random.choice([c for c in world.clients if world.charged[c]])
    return client, random.randrange(len(world.charged[client]))


def lie_of_a_round(random, world):
    """A round that was asked is not stated; of sums, its sum neither."""
    client, place = somebody(random, world)
    entry = world.charged[client][place]
    del world.asked[entry.round, entry.purpose]
    world.sums = [each for each in world.sums if each[:2] != (entry.round, entry.purpose)]
    world.write()


def lie_of_a_plan(random, world):
    """One client is asked after the last round of the plan."""
    client, place = somebody(random, world)
    world.charged[client].append(replace(world.charged[client][place], round=1000))
    world.write()


def lie_of_an_event(random, world):
    """One client is charged a release with less noise."""
    client, place = somebody(random, world)
    less = Release(PureEvent(40.0), CLIENT, ANY)
    world.charged[client][place] = replace(world.charged[client][place], event=less)
    world.write()


def lie_of_a_question(random, world):
    """One client is sent another model."""
    client, place = somebody(random, world)
    entry = world.charged[client][place]
    other = world.another_question(entry.round, entry.purpose)
    world.charged[client][place] = replace(entry, question=other)
    world.write()


def lie_of_a_unit(random, world):
    """The statement is for another unit or adjacency than the header."""
    name = random.choice(["unit", "adjacency"])
    others = {"unit": ["client", "record"], "adjacency": ["replace_one", "add_remove"]}
    world.privacy[name] = next(v for v in others[name] if v != world.privacy[name])
    world.write()


def lie_of_delta(random, world):
    """The statement is at another δ."""
    world.privacy["delta"] = 1e-4
    world.write()


def lie_of_a_sum(random, world):
    """One sum is stated with other terms, survivors or members than its clients had."""
    world.write()
    place = random.randrange(len(world.sums))
    number, purpose, one = world.sums[place]
    changes = [{"terms": replace(one.terms, release="cd" * 32)}]
    changes.append({"terms": replace(one.terms, length=8)})
    if len(one.survivors) > one.terms.minimum:
        changes.append({"survivors": one.survivors[:-1]})
    changed = random.choice(changes)
    other = random.choice([confirmed_again(world, one, **changed), replace(one, **changed)])
    world.sums[place] = number, purpose, other
    world.write()


def lie_of_an_altered_file(random, world):
    """A byte of the payload of the statement or of a receipt is another one."""
    world.write()
    client = random.choice(world.clients)
    signed = random.choice([world.statement, world.receipt(client)])
    payload = bytearray(signed.payload)
    payload[random.randrange(len(payload))] ^= 1 << random.randrange(7)
    path = world.folder / "receipts" / f"{client}.json"
    if signed is world.statement:
        path = world.folder / "statement.json"
    path.write_bytes(Envelope(bytes(payload), signed.signatures).to_bytes())


def lie_of_exchanged_receipts(random, world):
    """A receipt says that it is of somebody else."""
    world.write()
    one, other = random.sample(world.clients, 2)
    world.put(one, world.receipt(other, {"client": str(one)}))


def lie_of_two_statements(random, world):
    """Clients were shown another statement than readers are."""
    world.write()
    world.privacy["claim"] = "another one"
    again = world.sign_statement()
    (world.folder / "statement.json").write_bytes(again.to_bytes())


def lie_of_a_roster(random, world):
    """The header was signed for other clients."""
    world.header = replace(world.header, roster=random.randbytes(32).hex())
    world.write()


def lie_of_a_ledger_put_back(random, world):
    """A client has signed two receipts after the same one."""
    client = random.choice(world.clients)
    world.chain = {client: (3, random.randbytes(32).hex())}
    world.write()
    other = {"header": random.randbytes(32).hex(), "statement": None, "entries": []}
    world.put("another", world.receipt(client, other))


LIES = {name: value for name, value in globals().items() if name.startswith("lie_")}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_honest_servers_are_not_accused_and_lies_are_found(tmp_path, block):
    random = Random(block)
    for number in range(RUNS // BLOCKS):
        folder = tmp_path / str(number)
        world = honest(random, folder)
        lie = random.choice([None, *sorted(LIES)])
        if lie is None or (lie == "lie_of_a_sum" and not world.sums):
            missing = [c for c in world.clients if random.random() < 0.1]
            status, said = checked(world.write(without=missing))
            assert status not in (CONTRADICTED, INPUT), said
            if missing:
                assert status != 0, said
            continue
        LIES[lie](random, world)
        status, said = checked(folder)
        assert status == CONTRADICTED, (lie, world.header.algorithm, said)


@pytest.mark.parametrize(
    "figure", ["proven_total", "proven_median", "proven_least", "proven_per_round"]
)
def test_an_epsilon_is_found_that_is_understated_where_it_has_an_exact_figure(tmp_path, figure):
    for name in ("noise", "fine noise", "labels", "bits", "a choice"):
        world = make(tmp_path / name, name=name)
        guarantee = world.privacy["guarantees"][0]
        guarantee[figure] *= 0.999
        guarantee["clients"] = {}
        status, said = checked(world.write())
        assert status == CONTRADICTED, said


def test_findings_as_json(tmp_path):
    status, said = checked(make(tmp_path).write(), "--json")
    found = json.loads(said)
    assert (status, found["status"]) == (0, 0)
    assert {"status", "about", "finding"} == set(found["findings"][0])
