"""What a run leaves: a model that says what it is, predicts, exports, and a run that repeats."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fl_app import api
from fl_app.cli import main
from fl_app.run.model_folder import KEY, SavedModel
from fl_app.run.provenance import read_provenance


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "run"
    words = ["strategy=fedavg", "federation.num_clients=2", "federation.num_rounds=2"]
    return api.run([*words, f"run_dir={folder}"], progress=False).folder


def about(run):
    with safe_open(str(run / "model/model.safetensors"), "np") as file:
        return json.loads(file.metadata()[KEY])


def test_the_file_says_what_the_model_is_and_what_protects_it(run):
    said = about(run)
    assert (said["input_shape"], said["num_classes"]) == ([1, 8, 8], 10)
    assert said["model"]["_target_"] == "murmur.learning.models.mlp"
    assert "NOT PRIVATE" in said["privacy_text"]
    assert said["input"] == {"kind": "pictures", "shape": [1, 8, 8], "range": [0.0, 1.0]}


def test_versions_and_dates_are_kept(run):
    known = read_provenance(run)
    assert known["versions"]["torch"] and known["started"] <= known["finished"]
    assert known["commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", known["commit"])


def test_predictions_are_those_of_the_model(run, tmp_path, capsys):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(tmp_path / "a.png")
    np.savez(tmp_path / "b.npz", images=rng.random((3, 8, 8)).astype(np.float32))
    assert main(["predict", str(run), str(tmp_path / "a.png"), str(tmp_path / "b.npz")]) == 0
    head, *lines = csv.reader(capsys.readouterr().out.splitlines())
    assert head == ["input", "class", *map(str, range(10))]
    assert [line[0].rpartition("/")[2] for line in lines] == [
        "a.png",
        "b.npz[0]",
        "b.npz[1]",
        "b.npz[2]",
    ]
    picture = np.asarray(Image.open(tmp_path / "a.png"), np.float32)[None, None] / 255
    logits = SavedModel.load(run).trainer.logits(picture)
    assert int(lines[0][1]) == logits.argmax()
    chances = np.array(lines[0][2:], float)
    assert abs(chances.sum() - 1) < 1e-5 and chances.argmax() == logits.argmax()


def test_onnx_gives_the_same_probabilities(run, tmp_path):
    import onnxruntime

    out = tmp_path / "model.onnx"
    assert main(["onnx", str(run / "model/model.safetensors"), str(out)]) == 0
    images = np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32)
    session = onnxruntime.InferenceSession(str(out))
    (found,) = session.run(["probabilities"], {"input": images})
    assert np.allclose(found, SavedModel.load(run).predictions(images), atol=1e-5)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == list(map(str, range(10)))
    assert len(told["statement_sha256"]) == 64 and json.loads(told["epsilon"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"_target_": "os.system"}}, "classes are chosen through the groups"),
        ({"num_classes": 3}, "not those of the model"),
        (None, "does not say what model it is"),
    ],
)
def test_a_file_that_is_no_model_of_ours_is_refused(run, tmp_path, capsys, change, words):
    file = tmp_path / "x.safetensors"
    metadata = None if change is None else {KEY: json.dumps({**about(run), **change})}
    save_file(load_file(run / "model/model.safetensors"), file, metadata)
    assert main(["predict", str(file), "x.png"]) == 2
    assert words in capsys.readouterr().err


def test_a_run_is_done_again_with_the_same_bits(run, tmp_path, capsys):
    assert main(["rerun", str(run), "--out", str(tmp_path / "again")]) == 0
    assert "the same bits" in capsys.readouterr().out
    config = tmp_path / "again" / "config.yaml"
    config.write_text(config.read_text().replace("batch_size: 32", "batch_size: 31"))
    assert main(["rerun", str(tmp_path / "again"), "--out", str(tmp_path / "third")]) == 2
    assert "strategy.local.batch_size=31: is 32 in this version" in capsys.readouterr().err


def test_other_bits_are_told_together_with_the_versions_that_differ(run, tmp_path, capsys):
    old = shutil.copytree(run, tmp_path / "old")
    saved = old / "model/model.safetensors"
    weights = {name: values + 1 for name, values in load_file(saved).items()}
    with safe_open(saved, "np") as file:
        save_file(weights, saved, file.metadata())
    known = read_provenance(old)
    known["versions"]["murmur-kernels"] = "0.0.1"
    (old / "provenance.json").write_text(json.dumps(known))
    assert main(["rerun", str(old), "--out", str(tmp_path / "new")]) == 1
    said = capsys.readouterr().err
    assert "another model" in said
    assert "murmur-kernels was 0.0.1, is " in said
