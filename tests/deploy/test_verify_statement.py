"""A signed statement against receipts: the table of lies, bad input, and arithmetic."""

import ast
import hashlib
import json
import math
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from murmur.privacy.envelope import Envelope
from murmur.privacy.events import GaussianEvent, RandomizedResponseEvent, Release
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.run_header import PlannedPhase, ServerKey
from murmur.secure_sum.identity import new_identity, public_identity
from tests.deploy.receipt_worlds import (
    ANY,
    CLIENT,
    EVALUATION,
    RELEASES,
    VERIFIER,
    Charged,
    confirmed_again,
    make,
    verifier,
)
from tests.test_shape import code_lines

SHOWN, CONTRADICTED, INPUT, AGREES, UNCHECKABLE = 0, 1, 2, 3, 4
CANNOT_SHOW = "no signature of the server is shown"


@pytest.fixture
def check(capsys):
    """Run the verifier on a folder: its status, and what it prints."""

    def run(folder, *words, roster=True):
        if roster:
            words = ("--roster", str(folder / "roster.txt"), *words)
        status = verifier.main([str(folder), *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def accused(said):
    """The lines that contradict."""
    return [line for line in said.splitlines() if "CONTRADICTED" in line]


# Honest runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("name", ["noise", "fine noise", "labels", "bits", "a count", "a choice"])
def test_an_honest_run_is_shown_against_a_server_that_reads_messages(tmp_path, check, name, summed):
    world = make(tmp_path, name=name, summed=summed, evaluated=name == "labels")
    status, said = check(world.write(), "--against", "local")
    assert (status, accused(said)) == (SHOWN, [])


@pytest.mark.parametrize("name", ["noise", "fine noise"])
def test_noise_in_sums_is_shown_by_the_survivors_that_each_client_confirmed(tmp_path, check, name):
    world = make(tmp_path, name=name, summed=True)
    status, said = check(world.write())
    assert (status, accused(said)) == (SHOWN, [])
    assert "if only who gave a receipt is honest" in said


@pytest.mark.parametrize("name", ["labels", "bits", "coarse noise"])
def test_what_has_no_exact_figure_in_a_sum_is_neither_shown_nor_contradicted(tmp_path, check, name):
    world = make(tmp_path, name=name, summed=True)
    status, said = check(world.write(), "--against", "sums")
    assert (status, accused(said)) == (UNCHECKABLE, [])


def test_a_receipt_that_is_left_out_is_named_as_missing(tmp_path, check):
    world = make(tmp_path)
    status, said = check(world.write(without=[2, 4]))
    assert status == AGREES
    assert "receipts of 3 of 5 agree; 2, 4: the server's word" in said


def test_without_a_roster_nobody_says_who_was_asked(tmp_path, check):
    status, said = check(make(tmp_path).write(), roster=False)
    assert status == UNCHECKABLE
    assert "no roster" in said


def test_fewer_charges_than_stated_are_no_contradiction(tmp_path, check):
    world = make(tmp_path)
    world.charged[3] = world.charged[3][:1]
    assert check(world.write())[0] == SHOWN


def test_more_colluders_in_the_readers_eyes_contradict_nobody(tmp_path, check):
    world = make(tmp_path, summed=True)
    status, said = check(world.write(), "--colluders", "3", "--against", "sums")
    assert (status, accused(said)) == (UNCHECKABLE, [])
    assert "and receipts prove" in said


def test_clients_of_one_owner_are_composed_to_show_and_one_by_one_to_contradict(tmp_path, check):
    world = make(tmp_path)
    world.owners = {2: "one clinic", 3: "one clinic"}
    status, said = check(world.write())
    assert (status, accused(said)) == (UNCHECKABLE, [])


def test_owners_who_have_not_pinned_their_peers_count_on_nobody(tmp_path, check):
    world = make(tmp_path, summed=True)
    world.peers = {2: "seen"}
    status, said = check(world.write(), "--against", "sums")
    assert (status, accused(said)) == (UNCHECKABLE, [])
    assert "owners of 1 clients have not pinned these keys" in said


def test_sums_of_what_was_not_masked_are_the_servers_word(tmp_path, check):
    world = make(tmp_path, summed=True)
    world.sums = []
    for client in world.clients:
        plain = [replace(e, event=RELEASES["noise"], sum=None) for e in world.charged[client]]
        world.charged[client] = [replace(e, confirmed=False) for e in plain]
    status, said = check(world.write(), "--against", "sums")
    assert (status, accused(said)) == (UNCHECKABLE, [])


# The lies ---------------------------------------------------------------------------------------


def test_lie_1_rounds_that_were_asked_and_are_not_stated(tmp_path, check):
    world = make(tmp_path)
    del world.asked[4, "train"]
    status, said = check(world.write(without=[2, 3, 4, 5]))
    assert status == CONTRADICTED
    assert "client 1 was asked in round 4 (train), and the statement has no such round" in said


def test_lie_1_is_not_found_where_the_receipt_is_withheld(tmp_path, check):
    world = make(tmp_path)
    for client in (1, 2, 3, 4):
        world.charged[client] = [e for e in world.charged[client] if e.round < 4]
    del world.asked[4, "train"]
    status, said = check(world.write(without=[5]))
    assert status == AGREES
    assert "5: the server's word" in said


def test_lie_1_asked_on_after_the_plan(tmp_path, check):
    world = make(tmp_path)
    world.charged[2].append(replace(world.charged[2][0], round=9))
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "client 2 was asked in round 9 (train), and the header does not plan it" in said


def test_lie_1_a_smaller_epsilon_than_that_of_the_charges(tmp_path, check):
    world = make(tmp_path)
    few = make(tmp_path, rounds=3)
    world.privacy = few.privacy
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "client 1 (and 4 more) was charged releases that cost at least 1.99" in said


@pytest.mark.parametrize(
    "place, name, about",
    [
        (0, "proven_per_round", "epsilon proven per round against"),
        (0, "proven_median", "epsilon proven median against"),
        (0, "proven_least", "epsilon proven least against"),
        (1, "proven_total", "epsilon proven against"),
        (1, "assumed_total", "epsilon assumed against"),
        (1, "assumed_per_round", "epsilon assumed per round against"),
    ],
)
def test_lie_1_any_figure_that_is_smaller_than_what_was_charged(
    tmp_path, check, place, name, about
):
    world = make(tmp_path, summed=True)
    world.privacy["guarantees"][place][name] *= 0.999
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert accused(said) and all(about in line for line in accused(said))


def test_lie_1_a_smaller_figure_of_one_client_and_of_one_accountant(tmp_path, check):
    world = make(tmp_path)
    guarantee = world.privacy["guarantees"][0]
    guarantee["clients"]["3"] *= 0.9
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert all("epsilon proven against" in line for line in accused(said))
    assert "client 3 was charged releases that cost at least 1.99" in said
    guarantee["clients"]["3"] /= 0.9
    guarantee["bounds"]["rdp"] = 1.9
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "client 1 (and 4 more) was charged releases that cost at least 1.99" in said
    assert "and 1.9 is stated" in said


@pytest.mark.parametrize("name", ["proven_total", "proven_median", "proven_least"])
def test_lie_1_a_figure_below_those_of_the_statements_own_clients(tmp_path, check, name):
    world = make(tmp_path)
    world.privacy["guarantees"][0][name] *= 0.9
    status, said = check(world.write(without=world.clients))
    assert status == CONTRADICTED
    assert "the releases of clients cost at least 1.99" in said


def test_a_median_is_not_that_of_the_receipts_where_some_are_missing(tmp_path, check):
    world = make(tmp_path)
    few = make(tmp_path, rounds=1).privacy["guarantees"][0]["proven_total"]
    guarantee = world.privacy["guarantees"][0]
    guarantee["clients"] |= dict.fromkeys("345", few)
    guarantee |= {"proven_median": few, "proven_least": few}
    for client in (3, 4, 5):
        world.charged[client] = world.charged[client][:1]
    status, said = check(world.write(without=[3, 4, 5]))
    assert (status, accused(said)) == (AGREES, [])
    status, said = check(world.write())
    assert (status, accused(said)) == (SHOWN, [])


def test_what_a_paper_claims_and_what_a_header_leaves_open_is_not_checked(tmp_path, check):
    world = make(tmp_path)
    world.privacy["guarantees"][0]["claimed_total"] = 0.5
    status, said = check(world.write())
    assert (status, accused(said)) == (UNCHECKABLE, [])
    assert "epsilon claimed against a server that reads every message: 0.5 rests on" in said
    assert check(tmp_path, "--against", "local")[0] == SHOWN
    world.header = replace(world.header, phases=(PlannedPhase("train", 1, 4),))
    world.privacy["guarantees"][0]["proven_per_round"] = 0.1
    status, said = check(world.write(), "--against", "local")
    assert (status, accused(said)) == (UNCHECKABLE, [])
    assert "per round against a server that reads every message: 0.1: the header leaves it" in said


def test_lie_2_one_client_is_asked_with_less_noise(tmp_path, check):
    world = make(tmp_path)
    less = Release(GaussianEvent(1.0), CLIENT, ANY)
    world.charged[3][1] = replace(world.charged[3][1], event=less)
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "client 3 was charged another event in round 2 (train) than is planned" in said
    assert "client 3 was charged releases that cost at least" in said


def test_lie_2_one_client_is_asked_for_more(tmp_path, check):
    world = make(tmp_path)
    extra = Charged(2, "evaluate", EVALUATION, world.charged[3][1].question)
    world.charged[3].append(extra)
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "client 3 was asked in round 2 (evaluate)" in said


def test_lie_3_two_models_in_one_round(tmp_path, check):
    world = make(tmp_path)
    other = world.another_question(2, "train")
    world.charged[4][1] = replace(world.charged[4][1], question=other)
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "client 4 was asked something else in round 2 (train)" in said


def test_lie_3_is_not_found_where_each_client_has_its_own_question(tmp_path, check):
    world = make(tmp_path)
    world.header = replace(world.header, questions="each its own")
    other = world.another_question(2, "train")
    world.charged[4][1] = replace(world.charged[4][1], question=other)
    status, said = check(world.write())
    assert status == AGREES
    assert "each client has its own: they are not compared" in said


def test_a_question_that_does_not_open_to_its_digest(tmp_path, check):
    world = make(tmp_path)
    predicate = world.predicate()
    predicate["questions"][1]["opened"]["settings"][0][1][1][1] = "0.2"
    status, said = check(world.write(predicate=predicate))
    assert status == CONTRADICTED
    assert "round 2 (train): what is opened is not what was asked" in said


@pytest.mark.parametrize("what", ["minimum", "colluders", "threshold"])
def test_lie_4_other_terms_than_those_of_the_sum(tmp_path, check, what):
    world = make(tmp_path, summed=True, clients=8)
    place, _, one = world.sums[1]
    changes = {"minimum": {"minimum": 6}, "colluders": {"colluders": 0, "threshold": 5}}
    terms = replace(one.terms, **changes.get(what, {"threshold": 6, "minimum": 6}))
    world.write()
    world.sums[1] = (place, "train", confirmed_again(world, one, terms=terms))
    world.statement = world.sign_statement()
    (tmp_path / "statement.json").write_bytes(world.statement.to_bytes())
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert " joined another sum in round 2 (train) than is opened" in said


def test_lie_4_more_survivors_than_were_confirmed(tmp_path, check):
    world = make(tmp_path, summed=True, clients=8)
    one = world.sums[0][2]
    fewer = confirmed_again(world, one, survivors=one.survivors[:-2])
    for client in world.clients:
        world.charged[client][0] = replace(world.charged[client][0], sum=fewer)
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert " joined another sum in round 1 (train) than is opened" in said


def test_lie_4_survivors_whom_nobody_confirmed(tmp_path, check):
    world = make(tmp_path, summed=True, clients=8)
    number, purpose, one = world.sums[0]
    world.sums[0] = number, purpose, replace(one, survivors=one.survivors[:-1])
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "round 1 (train): client 1 has not confirmed these lists" in said


def test_lie_4_members_that_the_server_has_invented(tmp_path, check):
    world = make(tmp_path, summed=True, clients=8)
    number, purpose, one = world.sums[0]
    world.identities[8] = new_identity()
    mine = public_identity(world.identities[8]) + one.advertised[8][32:]
    world.sums[0] = (
        number,
        purpose,
        confirmed_again(world, one, advertised={**one.advertised, 8: mine}),
    )
    world.identities[8] = new_identity()
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "member 8 of the sum has a key that no line of the roster has" in said


def test_lie_4_a_failed_sum_is_no_lie(tmp_path, check):
    world = make(tmp_path, summed=True, clients=8)
    for client in world.clients:
        entry = world.charged[client][2]
        world.charged[client][2] = replace(entry, confirmed=False)
    del world.sums[2]
    assert accused(check(world.write())[1]) == []


def test_lie_5_a_second_run_beside_it(tmp_path, check):
    world = make(tmp_path)
    beside = [{"header": "cd" * 32, "closed": True, "entries": [[0, 7]]}]
    world.beside = {2: beside}
    status, said = check(world.write())
    assert status == AGREES
    assert "client 2 was charged 7 times in run cdcdcdcdcdcdcdcd of this server" in said


def test_lie_6_a_ledger_that_was_put_back(tmp_path, check):
    world = make(tmp_path)
    world.chain = {3: (2, "ab" * 32)}
    world.write()
    again = world.receipt(3, {"header": "cd" * 32, "statement": None})
    world.put("3-earlier", again)
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "client 3 has signed two after the same one: its ledger was put back" in said


def test_lie_6_one_key_of_two_owners(tmp_path, check):
    world = make(tmp_path)
    world.ledgers[3] = world.ledgers[2]
    status, said = check(world.write())
    assert status == INPUT
    assert "the ledger of client 3 is another's too" in said


def test_lie_6_one_sum_key_twice(tmp_path, check):
    world = make(tmp_path)
    world.identities[3] = world.identities[2]
    world.owners = {2: "one clinic", 3: "one clinic"}
    status, said = check(world.write())
    assert status == INPUT
    assert "the sum key of client 3 is another's too" in said


@pytest.mark.parametrize(
    "name, value", [("unit", "record"), ("adjacency", "add_remove"), ("delta", 1e-4)]
)
def test_lie_7_another_unit_adjacency_or_delta(tmp_path, check, name, value):
    world = make(tmp_path)
    world.privacy[name] = value
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert f"the statement says {name}={value}, the header" in said


def test_lie_7_a_unit_that_the_charges_do_not_protect(tmp_path, check):
    world = make(tmp_path, name="fine noise")
    world.header = replace(world.header, unit=CLIENT)
    world.privacy["unit"] = "client"
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "releases that protect nothing with ('client', 'replace_special')" in said


def test_lie_8_another_model(tmp_path, check):
    world = make(tmp_path)
    world.model = np.array(list(world.asked.values())[-1].array_records["model"]["model"].numpy())
    world.write()
    model = tmp_path / "model.npy"
    np.save(model, world.model)
    status, said = check(tmp_path, "--model", str(model))
    assert (status, "it was sent in a phase" in said) == (SHOWN, True)
    np.save(model, world.model + 1)
    status, said = check(tmp_path, "--model", str(model))
    assert status == CONTRADICTED
    assert "model.npy: is another model than the statement's" in said


def test_lie_8_is_not_found_of_the_last_model(tmp_path, check):
    world = make(tmp_path)
    world.write()
    np.save(tmp_path / "model.npy", world.model)
    status, said = check(tmp_path, "--model", str(tmp_path / "model.npy"))
    assert (status, "it was in no question: the server's word" in said) == (UNCHECKABLE, True)


def test_lie_9_an_altered_receipt(tmp_path, check):
    world = make(tmp_path)
    world.write()
    receipt = world.receipt(2)
    payload = receipt.payload.replace(b'"purposes":["train"]', b'"purposes":["other"]')
    world.put(2, Envelope(payload, receipt.signatures))
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "2.json: was altered" in said
    assert "receipts of 4 of 5 agree; 2: the server's word" in said


def test_lie_9_an_altered_statement(tmp_path, check):
    world = make(tmp_path)
    world.write()
    other = world.statement.payload.replace(b'"delta":1e-05', b'"delta":1e-06')
    altered = Envelope(other, world.statement.signatures)
    (tmp_path / "statement.json").write_bytes(altered.to_bytes())
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "the run's server has not signed the statement as it is" in said


def test_lie_9_exchanged_receipts(tmp_path, check):
    world = make(tmp_path)
    world.write()
    world.put(2, replace(world, ledgers={**world.ledgers, 2: world.ledgers[3]}).receipt(2))
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "2.json: says that it is of client 2, and no ledger in the roster signed that" in said


def test_lie_9_a_replayed_receipt_is_not_counted(tmp_path, check):
    world = make(tmp_path)
    world.write()
    world.put(2, world.receipt(2, {"header": "cd" * 32, "statement": None}))
    status, said = check(tmp_path)
    assert status == AGREES
    assert "2.json: is of another run; not counted" in said
    assert "receipts of 4 of 5 agree; 2: the server's word" in said


def test_lie_9_two_statements_of_one_run(tmp_path, check):
    world = make(tmp_path)
    world.write()
    world.privacy["claim"] = "another one"
    again = world.sign_statement()
    (tmp_path / "statement.json").write_bytes(again.to_bytes())
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "client 1 (and 4 more) was shown another statement of this run" in said


def test_lie_9_all_receipts_made_by_the_server(tmp_path, check):
    world = make(tmp_path)
    world.write()
    world.ledgers = {client: LedgerSigner.generate() for client in world.clients}
    for client in world.clients:
        world.put(client, world.receipt(client))
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert said.count("no ledger in the roster signed that") == 5


def test_lie_9_a_header_for_another_roster(tmp_path, check):
    world = make(tmp_path)
    world.header = replace(world.header, roster="ab" * 32)
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert "the header was signed for another roster than this" in said


def test_lie_9_a_statement_under_another_key(tmp_path, check):
    world = make(tmp_path)
    world.write()
    predicate = world.predicate()
    subjects = {"header": world.digest, "model": "ab" * 32}
    other = Envelope.of("urn:murmur:statement:1", subjects, predicate, ServerKey.generate())
    (tmp_path / "statement.json").write_bytes(other.to_bytes())
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "the run's server has not signed the statement as it is" in said


def test_lie_10_the_servers_noise_and_canaries_cannot_be_checked(tmp_path, check):
    world = make(tmp_path)
    figure = world.privacy["guarantees"][0]
    central = {**figure, "threat": "central", "adversary": "who sees models", "proven_total": 0.1}
    world.privacy["guarantees"] = [{**central, "measured": 0.1}]
    status, said = check(world.write())
    assert status == UNCHECKABLE
    assert "0.1 rests on what the server does by itself: noise, samples" in said
    assert "what they measured is the server's word" in said


def test_lie_11_a_device_that_frames_the_server_cannot_show_a_signature(tmp_path, check):
    world = make(tmp_path)
    entry = replace(world.charged[4][1], question=world.another_question(2, "train"))
    world.charged[4][1] = entry
    status, said = check(world.write())
    assert status == CONTRADICTED
    assert CANNOT_SHOW in said and "The server has signed that question" not in said
    world.show(4, entry)
    assert CANNOT_SHOW not in check(tmp_path)[1]
    assert "The server has signed that question" in check(tmp_path)[1]


def test_a_signature_for_another_run_shows_nothing(tmp_path, check):
    world = make(tmp_path)
    entry = replace(world.charged[4][1], question=world.another_question(2, "train"))
    world.charged[4][1] = entry
    world.write()
    replace(world, header=replace(world.header, bits="ab" * 16)).show(4, entry)
    assert CANNOT_SHOW in check(tmp_path)[1]


def test_where_cohorts_are_secret_receipts_are_upper_bounds(tmp_path, check):
    world = make(tmp_path)
    world.header = replace(world.header, secret=True)
    few = make(tmp_path, rounds=2)
    world.privacy = few.privacy
    status, said = check(world.write())
    assert (status, accused(said)) == (UNCHECKABLE, [])


# Any Flower app ---------------------------------------------------------------------------------


def under_flower(folder):
    """A run of a Flower app: its roster has names, and each device calls its one client "0"."""
    world = make(folder, summed=True)
    world.header = replace(world.header, algorithm="flower")
    keys = sorted(f"{public_identity(key).hex()}\n" for key in world.identities.values())
    peers = hashlib.sha256("".join(keys).encode()).hexdigest()
    world.write(without=world.clients)
    for client in world.clients:
        world.put(client, world.receipt(client, {"client": "0", "peers": peers}))
    return world


def test_a_receipt_of_a_flower_app_belongs_to_the_line_with_its_ledger(tmp_path, check):
    world = under_flower(tmp_path)
    status, said = check(tmp_path)
    assert (status, accused(said)) == (SHOWN, [])
    (tmp_path / "receipts" / "2.json").unlink()
    status, said = check(tmp_path)
    assert (status, "receipts of 4 of 5 agree; 2: the server's word" in said) == (AGREES, True)
    stranger = replace(world, ledgers={**world.ledgers, 2: LedgerSigner.generate()})
    world.put(2, stranger.receipt(2, {"client": "0"}))
    status, said = check(tmp_path)
    assert (status, "no ledger in the roster signed that" in said) == (CONTRADICTED, True)


def test_two_receipts_of_one_ledger_of_a_flower_app_are_of_one_client(tmp_path, check):
    world = under_flower(tmp_path)
    world.put("2-again", world.receipt(2, {"client": "0", "statement": None}))
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "client 2 has signed two after the same one: its ledger was put back" in said


def test_in_other_runs_a_receipt_belongs_to_the_line_that_it_names(tmp_path, check):
    world = make(tmp_path)
    world.write()
    world.put(2, world.receipt(2, {"client": "0"}))
    status, said = check(tmp_path)
    assert status == CONTRADICTED
    assert "2.json: says that it is of client 0, and no ledger in the roster signed that" in said


# Arithmetic -------------------------------------------------------------------------------------


def simulated(world):
    """One receipt for all clients of a run in which all are charged the same."""
    world.write(without=world.clients)
    plain = json.loads(world.receipt(1).payload)["predicate"]
    entries = [[*entry[:4], "1-5"] for entry in plain["entries"]]
    world.put("simulation", world.receipt(1, {"client": "1-5", "entries": entries}))
    return world.folder


def test_a_simulation_is_checked_for_its_arithmetic_alone(tmp_path, check):
    folder = simulated(make(tmp_path))
    assert check(folder, roster=False)[0] == UNCHECKABLE
    status, said = check(folder, "--arithmetic", roster=False)
    assert status == SHOWN
    assert "Only arithmetic was checked" in said


def test_a_simulations_figure_that_does_not_follow(tmp_path, check):
    world = make(tmp_path)
    world.privacy["guarantees"][0]["proven_total"] = 1.9
    status, said = check(simulated(world), "--arithmetic", roster=False)
    assert status == CONTRADICTED
    assert "cost at least 1.99" in said


@pytest.mark.parametrize("stated, status", [(1.9933, SHOWN), (1.99, SHOWN), (1.98, CONTRADICTED)])
def test_a_figure_is_taken_as_exactly_as_it_is_written(tmp_path, check, stated, status):
    world = make(tmp_path)
    guarantee = world.privacy["guarantees"][0]
    guarantee["proven_total"] = stated
    guarantee["clients"] = {}
    assert 1.9925 < make(tmp_path).privacy["guarantees"][0]["proven_total"] < 1.9933
    assert check(world.write())[0] == status


def leaf(event, count=1):
    view = verifier.View(asked=("client", "replace_one"), summed=False, granted=False, honest=1)
    release = Release(event, CLIENT, ANY).to_dict()
    return list(verifier.leaves(release, view, count))


def test_ten_labels_count_ten_times():
    """dp-accounting's PLD accountant ignores how often a randomised response is repeated."""
    found = leaf(RandomizedResponseEvent(0.5, 2), 10)
    upper = verifier.epsilon(found, 1e-5, True)
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.pld import privacy_loss_distribution as pld

    wrong = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    wrong.compose(dp_event.RandomizedResponseDpEvent(2 / (math.exp(0.5) + 1), 2), 10)
    once = pld.from_randomized_response(
        2 / (math.exp(0.5) + 1), 2, value_discretization_interval=1e-5
    )
    right = once.self_compose(10).get_epsilon_for_delta(1e-5)
    assert wrong.get_epsilon(1e-5) < right / 2
    assert upper == pytest.approx(right, abs=1e-3) and upper <= right + 1e-9
    assert verifier.epsilon(found, 1e-5, False) == pytest.approx(upper, rel=1e-9)


def test_a_gaussian_is_not_doubled_where_one_replaces_another():
    """dp-accounting's PLD accountant doubles Gaussians under REPLACE_ONE."""
    found = leaf(GaussianEvent(1.0))
    upper = verifier.epsilon(found, 1e-5, True)
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant

    doubled = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    doubled.compose(dp_event.GaussianDpEvent(1.0))
    assert doubled.get_epsilon(1e-5) > 2 * upper
    assert upper == pytest.approx(4.377, abs=1e-3)


def test_renyis_figure_is_not_taken():
    """dp-accounting's Rényi accountant is 8% above the truth."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    loose = RdpAccountant()
    loose.compose(dp_event.GaussianDpEvent(1.0))
    assert loose.get_epsilon(1e-5) > 1.05 * verifier.epsilon(leaf(GaussianEvent(1.0)), 1e-5, True)


# Bad input --------------------------------------------------------------------------------------


def one_sentence(said):
    return len(said.strip().splitlines()) == 1 and "Traceback" not in said


@pytest.mark.parametrize("which", ["statement.json", "roster.txt", "receipts/2.json"])
def test_a_gigabyte_is_not_read(tmp_path, check, which):
    folder = make(tmp_path).write()
    with open(folder / which, "wb") as file:
        file.truncate(2**30)
    status, said = check(folder)
    assert (status, one_sentence(said)) == (INPUT, True)
    assert "is longer than" in said


@pytest.mark.parametrize("which", ["statement.json", "roster.txt", "receipts/2.json"])
@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_half_a_file(tmp_path, check, which, kept):
    folder = make(tmp_path).write()
    content = (folder / which).read_bytes()
    (folder / which).write_bytes(content[: int(len(content) * kept)])
    status, said = check(folder)
    assert (status, one_sentence(said)) == (INPUT, True)


def test_a_missing_file(tmp_path, check):
    status, said = check(tmp_path)
    assert (status, one_sentence(said)) == (INPUT, True)


def signed_receipt(world, text):
    """A payload of ``text``, signed by the ledger of client 2."""
    from murmur.privacy.envelope import _encoding

    key = world.ledgers[2]
    world.put(2, Envelope(text, {key.public_key: key.sign_plainly(_encoding(text))}))


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        (b'"number":1', b'"number":NaN', "NaN is no number"),
        (b'"number":1', b'"number":1e999', "is no number"),
        (b'"number":1', b'"number":9007199254740993', "is no number"),
        (b'"number":1', b'"number":1,"number":1', "twice"),
        (b'"number":1', b'"number":true', "number is not of its type"),
        (b'"number":1', b'"number":1,"more":1', "nothing else"),
        (b'"number":1', b'"number":' + b"[" * 30 + b"]" * 30, "nested"),
        (b'"format":1', b'"format":2', "another format"),
        (b"urn:murmur:receipt:1", b"urn:murmur:receipt:2", "is no receipt of this format"),
        (b'"GaussianEvent"', b'"OtherEvent"', "is not known here"),
        (b'"noise_multiplier":4.0', b'"noise_multiplier":-4.0', "out of range"),
        (b'"beside":[]', b'"beside":[{"header":1}]', "nothing else"),
        (b'"peers":null', b'"peers":"\xff"', "is no JSON"),
    ],
)
def test_malformed_receipts(tmp_path, check, old, new, sentence):
    world = make(tmp_path)
    folder = world.write()
    payload = world.receipt(2).payload
    assert old in payload
    signed_receipt(world, payload.replace(old, new))
    status, said = check(folder)
    assert (status, one_sentence(said)) == (INPUT, True)
    assert sentence in said


def test_a_million_entries(tmp_path, check):
    world = make(tmp_path)
    folder = world.write()
    entry = json.loads(world.receipt(2).payload)["predicate"]["entries"][0]
    world.put(2, world.receipt(2, {"entries": [[k, *entry[1:]] for k in range(10**6)]}))
    status, said = check(folder)
    assert (status, one_sentence(said)) == (INPUT, True)


@pytest.mark.parametrize(
    "key, sentence",
    [
        ("02" + "00" * 31, "is no point of the curve"),
        ("01" + "00" * 31, "small order"),
        ("00" * 32, "small order"),
        ("ab" * 31, "64 small hex digits"),
        ("AB" * 32, "64 small hex digits"),
    ],
)
def test_keys_under_which_nobody_or_anybody_signs(tmp_path, check, key, sentence):
    world = make(tmp_path)
    folder = world.write()
    roster = (folder / "roster.txt").read_text()
    (folder / "roster.txt").write_text(roster.replace(world.ledgers[2].public_key, key))
    status, said = check(folder)
    assert (status, one_sentence(said)) == (INPUT, True)
    assert sentence in said


def test_every_key_that_cryptography_makes_is_a_point():
    for _ in range(50):
        public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        assert verifier.require_point(public.hex(), "a key") == public


@pytest.mark.parametrize("text", ["", "# nobody\n", "1 - ab\n", "1 - x owner\n", "\x00 a b c\n"])
def test_malformed_rosters(tmp_path, check, text):
    folder = make(tmp_path).write()
    (folder / "roster.txt").write_text(text)
    status, said = check(folder)
    assert (status, one_sentence(said)) == (INPUT, True)


def test_a_draft_is_no_statement(tmp_path, check):
    world = make(tmp_path)
    folder = world.write()
    draft = Envelope(world.statement.payload, {})
    (folder / "statement.json").write_bytes(draft.to_bytes())
    status, said = check(folder)
    assert (status, "is a draft" in said) == (INPUT, True)


def test_bytes_changed_at_random_end_in_a_status_and_a_sentence(tmp_path, check):
    world = make(tmp_path, summed=True)
    folder = world.write()
    rng = random.Random(7)
    for which in ("statement.json", "receipts/2.json", "roster.txt"):
        content = (folder / which).read_bytes()
        for _ in range(60):
            changed = bytearray(content)
            changed[rng.randrange(len(content))] = rng.randrange(256)
            (folder / which).write_bytes(bytes(changed))
            status, said = check(folder, "--against", "local")
            assert status in (SHOWN, CONTRADICTED, INPUT, AGREES), said
            assert status != INPUT or one_sentence(said)
        (folder / which).write_bytes(content)


# The file ---------------------------------------------------------------------------------------


def test_it_has_at_most_900_lines_and_nothing_of_murmur():
    text = VERIFIER.read_text(encoding="utf-8")
    assert code_lines(VERIFIER) <= 900
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"cryptography", "dp_accounting"}


def test_neighbours_and_events_are_murmurs():
    from murmur.privacy.events import Event
    from murmur.privacy.neighbours import STEPS

    known = {name for name in Event._kinds if name != "UnknownEvent" and name.endswith("Event")}
    assert {*verifier.EVENTS} == {*known, "Release"}
    kinds = [(*kind, False) for kind in verifier.NEIGHBOURS]
    for own, steps in STEPS.items():
        row = [steps.get(pair, 0) for pair in kinds]
        assert tuple(row) == verifier.STEPS[own.unit, own.adjacency, own.in_part]


def test_the_page_shows_what_is_found_of_a_run_with_a_lie_in_it(tmp_path, check):
    kinds = {"seed": 3, "clients": 60, "summed": True, "colluders": 3}
    world = make(tmp_path / "run", rounds=12, **kinds)
    world.privacy = make(tmp_path / "fewer", rounds=11, **kinds).privacy
    del world.asked[12, "train"], world.sums[-1]
    status, said = check(world.write(without=[12, 41]), "--against", "local")
    page = (VERIFIER.parents[1] / "docs" / "receipts.md").read_text(encoding="utf-8")
    assert status == CONTRADICTED
    assert " ".join(said.split()) in " ".join(page.split())
