"""Every example of deploy/policies lets devices take part in a run of what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from privacy.policy import Policy
from tests.fl_app.device import test_devices
from tests.fl_app.device.test_devices import run_devices

files = test_devices.files
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "policies"
SIZES = "federation.devices.sizes=[346,346,345]"
DPSGD = ["privacy.sensitivity=dpsgd", "privacy.calibration=proven", SIZES]
SECURE = ["privacy.secure_aggregation=on", "privacy.secure_sum.minimum=1.0"]
BNN = ["strategy=dpfl_bnn", "model.channels=[]", "model.hidden=8", "strategy.local.steps=2"]
KD = ["strategy=kd_dpfl", "strategy.grouping.top_k=1", "strategy.labelling.epochs=1", SIZES]
RUNS = {
    "privatekt": [["strategy=privatekt"]],
    "dpfl_bnn": [BNN],
    "records": [["strategy=nbafl", *DPSGD], ["strategy=dpsgd_fedavg", SIZES], KD],
    "unprotected": [[f"strategy={s}"] for s in ("fedavg", "fedprox", "fedadam", "scaffold")],
    "privatekt-secure-3": [["strategy=privatekt", *SECURE]],
    "dpfl_bnn-secure-3": [[*BNN, *SECURE]],
    "records-secure-3": [["strategy=nbafl", *DPSGD, *SECURE]],
    "unprotected-secure-3": [["strategy=fedavg", *SECURE, SIZES]],
}
CASES = [(name, words) for name, runs in RUNS.items() for words in runs]


@pytest.mark.parametrize(("name", "words"), CASES, ids=lambda value: str(value)[:40])
def test_devices_under_an_example_answer_the_run_that_it_is_for(
    files, tmp_path, monkeypatch, name, words
):
    binary = "strategy=dpfl_bnn" in words  # counts steps, not epochs
    known = [word for word in test_devices.WORDS if not (binary and "epochs" in word)]
    known += [] if binary else ["model=mlp"]
    monkeypatch.setattr(test_devices, "WORDS", [*known, "privacy.noise=os"])
    run = run_devices(files, tmp_path, *words, policy=str(FOLDER / f"{name}.yaml"))
    train = 2 if words == KD else 3  # KD-DPFL's large client labels, and trains no model
    assert [row["answered"] for row in run.rows()][1:] == [train, train], run.rows()[-1]["failed"]


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_examples_are_valid_and_those_for_a_hundred_differ_in_the_least_sum_only(name):
    policy = Policy.load(FOLDER / f"{name}.yaml")
    assert policy.defect is None
    if name.endswith("-100"):
        few = (FOLDER / f"{name.removesuffix('100')}3.yaml").read_text().splitlines()[2:]
        many = (FOLDER / f"{name}.yaml").read_text().splitlines()[2:]
        differ = [a for a, b in zip(many, few, strict=True) if a != b]
        assert len(differ) == 1 and differ[0].startswith("minimum_surviving_clients: 60")
