"""Who has which examples: pool, clients, what is held out, and pilots made of public data alone."""

import numpy as np
import pytest

from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.run.population import image_population, population

WORDS = ["federation.num_clients=10", "federation.public=300"]


def of(*words):
    return population(compose([*WORDS, *words]))


def rows_of(people):
    return np.concatenate(list(people.shards.values()))


def test_validation_examples_are_nobodys_and_models_are_scored_on_them_only_when_asked():
    people = of("federation.validation=100")
    parts = [people.public_rows, people.held_out, rows_of(people)]
    assert len(people.held_out) == 100
    assert sorted(np.concatenate(parts)) == list(range(len(people.dataset.train)))
    assert np.array_equal(people.dataset.test.labels, of().dataset.test.labels)
    chosen = of("federation.validation=100", "federation.score=validation")
    train = people.dataset.train
    assert np.array_equal(chosen.dataset.test.images, train.images[people.held_out])
    assert all(map(np.array_equal, chosen.shards.values(), people.shards.values()))


def test_a_pilot_holds_public_examples_alone_and_is_scored_on_others():
    people = of("federation.pilot=48", "features=pca", "features.components=20")
    public, held_out, drawn = set(people.public_rows), set(people.held_out), set(rows_of(people))
    assert people.sizes == (48,) * 10
    assert drawn <= public - held_out
    assert held_out < public
    assert len(people.public) == len(public) - len(held_out)
    assert people.dataset.test.images.shape == (30, 20, 1, 1)


def test_images_are_those_of_the_same_population():
    people = image_population(compose([*WORDS, "federation.validation=100"]))
    assert np.array_equal(people.held_out, of("federation.validation=100").held_out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["federation.validation=5000"], "validation=5000"),
        (["federation.score=validation"], "federation.validation above 0"),
        (["federation.pilot=0"], "pilot=0"),
        (["federation.pilot=5", "federation.public=2"], "public=2"),
    ],
)
def test_what_cannot_be_held_out_is_refused(words, says):
    with pytest.raises(ConfigError, match=says):
        of(*words)
