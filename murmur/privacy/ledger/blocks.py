"""Several clients in one entry, and what each of many has spent, without a row for each.

A simulation charges thousands of clients the same for the same. One entry then names all of them:
its ``client`` is a text that is no client's name, since names are printable: a word, a tab, and the
ids in ranges, such as ``clients<TAB>0-99,105``. Whoever reads the column by ``decode_ids`` need not
know which of the two it is.

``EventCounts`` cannot change, so that all who have spent the same share it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_BLOCK_IDS = 1_024  # clients in one entry
MARK = "clients\t"

_ID = re.compile(r"0|[1-9][0-9]{0,17}")
_RANGES = re.compile(r"([0-9]+(-[0-9]+)?)(,[0-9]+(-[0-9]+)?)*")

EventCounts = frozenset[tuple[str, int]]
"""How often each event text was charged: pairs of a text and its count, from 1 on."""

NOTHING: EventCounts = frozenset()


def encode_ids(names: Iterable[str]) -> list[str]:
    """``names``, distinct, as few texts for the column ``client``; ``decode_ids`` gives them back.

    Numbers stand in blocks of at most 1,024, in their order; a number that is alone and any other
    name stand by themselves.
    """
    numbers: list[int] = []
    texts: list[str] = []
    for name in names:
        if _ID.fullmatch(name):
            numbers.append(int(name))
        else:
            texts.append(name)
    numbers.sort()
    blocks = (
        numbers[start : start + MAX_BLOCK_IDS] for start in range(0, len(numbers), MAX_BLOCK_IDS)
    )
    return [*map(_text, blocks), *texts]


def decode_ids(client: str | None) -> Sequence[str]:
    """The clients that an entry's column names; none for None.

    ValueError for a block that ``encode_ids`` has not made.
    """
    if client is None:
        return ()
    if not client.startswith(MARK):
        return (client,)
    return list(map(str, from_ranges(client.removeprefix(MARK), MAX_BLOCK_IDS)))


def to_ranges(numbers: Iterable[int]) -> str:
    """Distinct ``numbers`` in one text, such as "0-99,105"; "" for none."""
    ascending = sorted(numbers)
    return ",".join(_ranges(ascending)) if ascending else ""


def from_ranges(text: str, limit: int) -> list[int]:
    """The inverse of ``to_ranges``, for at most ``limit`` numbers; ValueError for anything else."""
    if not _RANGES.fullmatch(text):
        raise ValueError(f"{text!r:.40}: is no list of clients")
    numbers: list[int] = []
    last = -1
    for part in text.split(","):
        begin, _, end = part.partition("-")
        first, after = int(begin), int(end or begin) + 1
        if not (last < first < after and after - first <= limit - len(numbers)):
            raise ValueError(f"{text!r:.40}: is no list of clients")
        numbers.extend(range(first, after))
        last = after - 1
    return numbers


def add(counts: EventCounts, more: Mapping[str, int]) -> EventCounts:
    """``counts`` with ``more`` counted too; counts below 1 are left out."""
    total = Counter(dict(counts))
    total.update(more)
    return frozenset((text, count) for text, count in total.items() if count > 0)


def _text(numbers: Sequence[int]) -> str:
    """One block, or the only number's name."""
    if len(numbers) == 1:
        return str(numbers[0])
    return MARK + ",".join(_ranges(numbers))


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """``numbers``, which ascend, as ``first-last`` or one number each."""
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        yield str(first) if first == last else f"{first}-{last}"
        first = last = number
