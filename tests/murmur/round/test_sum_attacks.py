"""A client that attacks secure sums in every round: who is named, who pays, which rounds count."""

import pytest

from fl_app.run.results import RunFolder
from murmur.round.site import SimulatedSite
from murmur.secure_sum.identity import new_identity
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import Stage
from research.attacks.sums import ATTACKS, Attack, run
from tests.murmur.secure_sum.test_contradictions import without_boxes

SMALL = [
    "federation.num_rounds=2",
    "privacy.secure_sum.threshold=0.5",
    "privacy.secure_sum.liars=0.2",
]
LIAR = 4


@pytest.mark.parametrize(
    "name",
    [n for n, a in ATTACKS.items() if a.phase is not Stage.MASK and n != "shuts out a victim"],
)
def test_a_liar_is_named_in_the_first_round_and_all_rounds_count(tmp_path, name):
    outcome = run(tmp_path / "run", ATTACKS[name], 5, [LIAR], *SMALL)
    assert outcome.counted == [1, 2] and outcome.named == {LIAR: 1}
    # Whoever lies after the clients have paid has paid as well, once.
    late = ATTACKS[name].phase in (Stage.CONFIRM, Stage.REVEAL)
    assert outcome.paid == {**dict.fromkeys(range(4), 2), LIAR: int(late)}


def test_a_client_with_another_key_than_the_peers_file_has_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("murmur.secure_sum.settings.keys_digest", lambda *_: "")
    monkeypatch.setattr(SecureSumSettings, "pinned", lambda *_: {LIAR: bytes(32)})
    outcome = run(tmp_path / "run", None, 5, [], *SMALL)
    assert outcome.counted == [1, 2] and outcome.named == {LIAR: 1}
    assert outcome.paid == {**dict.fromkeys(range(4), 2), LIAR: 0}


def test_a_client_with_another_key_than_was_first_seen_costs_nobody_else_a_round(
    tmp_path, monkeypatch
):
    # A liar may show a new key in each round, and a device that was set up anew has one: before,
    # all others refused, and every round but the first was lost.
    identity = SimulatedSite.identity

    def another(self, client):
        return new_identity() if client == LIAR else identity(self, client)

    monkeypatch.setattr(SimulatedSite, "identity", another)
    outcome = run(tmp_path / "run", None, 5, [], *SMALL)
    assert outcome.counted == [1, 2] and outcome.named == {}
    assert outcome.paid == {**dict.fromkeys(range(4), 2), LIAR: 1}
    last = RunFolder(tmp_path / "run").rows()[-1]
    assert "does not accept client 4's long-term key" in last["failed"][str(LIAR)]


def test_a_liar_with_one_conflict_is_not_named_and_nobody_else_is(tmp_path):
    outcome = run(tmp_path / "run", ATTACKS["shuts out a victim"], 5, [LIAR], *SMALL)
    assert outcome.counted == [1, 2] and outcome.named == {}
    assert outcome.paid == dict.fromkeys(range(5), 2)


def test_two_liars_do_not_have_another_left_out_in_each_round_and_the_rows_name_all(tmp_path):
    # Before, they chose another victim in each round.
    def accepts_no(liar, message, honest):
        return without_boxes(liar.terms, liar.me, honest, {liar.terms.round - 1})

    words = [*SMALL, "federation.num_rounds=5", "privacy.secure_sum.liars=0"]
    outcome = run(tmp_path / "run", Attack(Stage.SHARE, accepts_no), 9, [7, 8], *words)
    assert outcome.counted == [1, 2, 3, 4, 5] and outcome.named == {}
    rows = [row for row in RunFolder(tmp_path / "run").rows() if row["round"]]
    out = [set(map(int, row["failed"])) for row in rows]
    assert out == [{0}, {7, 8}, {7, 8}, {7, 8}, {7, 8}]
    assert "contradicts clients 7, 8 so" in rows[0]["failed"]["0"]


def test_a_liar_that_cannot_be_proven_to_lie_costs_its_own_group_until_it_is_deduced(tmp_path):
    words = [*SMALL, "federation.num_rounds=6", "federation.quorum=0.3"]
    grouped = [*words, "privacy.secure_sum.groups=3", "privacy.secure_sum.liars=0.12"]
    outcome = run(tmp_path / "run", ATTACKS["random vector"], 9, [LIAR], *grouped)
    assert outcome.counted == [1, 2, 3, 4, 5, 6] and list(outcome.named) == [LIAR]
    assert outcome.paid[LIAR] == outcome.named[LIAR] < 6


def test_without_groups_such_a_liar_ends_the_run_in_words_that_say_what_helps(tmp_path):
    words = [*SMALL, "federation.num_rounds=4"]
    outcome = run(tmp_path / "run", ATTACKS["random vector"], 5, [LIAR], *words)
    assert outcome.counted == [] and outcome.named == {}
    assert set(outcome.paid.values()) == {3} and "privacy.secure_sum.groups" in outcome.ended
