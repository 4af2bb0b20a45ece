"""DP-FedAvg's server half: noise on the sum, adaptive clipping and its cost, secret cohorts."""

import math
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from fl_app.testing import Grid
from murmur.learning.data.datasets import Examples
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Adjacency, Unit, epsilon
from murmur.privacy.accounting.flatten import View, flatten
from murmur.privacy.budget import Budget
from murmur.privacy.events import (
    DiscreteGaussianEvent,
    PoissonSampledEvent,
    RepeatedEvent,
    releases,
)
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.protection import Central
from murmur.round.cohorts import Schedule
from murmur.round.rounds import Rounds
from murmur.round.server_step import Sgd
from murmur.round.setup import ServerSetup
from strategies.fedavg import FedAvg
from tests.fl_app.running import SMALL, run_inline

N, COHORT = 200, 50


def server(epsilon=8.0, rounds=20, cohort=COHORT, clipping=None, seeded=True, multiplier=None):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[40]), (1, 4, 4), 4
    )
    images = np.zeros((5, 1, 4, 4), np.float32)
    setup = ServerSetup(
        trainer=trainer,
        public=images,
        test=Examples(images, np.zeros(5, np.int64)),
        budget=Budget(epsilon, 1e-5, rounds, threat="central"),
        seed=1,
        num_clients=N,
        cohort_size=cohort,
        quorum=0.5,
        seeded_noise=seeded,
        schedule=Schedule("poisson", N, cohort, rounds, 1),
    )
    settings = {"clipping": {"norm": 2.0, **(clipping or {})}, "noise_multiplier": multiplier}
    return FedAvg(
        setup, server_step=Sgd(learning_rate=1.0), protection=partial(Central, **settings)
    )


def update(strategy, number, total, bits=None):
    """The step of the model for a sum in units of the clipping norm."""
    model = np.zeros(strategy.trainer.num_parameters, np.float32)
    steps = np.rint(total * CLIP_STEPS).astype(np.int64)
    if bits is not None:
        steps = np.append(steps, bits * CLIP_STEPS)
    return strategy.update(number, model, steps, weight=1)


def test_without_protection_the_mean_divides_by_the_expected_cohort():
    strategy = server(epsilon=math.inf)
    total = np.linspace(-1, 1, strategy.trainer.num_parameters)
    np.testing.assert_allclose(update(strategy, 1, total), total * 2.0 / COHORT, atol=1e-6)


def test_noise_on_the_mean_is_multiplier_times_norm_over_the_cohort():
    strategy = server()
    zero = np.zeros(strategy.trainer.num_parameters)
    drawn = np.concatenate([update(strategy, number, zero) for number in range(1, 11)])
    expected = strategy.protection.noise_multiplier * 2.0 / COHORT
    assert abs(drawn.std() / expected - 1) < 5 / math.sqrt(2 * drawn.size)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("cohort", [COHORT, N])
def test_all_published_models_together_keep_the_budget(adaptive, cohort):
    strategy = server(cohort=cohort, clipping={"adaptive": adaptive})
    strategy.protection.rounds_published = 20
    models, curious = strategy.rounds.statement().guarantees
    if cohort == N:
        assert 7.9 < models.proven_total <= models.claimed_total == 8.0
    else:  # what sampling gains rests on a secret
        assert models.proven_total > 7.9 * 2
        assert 6.5 < models.assumed_total <= models.claimed_total == 8.0
    assert models.number_of_clients == N
    assert math.isinf(curious.proven_total) or curious.clients == {"nobody": 0.0}
    assert (strategy.rounds.statement().unit, strategy.rounds.statement().adjacency) == (
        Unit.CLIENT,
        Adjacency.REPLACE_SPECIAL,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=dp_fedavg",),
        ("strategy=dp_fedavg", "federation.schedule=random"),
        ("strategy=dp_ftrl", "federation.schedule=rotate"),
    ],
)
def test_no_statement_hides_how_many_clients_there_are(words):
    """Cohorts and the divisor follow from that: with one client more, others are asked."""
    strategy = ValidatedRun(compose([*SMALL, *words])).strategy
    assert strategy.rounds.statement().adjacency is Adjacency.REPLACE_SPECIAL
    assert {each.adjacency for each in releases(strategy.claims().planned())} == {
        strategy.adjacency
    }


def test_sampling_amplifies():
    few, all_of_them = server(cohort=20).protection, server(cohort=N).protection
    assert few.noise_multiplier < 0.5 * all_of_them.noise_multiplier


def test_the_quantile_is_paid_for_out_of_the_updates_share():
    strategy = server(clipping={"adaptive": True, "bit_noise": 3.0})
    own = strategy.protection
    assert own.update_multiplier > own.noise_multiplier
    sigma = math.ceil(own.noise_multiplier * CLIP_STEPS)
    noise = PoissonSampledEvent(COHORT / N, DiscreteGaussianEvent(sigma, CLIP_STEPS))
    assert own.round_event().event == RepeatedEvent(noise, 1)


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_less_noise_is_drawn_than_charged(adaptive, monkeypatch):
    from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian

    drawn = []
    monkeypatch.setattr(
        DiscreteGaussian,
        "privatize_integers",
        lambda self, k, rng, out=None: drawn.append(self.sigma) or k,
    )
    strategy = server(clipping={"adaptive": adaptive, "bit_noise": 3.0})
    zero = np.zeros(strategy.trainer.num_parameters)
    update(strategy, 1, zero, bits=0 if adaptive else None)
    (leaf,) = flatten(strategy.protection.round_event(), View(assumptions=None))
    assert 1 / math.hypot(*(1 / sigma for sigma in drawn)) >= leaf.event.sigma


