"""What a run's clients send is overheard one by one, and an unprotected image is found again."""

import numpy as np

from research.attacks.attacks import overheard, reconstruction
from tests.fl_app.running import SMALL


def test_a_round_is_overheard_as_the_labels_of_each_client():
    experiment, told = overheard([*SMALL, "strategy.K=2", "privacy=none"])
    rounds, clients = experiment.config.federation.num_rounds, experiment.strategy.rounds.cohort(1)
    assert sorted(told) == list(range(1, rounds + 1))
    assert told[1].shape == (len(clients), 2, 10)
    assert (told[1].sum(axis=2) == 1).all()


def test_an_image_is_found_in_an_upload_without_noise_and_not_in_one_with_it(tmp_path):
    picture = tmp_path / "images.png"
    bare, noisy = [row[2] for row in reconstruction(picture)]
    assert bare.startswith("1.00 found")
    assert np.float64(noisy.split()[0]) < 0.2
    assert picture.stat().st_size > 1_000
