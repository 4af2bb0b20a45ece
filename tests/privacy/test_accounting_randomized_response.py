
import pytest

from privacy.accounting import epsilon
from privacy.events import RandomizedResponseEvent, RepeatedEvent

DELTA = 1e-5


@pytest.mark.parametrize(
    ("per_round", "labels", "rounds", "basic", "rdp", "exact"),
    [
        (5, 2, 10, "50", "49.3", "49.0"),
        (5, 2, 100, "500", "356", "347"),
        (5, 2, 250, "1250", "809", "795"),
        (1, 2, 10, "10", "5.5", "5.0"),
        (1, 10, 250, "250", "12.6", "11.8"),
    ],
)
def test_the_table_of_privatekt(per_round, labels, rounds, basic, rdp, exact):
    one_round = RepeatedEvent(RandomizedResponseEvent(per_round / labels, 10), labels)
    bounds = epsilon(RepeatedEvent(one_round, rounds), DELTA).bounds
    for name, golden in {"basic": basic, "rdp": rdp, "exact": exact}.items():
        digits = len(golden.partition(".")[2])
        assert f"{bounds[name]:.{digits}f}" == golden
