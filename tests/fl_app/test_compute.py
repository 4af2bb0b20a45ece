"""``conf/compute``: stacks in a whole run, and what is refused."""

import numpy as np
import pytest
from omegaconf import OmegaConf

from clients.fedavg import FedAvgClient
from fl_app.config.compose import _compose, compose
from fl_app.config.errors import ConfigError
from fl_app.config.instantiate import build
from fl_app.config.job_key import job_key
from fl_app.device.hosts import DeviceHost
from fl_app.device.node_settings import DeviceError, NodeSettings, OwnerSettings
from fl_app.engines.inline import InlineEngine
from fl_app.run.hosts import build_trainer
from fl_app.run.population import population
from fl_app.run.prepare import prepare
from fl_app.run.results import Checkpoint, RowLines, RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy.ledger import Ledger
from murmur.round.run_state import RunState

SMALL = ["federation.num_clients=10", "federation.num_rounds=2", "seed=4", "tracking=none"]
STACK = "compute.stack=4"  # ten clients: two full stacks and a rest


def run(folder, *settings):
    """Weights and rows of a run."""
    results = RunFolder(folder)
    InlineEngine().run(ValidatedRun.of([*SMALL, *settings, f"run_dir={folder}"]))
    model = results.load_checkpoint().run.model
    return model, results.rows()


@pytest.mark.parametrize(
    "settings",
    [
        ["strategy=fedavg", "privacy=none"],
        ["strategy=fedprox", "privacy=none", "strategy.proximal_mu=0.5"],
        ["strategy=dp_fedavg", "privacy.noise=seeded"],
        ["strategy=nbafl", "privacy.noise=seeded"],
        ["strategy=local_only", "privacy=none"],
    ],
    ids=lambda settings: settings[0],
)
def test_stacked_runs_are_those_of_clients_one_by_one(tmp_path, settings) -> None:
    alone, rows = run(tmp_path / "alone", *settings)
    stacked, stacked_rows = run(tmp_path / "stacked", STACK, *settings)
    np.testing.assert_allclose(stacked, alone, rtol=1e-3, atol=1e-4)
    assert [row["answered"] for row in stacked_rows] == [row["answered"] for row in rows]
    assert [row["failed"] for row in stacked_rows] == [{}] * len(stacked_rows)


def test_tiny_clients_too_few_for_one_product_train_alone(tmp_path) -> None:
    few = ["strategy=fedavg", "privacy=none", "model=linear", "federation.clients_per_round=3"]
    alone, _ = run(tmp_path / "alone", "compute.stack=1", *few)
    together, rows = run(tmp_path / "together", *few)
    assert [row["answered"] for row in rows[1:]] == [3, 3]
    np.testing.assert_array_equal(together, alone)


def test_a_stacked_release_is_charged_as_any_other(tmp_path) -> None:
    settings = ["strategy=privatekt", "strategy.K=4", "privacy.noise=seeded"]
    spends = []
    for name, more in (("alone", []), ("stacked", [STACK])):
        _, rows = run(tmp_path / name, *settings, *more)
        with Ledger(tmp_path / name / "ledger.sqlite", create=False) as ledger:
            spends.append({client: str(ledger.spent(client)) for client in ledger.clients()})
        assert [row["answered"] for row in rows[1:]] == [10, 10]
    assert spends[0] == spends[1]
    assert len(spends[0]) == 10


def test_noise_inside_the_training_stays_outside_the_stack(tmp_path) -> None:
    settings = ["strategy=nbafl", "privacy.unit=record", "privacy.noise=seeded"]
    settings += ["privacy.calibration=proven", "privacy.epsilon=8", "privacy.delta=1e-5"]
    alone, _ = run(tmp_path / "alone", *settings)
    stacked, _ = run(tmp_path / "stacked", STACK, *settings)
    assert np.array_equal(alone, stacked)


def test_models_that_cannot_be_stacked_train_one_by_one(tmp_path) -> None:
    settings = ["strategy=fedavg", "privacy=none", "model.dropout=0.2"]
    alone, _ = run(tmp_path / "alone", *settings)
    stacked, _ = run(tmp_path / "stacked", STACK, *settings)
    assert np.array_equal(alone, stacked)


def test_clients_of_a_stack_that_fails_train_one_by_one_and_the_log_says_why(
    tmp_path, monkeypatch
) -> None:
    def fail(*_, **__):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("murmur.learning.training.stack.Stack.train", fail)
    stacked, rows = run(tmp_path / "stacked", "strategy=fedavg", "privacy=none", STACK)
    assert rows[-1]["answered"] == 10
    log = (tmp_path / "stacked" / "errors.log").read_text()
    assert "round 1, 4 clients together: RuntimeError: CUDA out of memory" in log
    alone, _ = run(tmp_path / "alone", "strategy=fedavg", "privacy=none")
    assert np.array_equal(alone, stacked)


