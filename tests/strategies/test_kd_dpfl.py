"""KD-DPFL's server half: the label stage, the special client, budgets, restarts, statements."""

import json
import math

import numpy as np
import pytest
from scipy.io import savemat

from fl_app.config.errors import ConfigError
from fl_app.run.results import RunFolder
from murmur.algorithms.dpsgd import LocalDpSgd
from murmur.learning.data.datasets import Examples
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import NonPrivateEvent
from murmur.privacy.ledger import Ledger
from murmur.round.setup import ServerSetup
from murmur.round.task import RunError
from strategies.dpsgd_fedavg import DpSgdFedAvg
from strategies.kd_dpfl import KdDpfl
from tests.fl_app.running import run_inline
from tests.made import made

CLASSES, POOL, SIZES = 3, 40, (60, 60, 6, 6, 6, 6, 6)
RUN = [
    "strategy=kd_dpfl",
    "privacy=paper",
    "model=mlp",
    "partition=quantity_skew",
    "partition.exponent=null",
    "partition.groups={large:{count:2,size:300},general:{count:4,size:40}}",
    "strategy.labelling.epochs=4",
    "strategy.labelling.queries=60",
    "strategy.local.lot_size=20",
    "privacy.noise=os",
]


def server(total=8.0, spending=None, soft=False, special=None, rounds=4, quorum=0.5, **labelling):
    images = np.random.default_rng(0).random((POOL, 1, 4, 4), dtype=np.float32)
    setup = ServerSetup(
        trainer=Trainer(
            lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[6]),
            (1, 4, 4),
            CLASSES,
        ),
        public=images,
        test=Examples(images[:10], np.zeros(10, np.int64)),
        budget=Budget(total, 1e-5, rounds, paper_semantics=True),
        seed=1,
        num_clients=len(SIZES),
        cohort_size=len(SIZES),
        quorum=quorum,
        client_sizes=SIZES,
        seeded_noise=True,
    )
    return made(
        KdDpfl,
        setup,
        sizes=None,
        grouping={"factor": 5.0},
        spending=spending or {"mode": "tight"},
        labelling={
            "mechanism": "dpsgd_teacher",
            "queries": 20,
            "epochs": 5,
            "lot_size": 30,
            **labelling,
        },
        soft=soft,
        local={"epochs": 1, "lot_size": 3, "clipping_norm": 1.0, "learning_rate": 0.1},
        uploads={"noise": "dpsgd", "clip": 1.0},
        special={
            "epochs": 1,
            "lot_size": 5,
            "clipping_norm": 1.0,
            "learning_rate": 0.5,
            "cap": 0.5,
            **(special or {}),
        },
    )


def labelled(strategy, label=2):
    strategy.targets = np.tile(np.eye(CLASSES, dtype=np.float32)[label], (20, 1))
    strategy.labelled = list(strategy.plan.label)
    strategy.rounds.participations.update(strategy.labelled)
    return strategy


def summed(strategy, value, weight):
    codec = strategy.codec()
    return codec.expand(np.full(codec.size, value, np.float32), weight)


def test_cohort_is_general_clients_only_unless_large_ones_join():
    assert list(server().rounds.cohort(1)) == [2, 3, 4, 5, 6]
    joined = server(spending={"mode": "tight", "joining": True})
    assert list(joined.rounds.cohort(1)) == list(range(7))
    student = server(spending={"mode": "tight", "general": False})
    assert len(student.rounds.cohort(1)) == 0


def test_special_client_counts_by_its_images_and_never_more_than_half():
    strategy = labelled(server())
    model = strategy.setup.initial_parameters()
    own = labelled(server())._special(1, model)
    for weight, share in ((60, 0.25), (5, 0.5)):
        strategy = labelled(server())
        new = strategy.update(1, model, summed(strategy, 0.25, weight), weight)
        np.testing.assert_allclose(new, (1 - share) * 0.25 + share * own, atol=1e-6)


