"""Many tiny clients in lockstep have the very bits that each has by itself.

Whether a library has the same bits for many products as for one differs from processor to
processor; ``Lockstep`` tries it. So a test asks for equal bits whichever way was taken, or settles
the trial itself (``settled``) and then asks for equal numbers up to rounding.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.learning import models
from murmur.learning.training.stack import ClientBatch, Stack
from murmur.learning.training.trainer import Trainer
from murmur_kernels import lockstep
from murmur_kernels.lockstep import MIN_CLIENTS, TRIED_AFTER, WIDTH, Lockstep

CLASSES = 10
MODELS = {
    "2 x 2 pixels": ((1, 2, 2), []),
    "digits": ((1, 8, 8), []),
    "colours": ((3, 3, 4), []),
    "narrow hidden layer": ((1, 4, 4), [9]),
    "wide hidden layers": ((1, 5, 5), [33, 20]),
    "MNIST": ((1, 28, 28), [16]),
}
FEW = [7] * WIDTH  # examples of each client


def trainer_of(model, **more):
    shape, hidden = MODELS[model]
    return Trainer(partial(models.mlp, hidden=hidden), shape, CLASSES, exact_stack=True, **more)


def examples(model, count, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((count, *MODELS[model][0]), dtype=np.float32)
    return images, rng.integers(0, CLASSES, count)


def shares(trainer, sizes, corrected=False):
    """Clients with so many examples; each has a start and a stream of its own."""
    rng = np.random.default_rng(1)
    rows = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    made = rng.standard_normal((2, len(sizes), trainer.num_parameters), dtype=np.float32) / 9
    return [
        ClientBatch(start, own, np.random.default_rng(k), added if corrected else None)
        for k, (start, own, added) in enumerate(zip(made[0], rows, made[1], strict=True))
    ]


def one_by_one(trainer, data, clients, **how):
    results = []
    for client in clients:
        trainer.load(client.start)
        trained = trainer.train(
            *data, indices=client.indices, rng=client.rng, correction=client.correction, **how
        )
        results.append(trained)
    return results


def together(trainer, data, clients, **how):
    """In lockstep; whoever is left over trains alone, as ``LocalTraining`` has it."""
    found = trainer.stack.train(*data, clients, **how)
    alone = [client for client, model in zip(clients, found, strict=True) if model is None]
    rest = iter(one_by_one(trainer, data, alone, **how))
    return [next(rest) if model is None else model for model in found], len(alone)


def settle(monkeypatch, exact):
    """Trials are made as ever, and end as ``exact`` says, whatever this processor's bits."""
    tried = Lockstep._try
    monkeypatch.setattr(Lockstep, "_try", lambda *given: (tried(*given), exact)[1])


@pytest.fixture(autouse=True)
def tried_at_once(monkeypatch):
    monkeypatch.setattr(lockstep, "TRIED_AFTER", 1)


HOW = pytest.mark.parametrize(
    "how",
    [
        {"epochs": 1, "batch_size": 32},
        {"epochs": 3, "batch_size": 5},
        {"steps": 7, "batch_size": 4, "proximal_mu": 0.3},
        {"steps": 2, "batch_size": 64, "corrected": True},
    ],
    ids=str,
)
SIZES = [12] * (WIDTH + 9) + [7] * 11 + [1] * 8 + [40] * 3


def both_ways(model, how):
    """Each client alone; all of them together, and how many of these trained alone."""
    how = {"lr": 0.3, **how}
    corrected = how.pop("corrected", False)
    trainer = trainer_of(model)
    data = examples(model, sum(SIZES))
    expected = one_by_one(trainer, data, shares(trainer, SIZES, corrected), **how)
    return expected, *together(trainer, data, shares(trainer, SIZES, corrected), **how)


@pytest.mark.parametrize("model", MODELS)
@HOW
def test_every_client_has_the_bits_that_it_has_alone(model, how):
    expected, found, _ = both_ways(model, how)
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("model", MODELS)
@HOW
def test_a_kind_whose_bits_are_equal_trains_in_lockstep(monkeypatch, model, how):
    settle(monkeypatch, True)
    expected, found, alone = both_ways(model, how)
    assert alone == 3  # those of 40 examples are fewer than ``MIN_CLIENTS``
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(MODELS)),
    st.integers(1, 45),
    st.integers(1, 33),
    st.integers(1, 9),
    st.integers(MIN_CLIENTS, WIDTH),
)
def test_whatever_the_sizes_bits_do_not_depend_on_who_trains_beside_whom(
    model, examples_each, batch_size, steps, clients
):
    trainer = trainer_of(model)
    sizes = [examples_each] * clients
    data = examples(model, sum(sizes))
    how = {"batch_size": batch_size, "steps": steps, "lr": 0.2}
    expected = one_by_one(trainer, data, shares(trainer, sizes), **how)
    for block in (MIN_CLIENTS, WIDTH):
        found, own = [], shares(trainer, sizes)
        for start in range(0, clients, block):
            found += together(trainer, data, own[start : start + block], **how)[0]
        assert all(map(np.array_equal, found, expected)), block


