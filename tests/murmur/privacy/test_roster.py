"""The roster: what a line may hold, what two lines may share, and its digest."""

import hashlib

import pytest

from murmur.privacy.roster import Roster
from murmur.privacy.run_header import ServerKey

A, B, C, D = (ServerKey.generate().public_key for _ in range(4))
SMALL_ORDER = "01" + "00" * 31


def test_a_roster_is_read_in_the_order_of_names():
    text = (
        f"# who takes part\n10 {A} {B} Clinic  North\n\n2\t{C} {D} St. Mary\nx - {B} Clinic North\n"
    )
    roster = Roster.read(text.encode())
    assert [member.name for member in roster.members] == ["2", "10", "x"]
    assert roster.by_name["x"].sum_key is None
    lines = f"2 {C} {D} St. Mary\n10 {A} {B} Clinic North\nx - {B} Clinic North\n"
    assert roster.digest == hashlib.sha256(lines.encode()).hexdigest()


def test_remarks_order_and_spaces_do_not_change_the_digest():
    one = Roster.read(f"1 - {A} north\n2 - {B} south\n".encode())
    other = Roster.read(f"# \n2  - {B}  south\r\n1\t- {A} north".encode())
    assert one.digest == other.digest
    assert one.digest != Roster.read(f"1 - {A} north\n2 - {B} West\n".encode()).digest


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names nobody"),
        (f"1 - {A}", "line 1: must have a name"),
        (f"1 - {A} north\n1 - {B} south", "one name, 1"),
        (f"1 {C} {A} north\n2 {C} {B} south", "one key for sums"),
        (f"1 - {A} north\n2 - {A} south", "north and south have one ledger"),
        (f"1 - {SMALL_ORDER} north", "small order"),
        (f"1 {SMALL_ORDER} {A} north", "small order"),
        (f"1 {A.upper()} {B} north", "64 small hex digits"),
        (f"01 - {A} north", "leading zeros"),
        (f"1 - {A} no\u202erth", "printable"),
    ],
    ids=range(10),  # keys are drawn, and the names of tests must not be
)
def test_what_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        Roster.read(text.encode())


def test_clients_of_one_owner_may_share_a_ledger():
    assert len(Roster.read(f"1 - {A} north\n2 - {A} north".encode()).members) == 2


def test_a_file_is_named_where_it_is_wrong(tmp_path):
    path = tmp_path / "roster.txt"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"roster\.txt"):
        Roster.load(path)