def test_special_client_learns_its_labels_with_and_without_noise():
    tight = labelled(server(special={"epochs": 20}))
    tight.trainer.load(tight._special(1, tight.setup.initial_parameters()))
    chosen = tight.trainer.logits(tight.setup.public[tight.indices]).argmax(axis=1)
    assert np.all(chosen == 2)
    conservative = {"mode": "conservative", "general_epsilon": 3.0}
    noisy = labelled(server(spending=conservative))
    again = labelled(server(spending=conservative))
    model = noisy.setup.initial_parameters()
    first = noisy._special(1, model)
    assert np.array_equal(first, again._special(1, model))
    assert not np.array_equal(first, noisy._special(2, model))


def test_hard_targets_are_the_plurality_and_soft_ones_distributions():
    counts = np.tile([5, 2, 0], (20, 1))
    assert np.array_equal(server()._resolve(counts, [0])[0], [1, 0, 0])
    soft = server(soft=True, mechanism="pate", teachers=60)
    targets = soft._resolve(np.tile([50, 12, -2], 20), [0])
    assert targets.min() >= 0
    np.testing.assert_allclose(targets.sum(axis=1), 1, rtol=1e-5)
    assert targets[0, 0] > targets[0, 1] > targets[0, 2]


@pytest.mark.parametrize("epsilons", [8.0, [2.0, 8.0]])
def test_soft_votes_of_randomised_labels_are_debiased_by_each_clients_own_epsilon(epsilons):
    spending = {"mode": "tight", "label_epsilon": epsilons}
    strategy = server(soft=True, mechanism="rr", spending=spending)
    shares = np.zeros(CLASSES)
    for client, own in strategy.plan.label.items():
        randomiser = strategy.labelling.randomiser(own, 1e-5)
        truth = randomiser.truth_probability
        shares += SIZES[client] * np.array([truth, *[(1 - truth) / (CLASSES - 1)] * 2])
    counts = np.tile(shares, (20, 1))
    np.testing.assert_allclose(strategy._resolve(counts, [0, 1])[0], [1, 0, 0], atol=1e-6)


def test_exposure_is_labels_for_large_and_uploads_for_general_clients():
    strategy = labelled(server())
    for _ in range(4):
        strategy.rounds.participations.update([2, 3, 4, 5, 6])
        strategy.special_rounds += 1
    guarantee = strategy.rounds.statement().guarantees[0]
    assert set(guarantee.clients) == {str(client) for client in range(7)}
    for client in range(7):
        assert guarantee.clients[str(client)] == pytest.approx(8.0, rel=0.02)
    assert guarantee.proven_total <= 8.0 * (1 + 1e-9)
    assert guarantee.claimed_total == 8.0


def test_conservative_mode_charges_the_special_clients_uploads_to_large_clients():
    strategy = labelled(server(spending={"mode": "conservative", "general_epsilon": 2.0}))
    before = epsilon(strategy._path(0), 1e-5).epsilon
    strategy.special_rounds = 4
    after = epsilon(strategy._path(0), 1e-5).epsilon
    assert before == pytest.approx(5.0, rel=0.01)
    assert before < after < 8.0
    assert strategy.claims().claimed == (None, 8.0)


def test_nothing_is_spent_before_anything_is_released():
    strategy = server()
    assert strategy.rounds.statement().guarantees[0].proven_total == 0


def test_without_protection_the_statement_says_so():
    strategy = labelled(server(total=math.inf, mechanism="none"))
    assert strategy._path(0).events == (NonPrivateEvent(),)
    assert strategy.rounds.statement().guarantees[0].proven_total == math.inf


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"special": {"cap": 0.6}}, r"^cap=0\.6: "),
        ({"mechanism": "none"}, r"^labelling\.mechanism='none': "),
        ({"special": {"lot_size": 0}}, "^lot_size=0: "),
        ({"spending": {"mode": "conservative", "general_epsilon": 6.0}}, r"^total=8\.0: leaves"),
    ],
)
def test_bad_settings_are_refused_on_construction(changed, message):
    with pytest.raises(ValueError, match=message):
        server(**changed)