@pytest.mark.parametrize("differ", [False, True], ids=["equal", "a last bit differs"])
def test_a_trial_compares_bits(monkeypatch, differ):
    """Of a library that has for one what it has for many, and of one that has almost that."""
    trainer = trainer_of("digits")
    train, made = Lockstep._train, []
    row = iter(range(WIDTH))

    def trained(*given):
        made.append(train(*given))
        return made[-1]

    def alone(*_, **__):
        """What the trial has just trained in lockstep, one client after the other."""
        k = next(row)
        own = made[-1][k].copy()
        if differ and k == WIDTH - 1:
            own[-1] = np.nextafter(own[-1], np.float32(np.inf))
        return own

    monkeypatch.setattr(Lockstep, "_train", trained)
    monkeypatch.setattr(trainer.stack, "_train_single", alone)
    data = examples("digits", sum(FEW))
    found = trainer.stack.train(*data, shares(trainer, FEW), batch_size=4, epochs=1, lr=0.1)
    assert [model is None for model in found] == [differ] * WIDTH


def test_few_or_strange_clients_train_one_by_one_and_their_streams_are_untouched(monkeypatch):
    trainer = trainer_of("digits")
    data = examples("digits", sum(FEW))
    how = {"batch_size": 4, "epochs": 1, "lr": 0.1}
    few = shares(trainer, FEW[: MIN_CLIENTS - 1])
    assert trainer.stack.train(*data, few, **how) == [None] * len(few)
    assert few[0].rng.random() == np.random.default_rng(0).random()
    strange = shares(trainer, FEW)
    strange[3].indices[0] = sum(FEW)  # no such example: told when it trains alone
    assert trainer.stack.train(*data, strange, **how) == [None] * WIDTH
    with pytest.raises(ValueError, match="indices="):
        one_by_one(trainer, data, strange[3:4], **how)
    monkeypatch.setattr(lockstep, "TRIED_AFTER", TRIED_AFTER)
    first = trainer_of("digits").stack.train(*data, shares(trainer, FEW), **how)
    assert first == [None] * WIDTH  # not worth a trial yet


def test_training_in_lockstep_leaves_the_model_as_it_is(monkeypatch):
    settle(monkeypatch, True)
    trainer = trainer_of("digits")
    trainer.load(np.full(trainer.num_parameters, 0.25, np.float32))
    data = examples("digits", sum(FEW))
    found = trainer.stack.train(*data, shares(trainer, FEW), batch_size=4, epochs=1, lr=0.1)
    assert all(model is not None for model in found)
    assert np.all(trainer.parameters() == 0.25)


@pytest.mark.parametrize("exact", [True, False], ids=["in lockstep", "alone"])
def test_a_client_that_diverges_disturbs_no_other(monkeypatch, exact):
    settle(monkeypatch, exact)
    trainer = trainer_of("digits")
    images, labels = examples("digits", sum(FEW))
    own = shares(trainer, FEW)
    images[own[5].indices[2]] = np.inf
    how = {"batch_size": 4, "epochs": 2, "lr": 0.1}
    found, alone = together(trainer, (images, labels), own, **how)
    expected = one_by_one(trainer, (images, labels), shares(trainer, FEW), **how)
    assert alone == (0 if exact else WIDTH)
    assert not np.isfinite(found[5]).all()
    for k in set(range(WIDTH)) - {5}:
        np.testing.assert_allclose(found[k], expected[k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (partial(models.mlp, hidden=[], dropout=0.0), (1, 80, 80)),  # 64,010 parameters
        (partial(models.mlp, hidden=[8], dropout=0.5), (1, 4, 4)),
        (partial(models.cnn_16, channels=[3, 4]), (1, 16, 16)),
    ],
)
def test_models_that_are_large_draw_or_convolve_have_no_lockstep(model, shape):
    assert Trainer(model, shape, CLASSES, exact_stack=True).stack is None


def test_a_stack_that_changes_last_bits_is_another_one():
    shape, hidden = MODELS["digits"]
    make = partial(models.mlp, hidden=hidden)
    assert type(Trainer(make, shape, CLASSES).stack) is Stack
    assert type(Trainer(make, shape, CLASSES, exact_stack=True).stack) is Lockstep