def test_a_client_that_cannot_train_costs_those_beside_it_nothing(tmp_path, monkeypatch) -> None:
    share = FedAvgClient.share

    def damaged(self, task, data):
        if task.client == 3:
            raise ValueError("its state is damaged")
        return share(self, task, data)

    monkeypatch.setattr(FedAvgClient, "share", damaged)
    words = ["strategy=fedavg", "privacy=none", "model=linear"]
    _, rows = run(tmp_path, *words)
    assert rows[-1]["answered"] == 9
    assert rows[-1]["failed"] == {"3": "ValueError: its state is damaged"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["compute.stack=0"], "compute.stack=0: must be at least 1"),
        (["compute.device=tpu"], "compute.device=tpu"),
        (["compute.mixed_precision=true"], "compute.mixed_precision=True"),
        (["compute=gpu"], "compute=gpu: unknown"),
        (["compute.precision=fp16"], "compute.precision=fp16"),
        (["compute.precision=bf16", STACK], "compute.precision=bf16: is for clients one by one"),
        (["compute.fused=maybe"], "compute.fused=maybe"),
    ],
)
def test_bad_settings_are_named(settings, message) -> None:
    with pytest.raises(ConfigError) as caught:
        build(compose([*SMALL, *settings]).compute, "compute")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("installed", [True, False])
def test_what_auto_decides_is_recorded_and_handed_to_every_worker(
    tmp_path, monkeypatch, installed
) -> None:
    for place in ("fl_app.config.compose", "fl_app.run.hosts"):
        monkeypatch.setattr(f"{place}.has_compiler", lambda: installed)
    _compose.cache_clear()
    try:
        ready = prepare([*SMALL, "engine=inline", f"run_dir={tmp_path}"])
        assert compose(ready.overrides).compute.fused is installed
        monkeypatch.undo()  # a worker on which something else is installed
        _compose.cache_clear()
        assert compose(ready.overrides).compute.fused is installed
    finally:
        _compose.cache_clear()


@pytest.mark.parametrize(("has", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_the_precision_that_this_processor_is_fastest_in(monkeypatch, has, chosen) -> None:
    monkeypatch.setattr("fl_app.config.compose.has_bfloat16", lambda: has)
    monkeypatch.setattr("fl_app.config.compose.has_kernels", lambda: True)
    _compose.cache_clear()
    try:
        assert compose([*SMALL, "compute.precision=auto"]).compute.precision == chosen
    finally:
        _compose.cache_clear()


def test_a_processor_without_bfloat16_is_named_before_the_run(monkeypatch) -> None:
    monkeypatch.setattr("murmur.learning.training.backends.has_bfloat16", lambda: False)
    monkeypatch.setattr("murmur.learning.training.backends.has_kernels", lambda: True)
    config = compose([*SMALL, "features=none", "model=cnn_16", "compute.precision=bf16"])
    with pytest.raises(ConfigError, match=r"^compute\.precision=bf16: this processor does not"):
        build_trainer(config, population(config).dataset)


def test_precision_is_a_part_of_what_a_run_is(tmp_path) -> None:
    """A sweep has both, and a resumed run keeps its own."""
    configs = [compose([*SMALL, *more]) for more in ([], ["compute.precision=bf16"])]
    assert len({job_key(config, tmp_path) for config in configs}) == 2
    settings = [OmegaConf.to_container(config) for config in configs]
    checkpoint = Checkpoint(RunState(0, np.zeros(0)), "run", settings[0], [], RowLines())
    checkpoint.require_settings(settings[0])
    with pytest.raises(
        ConfigError, match=r"^compute\.precision=bf16: this run was started with fp32"
    ):
        checkpoint.require_settings(settings[1])


def test_without_its_compiler_a_fused_run_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr("fl_app.run.hosts.has_compiler", lambda: False)
    config = compose([*SMALL, "compute.fused=true"])
    with pytest.raises(ConfigError, match=r"^compute\.fused=True: needs murmur-kernels"):
        build_trainer(config, population(config).dataset)


def test_without_a_gpu_compute_cuda_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = compose([*SMALL, "compute=cuda"])
    with pytest.raises(ConfigError, match=r"^compute\.device=cuda: .*use compute=cpu"):
        build_trainer(config, population(config).dataset)


def test_a_devices_owner_and_not_the_server_says_what_computes(tmp_path) -> None:
    """A server that asks for CUDA, or for a stack, gets neither."""
    np.savez(
        tmp_path / "data.npz", images=np.zeros((9, 1, 8, 8), np.float32), labels=np.arange(9) % 3
    )
    config = compose(
        [
            *SMALL,
            "strategy=fedavg",
            "privacy=none",
            "federation.public=0",
            "federation.devices={shape: [1, 8, 8], classes: 3}",
            "compute=cuda",
        ]
    )
    settings = NodeSettings.device(
        {"clients": "3", "data": str(tmp_path / "data.npz"), "state": str(tmp_path)}, "r"
    )
    node = DeviceHost(config, settings)
    assert node.stack == 1
    assert node.trainer.flat.vector.device.type == "cpu"
    with pytest.raises(DeviceError, match="compute in this device's node-config"):
        OwnerSettings.of({"clients": "3", "compute": "tpu"})
    with pytest.raises(DeviceError, match="precision in this device's node-config"):
        OwnerSettings.of({"clients": "3", "precision": "fp16"})
    assert OwnerSettings.of({"clients": "3", "precision": "auto"}).precision == "auto"
