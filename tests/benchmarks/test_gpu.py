"""The GPU's benchmark without a GPU: its settings compose, and its table says what failed."""

import argparse

import pytest
import torch

from benchmarks import gpu, processes
from benchmarks.competitors.flower_app.plain.task import build_model
from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "CLIENTS", 20)
    monkeypatch.setattr(gpu, "COHORT", 5)
    return gpu.random_images(tmp_path)


def options(**changed) -> argparse.Namespace:
    chosen = {"only": gpu.CIFAR, "rounds": 3, "devices": ["cpu", "cuda"], "pfl": "python"}
    return argparse.Namespace(**chosen | changed)


def test_every_job_composes_on_every_device(images) -> None:
    for words in gpu.jobs(images).values():
        for way in gpu.WAYS.values():
            config = compose([*words, *way])
            assert f"compute={config.compute.device}" == way[0]


def test_pfl_trains_the_network_that_murmur_does(images) -> None:
    experiment = ValidatedRun(compose([*gpu.jobs(images)[gpu.CIFAR], "engine=inline"]))
    parameters = experiment.strategy.setup.initial_parameters()
    theirs = build_model("cifar", 3 * 32 * 32)
    assert len(parameters) == sum(p.numel() for p in theirs.parameters())
    assert theirs(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_table_has_a_median_or_what_failed(tmp_path, images, monkeypatch) -> None:
    def rounds(command, *_):
        if "compute=cpu" in command:
            return {"rounds": [1.0, 3.0, 2.0]}
        raise RuntimeError("no CUDA device")

    monkeypatch.setattr(processes, "rounds", rounds)
    monkeypatch.setattr(processes, "run", lambda *_, **__: {"rounds": [9.0, 0.5]})
    rows = {way: said for _, way, said in gpu.measured(options(), tmp_path)}
    assert rows["one core"] == "2.000"
    assert rows["GPU, stacks of 64"] == "no CUDA device"
    assert rows["pfl, cuda"] == "0.500"


def test_only_the_devices_that_are_asked_for_are_measured(tmp_path, images, monkeypatch) -> None:
    monkeypatch.setattr(processes, "rounds", lambda *_: {"rounds": [1.0]})
    rows = list(gpu.measured(options(devices=["cpu"], pfl=None), tmp_path))
    assert [way for _, way, _ in rows] == ["one core"]