def test_checkpoint_holds_the_labels():
    strategy = labelled(server())
    strategy.special_rounds = 3
    other = server()
    other.restore(strategy.state())
    assert np.array_equal(other.targets, strategy.targets)
    assert (other.labelled, other.special_rounds) == ([0, 1], 3)


# Whole runs ---------------------------------------------------------------------------------


def label_charges(folder):
    with Ledger(folder / "ledger.sqlite", create=False) as ledger:
        return [
            entry
            for entry in ledger.entries()
            if entry.purpose == "label" and entry.kind == "charge"
        ]


def test_a_run_labels_once_then_trains(tmp_path):
    folder = run_inline(tmp_path / "run", *RUN)
    rows = folder.rows()
    assert [row["answered"] for row in rows] == [0, 4, 4]
    assert rows[0]["epsilon_proven"] == pytest.approx(3.5, rel=0.01)
    assert folder.metrics()["epsilon_proven"] < 8.0
    assert sorted(int(entry.client) for entry in label_charges(folder.path)) == [0, 1]
    statement = json.loads((folder.path / "privacy.json").read_text())
    assert (statement["unit"], statement["adjacency"]) == ("record", "replace_special")
    assert not statement["void"]


def test_a_student_of_the_votes_needs_no_federation(tmp_path):
    controls = ["strategy.spending.mode=tight", "strategy.spending.general=false"]
    folder = run_inline(tmp_path / "run", *RUN, *controls)
    assert [row["answered"] for row in folder.rows()] == [0, 0, 0]
    model = folder.load_checkpoint().run.model
    assert not np.array_equal(model, np.zeros_like(model))
    assert folder.metrics()["epsilon_proven"] == pytest.approx(8.0, rel=0.01)


def test_general_clients_alone_have_no_label_stage(tmp_path):
    folder = run_inline(tmp_path / "run", *RUN, "strategy.spending.special=false")
    assert label_charges(folder.path) == []
    assert [row["answered"] for row in folder.rows()] == [0, 4, 4]


class CrashError(Exception):
    """Stands for a killed process."""


def test_labels_paid_for_before_a_crash_are_neither_paid_for_nor_noised_again(
    tmp_path, monkeypatch
):
    path = tmp_path / "run"

    seen = []

    def crash(_, total, weight):
        seen.append(total.copy())
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(KdDpfl, "_resolve", crash)
        with pytest.raises(CrashError):
            run_inline(path, *RUN)
    assert len(label_charges(path)) == 2
    assert not RunFolder(path).rows()
    resolve = KdDpfl._resolve
    monkeypatch.setattr(
        KdDpfl,
        "_resolve",
        lambda self, total, weight: seen.append(total) or resolve(self, total, weight),
    )
    # Other nodes than before: the questions are the same.
    run_inline(path, *RUN, workers=1, nodes=3)
    assert len(label_charges(path)) == 2
    assert RunFolder(path).metrics()["failed"] == 0
    assert len(seen) == 2
    assert np.array_equal(seen[0], seen[1])


def test_a_finished_label_stage_is_not_asked_again_after_a_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(KdDpfl, "update", lambda *_: (_ for _ in ()).throw(CrashError()))
        with pytest.raises(CrashError):
            run_inline(path, *RUN)
    before = RunFolder(path).load_checkpoint().run.algorithm["targets"]
    monkeypatch.setattr(KdDpfl, "learn", lambda *_: pytest.fail("asked again"))
    folder = run_inline(path, *RUN)
    assert np.array_equal(folder.load_checkpoint().run.algorithm["targets"], before)
    assert [row["round"] for row in folder.rows()] == [0, 1, 2]
    assert len(label_charges(path)) == 2