def test_a_round_in_which_too_few_answer_publishes_its_noise():
    strategy = server()
    model = ArrayRecord({"model": Array(np.zeros(strategy.trainer.num_parameters, np.float32))})
    strategy.configure_train(1, model, ConfigRecord(), Grid(1))
    arrays, _ = strategy.aggregate_train(1, [])
    assert arrays is not None and arrays["model"].numpy().std() > 0
    assert strategy.protection.rounds_published == 1


def test_a_model_of_an_empty_secret_cohort_counts_in_its_rounds_row(tmp_path, monkeypatch):
    monkeypatch.setattr(Rounds, "cohort", lambda self, number: np.zeros(0, np.int64))
    run = run_inline(tmp_path, "strategy=dp_fedavg", "privacy.noise=os")
    before, *rows = [row["epsilon_proven"] for row in run.rows()]
    assert before == 0 < rows[0] < rows[-1] == run.metrics()["epsilon_proven"]


def test_the_bit_alone_costs_what_its_share_says():
    """±½ against the noise σ_b: one client more moves the sum by ½."""
    strategy = server(clipping={"adaptive": True, "bit_noise": 3.0}, cohort=N)
    bit = DiscreteGaussianEvent(2 * 3.0 * CLIP_STEPS, CLIP_STEPS)
    alone = epsilon(RepeatedEvent(bit, 20), 1e-5).epsilon
    assert alone < epsilon(RepeatedEvent(strategy.protection.round_event(), 20), 1e-5).epsilon


@pytest.mark.parametrize(("true_norm", "start"), [(0.5, 20.0), (50.0, 0.1)])
def test_clipping_norm_goes_to_the_quantile(true_norm, start):
    strategy = server(clipping={"adaptive": True, "norm": start, "quantile": 0.5}, rounds=60)
    norms = true_norm * np.exp(np.random.default_rng(0).normal(0, 0.2, COHORT))
    zero = np.zeros(strategy.trainer.num_parameters)
    for number in range(1, 101):
        short = int((norms <= strategy.protection.clip).sum())
        update(strategy, number, zero, bits=short - (COHORT - short))
    assert 0.7 < strategy.protection.clip / np.median(norms) < 1.4


def test_cohort_is_a_poisson_sample_that_the_seed_does_not_tell():
    strategy = server()
    sizes = np.array([len(strategy.rounds.cohort(number)) for number in range(400)])
    assert abs(sizes.mean() - COHORT) < 5 * math.sqrt(COHORT * 0.75 / 400)
    assert sizes.std() > 4
    secret = server(seeded=False)
    assert not np.array_equal(secret.rounds.cohort(1), server(seeded=False).rounds.cohort(1))


def test_a_secret_cohort_is_drawn_once_also_by_a_server_that_is_resumed():
    killed, resumed = server(seeded=False), server(seeded=False)
    model = np.zeros(killed.trainer.num_parameters, np.float32)
    resumed.rounds.resume(killed.rounds.state(0, model, 1))
    one, other = killed.rounds, resumed.rounds
    assert np.array_equal(other.cohort(1), one.cohort(1))
    assert np.array_equal(one.cohort(1), one.cohort(1))
    assert not np.array_equal(one.cohort(2), other.cohort(2))
    assert len(server(cohort=N).rounds.cohort(1)) == N


def test_checkpoint_carries_the_norm_and_the_number_of_models():
    strategy, other = server(clipping={"adaptive": True}), server(clipping={"adaptive": True})
    update(strategy, 1, np.zeros(strategy.trainer.num_parameters), bits=0)
    other.restore(strategy.state())
    own, restored = strategy.protection, other.protection
    assert (restored.clip, restored.rounds_published) == (own.clip, 1)
    assert restored.clip != 2.0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clipping": {"norm": 0.0}}, "clipping.norm=0.0"),
        ({"clipping": {"quantile": 1.0}}, "clipping.quantile=1.0"),
        ({"clipping": {"learning_rate": -1.0}}, "clipping.learning_rate=-1.0"),
        ({"clipping": {"bit_noise": 0.0}}, "clipping.bit_noise=0.0"),
        ({"clipping": {"adaptive": True, "bit_noise": 0.01}}, "clipping.bit_noise=0.01: must be"),
        ({"multiplier": -1.0}, "noise_multiplier=-1.0"),
    ],
)
def test_bad_settings_are_refused_on_construction(changed, words):
    with pytest.raises(ValueError) as caught:
        server(**changed)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("words", [["strategy=dp_fedavg"], ["strategy=dp_ftrl"]])
def test_a_sum_that_may_be_lost_as_a_whole_is_refused(words):
    """Of a cohort of the least size one client less takes the whole sum away, not one update."""
    on = "privacy.secure_aggregation=on"
    ValidatedRun(compose([*SMALL, *words]))
    ValidatedRun(compose([*SMALL, *words, on, "privacy.epsilon=inf"]))
    with pytest.raises(ConfigError, match="secure_aggregation=on: a sum of too few clients"):
        ValidatedRun(compose([*SMALL, *words, on]))


def test_runs_end_to_end_with_cohorts_that_may_be_empty(tmp_path):
    run = run_inline(
        tmp_path,
        "strategy=dp_fedavg",
        "federation.public=0",
        "federation.clients_per_round=1",
        "federation.num_rounds=6",
        "privacy.epsilon=8",
        "seed=3",
        "protection.clipping.adaptive=true",
        "protection.clipping.bit_noise=2",
        "protection.clipping.norm=2",  # a whole number, as people type it
    )
    rows = run.rows()[1:]
    assert len(rows) == 6
    assert min(row["answered"] for row in rows) == 0
    assert max(row["answered"] for row in rows) > 0
    central = run.statement()["guarantees"][0]
    assert central["threat"] == "central"
    assert 7.0 < central["assumed_total"] <= 8.0 < central["proven_total"]