def test_refusals_in_the_label_stage_end_the_run_with_their_reason(tmp_path, monkeypatch):
    from clients.kd_dpfl import KdDpflClient

    def refuse(*_):
        raise ValueError("no such data")

    monkeypatch.setattr(KdDpflClient, "answer", refuse)
    with pytest.raises(RunError, match=r"0 of 2 clients .*no such data"):
        run_inline(tmp_path / "run", *RUN)


def test_labels_without_noise_are_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match=r"labelling\.mechanism='none': .*privacy=none"):
        run_inline(tmp_path / "run", *RUN, "strategy.labelling.mechanism=none")


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("special.clipping_norm", "be finite and at least 1e-09"),
        ("uploads.clip", r"lie in \[1e-300, 1e\+100\]"),
    ],
)
def test_norms_that_no_round_could_use_are_refused_before_labels_are_released(
    key, allowed, tmp_path
):
    with pytest.raises(ConfigError, match=rf"{key}=1e-310: must {allowed}$"):
        run_inline(tmp_path / "run", *RUN, f"strategy.{key}=1e-310")


def test_dpsgd_over_all_clients_states_what_each_has_spent(tmp_path):
    folder = run_inline(
        tmp_path / "run",
        "strategy=dpsgd_fedavg",
        "model=mlp",
        "privacy.epsilon=3",
        "privacy.noise=os",
        "strategy.local.lot_size=30",
    )
    rows, metrics = folder.rows(), folder.metrics()
    assert rows[1]["epsilon_proven"] < rows[2]["epsilon_proven"] == pytest.approx(3, rel=0.01)
    assert metrics["epsilon_proven"] <= 3 * (1 + 1e-9)
    assert metrics["epsilon_claimed"] == 3


def test_dpsgd_needs_public_sizes():
    setup = ServerSetup(
        trainer=server().trainer,
        public=np.zeros((0, 1, 4, 4), np.float32),
        test=Examples(np.zeros((1, 1, 4, 4), np.float32), np.zeros(1, np.int64)),
        budget=Budget(3.0, 1e-5, 2, paper_semantics=True),
        seed=1,
        num_clients=2,
        cohort_size=2,
        quorum=0.5,
    )
    with pytest.raises(ValueError, match=r"^client_sizes=None: "):
        DpSgdFedAvg(setup, local=LocalDpSgd(1, 3, clipping_norm=1.0, learning_rate=0.1))


def test_the_svhn_experiment_runs_reduced_on_files_written_here(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 130), ("test", 20)):
        images = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]
        savemat(tmp_path / f"{part}_32x32.mat", {"X": images, "y": labels})
    reduced = [
        "experiment=kd_dpfl_svhn",
        f"dataset.root={tmp_path}",
        f"dataset.cache={tmp_path / 'cache'}",
        "dataset.download=false",
        "dataset.check_md5=false",
        "partition.groups={large:{count:1,size:50},general:{count:4,size:10}}",
        "federation.num_clients=5",
        "federation.num_rounds=1",
        "federation.public=30",
        "strategy.labelling.epochs=1",
        "model.channels=[4,4,4,4]",
        "model.groups=2",
        "model.hidden=[8]",
        "privacy.noise=os",
    ]
    folder = run_inline(tmp_path / "run", *reduced)
    assert [row["answered"] for row in folder.rows()] == [0, 4]
    assert folder.metrics()["epsilon_proven"] <= 8.0


def test_hospitals_are_scored_by_the_area_under_the_curve(tmp_path, data_root):
    reduced = [
        "experiment=kd_dpfl_pneumonia",
        f"dataset.root={data_root}",
        f"dataset.cache={tmp_path / 'cache'}",
        "federation.num_rounds=1",
        "strategy.labelling.epochs=1",
    ]
    folder = run_inline(tmp_path / "run", *reduced, "federation.num_clients=25")
    assert 0 <= folder.rows()[-1]["auc"] <= 1
