"""A run's ``model/`` is used without the run: by Murmur, as a PyTorch module, by onnxruntime."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import torchvision
import transformers
import yaml
from omegaconf import OmegaConf
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from fl_app import api
from fl_app.cli import main
from fl_app.config import plugins
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.run.model_folder import SavedModel, check
from fl_app.run.population import image_population
from murmur.learning.data.examples import Examples
from murmur.random import experiment_rng

ROWS = 300
SCHEMA = "{a: {range: [0, 1], bins: 4}, b: {list: [u, v]}}"
SMALL = [
    *("engine=inline", "privacy.noise=seeded", "tracking=none", "federation.num_clients=6"),
    *("federation.num_rounds=1", "privacy.epsilon=inf"),
]
KINDS = {
    "pictures": ["dataset=digits", "features=none"],
    "pictures, scattering": [
        *("dataset=digits", "features=scattering", "features.components=20"),
        "federation.public=200",
    ],
    "pictures, pca": [
        *("dataset=digits", "features=pca", "features.components=20", "federation.public=200"),
    ],
    "numbers of a table": [
        *("dataset=table", "dataset.path={table}", "dataset.inputs=[a]", "federation.public=60")
    ],
    "bins of a table": [
        *("dataset=table", "dataset.path={table}", f"dataset.schema={SCHEMA}"),
        *(
            "federation.public=60",
            "features=bins",
            "features.schema=${dataset.schema}",
            "features.crossed=[[a,b]]",
        ),
    ],
    "texts, words": [
        *("dataset=table", "dataset.path={texts}", "dataset.text=said", "dataset.length=8"),
        *("federation.public=60", "features=words", "features.size=64"),
    ],
    "texts, a tokenizer": [
        *("dataset=table", "dataset.path={texts}", "dataset.text=said", "dataset.length=8"),
        *("federation.public=60", "dataset.tokenizer={tokenizer}", "model=text_lstm"),
    ],
    "texts, an encoder": [
        *("dataset=table", "dataset.path={texts}", "dataset.text=said", "dataset.length=8"),
        *("federation.public=60", "dataset.tokenizer={encoder}"),
        *("features=encoder", "features.encoder={encoder}", "features.length=8"),
    ],
    "pictures, a backbone": [
        *("dataset=digits", "federation.public=200", "features=backbone", "features.size=32"),
        *("features.weights={backbone}", "features.components=20"),
    ],
    "texts, a network": [
        *("dataset=table", "dataset.path={texts}", "dataset.text=said", "dataset.length=8"),
        *("federation.public=60", "dataset.vocabulary=50", "model=text_lstm"),
    ],
}
OWN = {
    "kd_dpfl": ["strategy.grouping.top_k=1"],  # for among equal clients nobody is large
    "votes": ["strategy.K=40"],  # no more questions than the tables' public rows
}
NO_NETWORK = ("texts, words", "texts, an encoder")  # cannot be written as a network
DEEP = ("pictures, a backbone",)  # 17 convolutions in float32 are 4e-6 off what float64 finds


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table and texts whose class can be told."""
    folder = tmp_path_factory.mktemp("data")
    rng = experiment_rng(0, "rows")
    labels = rng.integers(0, 2, ROWS)
    values = np.clip(labels * 0.6 + rng.random(ROWS) * 0.4, 0, 1)
    rows = [f"{a:.4f},{'uv'[label]},c{label}" for a, label in zip(values, labels, strict=True)]
    (folder / "table.csv").write_text("a,b,label\n" + "\n".join(rows))
    words = [["good fine day", "bad sad night"][label] for label in labels]
    (folder / "texts.csv").write_text(
        "said,label\n" + "\n".join(f"{w},c{label}" for w, label in zip(words, labels, strict=True))
    )
    found = {"table": folder / "table.csv", "texts": folder / "texts.csv"}
    return found | write_files_of_others(folder)


def write_files_of_others(folder: Path) -> dict[str, Path]:
    """A tokenizer, an encoder and a backbone that nobody has trained."""
    words = {w: n for n, w in enumerate(("[PAD]", "[UNK]", "good", "bad", "fine", "sad"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    places = {name: folder / name for name in ("words.json", "encoder", "backbone.safetensors")}
    tokenizer.save(str(places["words.json"]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        shape = transformers.BertConfig(vocab_size=20, intermediate_size=32, **sizes)
        transformers.BertModel(shape).save_pretrained(places["encoder"])
        resnet = torchvision.models.resnet18()
        digits = torch.from_numpy(load_digits().images[:200, None] / 16).float()
        for _ in range(20):  # so that its normalisation tells pictures apart
            resnet(torch.nn.functional.interpolate(digits.expand(-1, 3, -1, -1), size=32))
    tokenizer.save(str(places["encoder"] / "tokenizer.json"))
    save_file(resnet.state_dict(), places["backbone.safetensors"])
    return dict(zip(("tokenizer", "encoder", "backbone"), places.values(), strict=True))


def filled(kind: str, files: dict[str, Path]) -> list[str]:
    """The settings of a kind, with paths in place of the names of files."""
    words = list(KINDS[kind])
    for name, file in files.items():
        words = [word.replace(f"{{{name}}}", str(file)) for word in words]
    return words


def inputs_of(run: Path) -> np.ndarray:
    return np.array(image_population(OmegaConf.load(run / "config.yaml")).dataset.test.images)


FRESH = """
import sys
from pathlib import Path
import numpy as np, onnxruntime, torch
from fl_app import api
from fl_app.config import plugins
from fl_app.config.errors import ConfigError
from fl_app.run.model_folder import SavedModel
from fl_app.tools.predict import write_onnx

for place in sorted(Path(sys.argv[1]).iterdir()):
    model = SavedModel.load(place / "model", [Path(name) for name in sys.argv[2:]])
    data, known = np.load(place / "inputs.npy"), np.load(place / "known.npy")
    found = [model.predictions(data)]
    if (place / "no-network").exists():
        try:
            write_onnx(model, place / "model.onnx")
        except ConfigError as error:
            assert "cannot be written as a network" in str(error)
        else:
            raise AssertionError(place)
    else:
        with torch.inference_mode():
            logits = api.load_model(place / "model", sys.argv[2:])(torch.from_numpy(data))
        found.append(torch.softmax(logits, dim=1).numpy())
        write_onnx(model, place / "model.onnx")
        session = onnxruntime.InferenceSession(str(place / "model.onnx"))
        found += session.run(["probabilities"], {"input": data})
    close = 1e-4 if (place / "deep").exists() else 1e-5
    for one in found:
        assert np.abs(one - known).max() < close, place
        assert np.array_equal(one.argmax(1), known.argmax(1)), place
"""


def use_elsewhere(runs: dict[str, Path], files: dict[str, Path], tmp_path: Path) -> None:
    """Murmur's own prediction, the module and ONNX, in a fresh process that has model/ alone."""
    for kind, run in runs.items():
        place = tmp_path / "elsewhere" / run.name
        shutil.copytree(run / "model", place / "model")
        data = inputs_of(run)
        np.save(place / "inputs.npy", data)
        np.save(place / "known.npy", SavedModel.load(run).predictions(data))
        if kind in NO_NETWORK:
            (place / "no-network").touch()
        if kind in DEEP:
            (place / "deep").touch()
    copies = [str(files[name]) for name in ("tokenizer", "encoder", "backbone")]
    words = [sys.executable, "-c", FRESH, str(tmp_path / "elsewhere"), *copies]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_ten_pictures_of_digits_are_classified_from_files_in_onnxruntime_alone(tmp_path, capsys):
    run = tmp_path / "run"
    api.run(["experiment=digits_votes", "privacy.noise=seeded", f"run_dir={run}"], progress=False)
    known = load_digits()
    pictures = []
    for number in range(10):
        pictures.append(tmp_path / f"{number}.png")
        pixels = np.round(known.images[number] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(pictures[-1])
    assert main(["predict", str(run), *map(str, pictures), "--json"]) == 0
    own = [row["class"] for row in json.loads(capsys.readouterr().out)]
    assert sum(int(said) == label for said, label in zip(own, range(10), strict=True)) >= 8
    assert main(["onnx", str(run), str(tmp_path / "model.onnx")]) == 0
    program = """
import json, sys
import numpy, onnxruntime
from PIL import Image
session = onnxruntime.InferenceSession(sys.argv[1])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
for name in sys.argv[2:]:
    pixels = numpy.asarray(Image.open(name), numpy.float32)[None, None] / 255
    (chances,) = session.run(["probabilities"], {"input": pixels})
    print(classes[chances[0].argmax()])
assert not any(name.startswith(("murmur", "fl_app", "torch")) for name in sys.modules)
"""
    words = [sys.executable, "-c", program, str(tmp_path / "model.onnx"), *map(str, pictures)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert said.stdout.split() == own


def test_a_table_and_texts_are_predicted_without_their_labels(files, tmp_path, capsys):
    for kind, rows in (
        ("bins of a table", "b,a,more\nv,0.9,1\nu,0.1,2\n"),
        ("texts, words", "good fine day\nbad sad night\n"),
    ):
        run = tmp_path / kind.partition(",")[0]
        words = filled(kind, files)
        more = ["strategy=fedavg", "model=linear", "federation.num_rounds=5"]
        api.run([*SMALL, *words, *more, f"run_dir={run}"], progress=False)
        file = run.with_suffix(".csv")
        file.write_text(rows)
        assert main(["predict", str(run), str(file), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert [row["input"] for row in said] == [f"{file}[0]", f"{file}[1]"]
        assert {row["class"] for row in said} == {"c0", "c1"}


def test_the_card_says_whose_each_fact_is(files, tmp_path):
    run = tmp_path / "run"
    words = filled("numbers of a table", files)
    api.run([*SMALL, *words, "strategy=fedavg", f"run_dir={run}"], progress=False)
    card = (run / "model" / "README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    told = yaml.safe_load(metadata)
    assert told["pipeline_tag"] == "tabular-classification"
    assert told["model-index"][0]["results"][0]["metrics"][0]["type"] == "accuracy"
    assert "| classes | c0, c1 | read from data; no ε covers it |" in text
    assert "**Publication**: no finite ε" in text
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| fact"):
            assert line.endswith(("public |", "no ε covers it |", "the statement below |")), line


def test_an_own_class_is_found_by_what_the_run_recorded_and_by_its_digest(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "own.yaml").write_text(
        "_target_: .nets.small.net\n_partial_: true\n"
    )
    (folder / "nets").mkdir()
    (folder / "nets" / "__init__.py").touch()
    (folder / "nets" / "small.py").write_text("from ..layers import net\n")
    (folder / "layers.py").write_text(
        "from torch import nn\n\n\ndef net(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    run = tmp_path / "run"
    with monkeypatch.context() as own:
        own.setenv(plugins.VARIABLE, str(folder))
        words = [*SMALL, "strategy=fedavg", "dataset=digits", "model=own"]
        api.run([*words, f"run_dir={run}"], progress=False)
    data = inputs_of(run)[:5]
    before = SavedModel.load(run).predictions(data)
    assert plugins.VARIABLE not in os.environ or not os.environ[plugins.VARIABLE]
    network = api.load_model(run)
    after = torch.softmax(network(torch.from_numpy(data)), dim=1).detach().numpy()
    assert np.abs(before - after).max() < 1e-5
    (folder / "layers.py").write_text((folder / "layers.py").read_text() + "# changed\n")
    with pytest.raises(ConfigError, match=r"nets.small.net: is not here as the run used it"):
        SavedModel.load(run)


@pytest.mark.parametrize(
    "kind", ["texts, a tokenizer", "texts, an encoder", "pictures, a backbone"]
)
def test_a_file_of_others_is_known_by_its_digest(files, kind, tmp_path):
    words = filled(kind, files)
    run = tmp_path / "run"
    api.run([*SMALL, *words, "strategy=fedavg", f"run_dir={run}"], progress=False)
    name = {"texts, a tokenizer": "tokenizer", "texts, an encoder": "encoder"}.get(kind, "backbone")
    told = (run / "model" / "model.safetensors").read_bytes()
    assert files[name].name.encode() in told and str(files[name].parent).encode() not in told
    alone = tmp_path / "alone"
    shutil.copytree(run / "model", alone)
    with pytest.raises(ConfigError, match="is not here; name a copy with --file PATH"):
        SavedModel.load(alone)
    SavedModel.load(alone, [files[name]])
    other = tmp_path / files[name].name
    if files[name].is_dir():
        shutil.copytree(files[name], other)
        changed = other / "tokenizer.json"
    else:
        changed = Path(shutil.copy(files[name], other))
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(ConfigError, match="is not here; name a copy with --file PATH"):
        SavedModel.load(alone, [other])


def test_features_of_another_run_are_refused(tmp_path):
    runs = []
    for seed in (1, 2):
        runs.append(tmp_path / str(seed))
        words = [*SMALL, *KINDS["pictures, pca"], "strategy=fedavg", f"seed={seed}"]
        api.run([*words, f"run_dir={runs[-1]}"], progress=False)
    saved = SavedModel.load(runs[1])
    data = inputs_of(runs[1])
    test = Examples(data, np.zeros(len(data), np.int64))
    seen = saved.features.apply(saved.fitted, data)
    check(runs[1], test, seen, saved.trainer)
    with pytest.raises(RuntimeError, match="predicts something else"):
        check(runs[0], test, seen, saved.trainer)
    one, other = (run / "model" / "features.safetensors" for run in runs)
    one.write_bytes(other.read_bytes())
    with pytest.raises(ConfigError, match="not those that the model was trained with"):
        SavedModel.load(runs[0])
    one.unlink()
    with pytest.raises(ConfigError, match=r"give the run's folder, or model/ with all"):
        SavedModel.load(runs[0] / "model" / "model.safetensors")


def test_a_model_that_predicts_something_else_than_its_run_is_an_error(tmp_path):
    run = tmp_path / "run"
    api.run([*SMALL, "strategy=fedavg", "dataset=digits", f"run_dir={run}"], progress=False)
    data = inputs_of(run)
    test = Examples(data, np.zeros(len(data), np.int64))
    trainer = SavedModel.load(run).trainer
    check(run, test, data, trainer)
    trainer.load(trainer.parameters() + np.float32(0.5) * np.arange(trainer.num_parameters))
    with pytest.raises(RuntimeError, match="predicts something else"):
        check(run, test, data, trainer)


def test_the_normalisation_that_stays_with_clients_is_not_in_the_runs_model(tmp_path):
    run = tmp_path / "run"
    small = ["model.channels=[]", "model.hidden=8", "dataset=digits"]
    api.run([*SMALL, "strategy=dpfl_bnn", *small, f"run_dir={run}"], progress=False)
    tensors = load_file(run / "model" / "model.safetensors")
    assert any(name.endswith("running_mean") for name in tensors)
    for name, values in tensors.items():
        if name.endswith(("running_mean", "bias")):
            assert not values.any(), name
        if name.endswith("running_var"):
            assert (values == 1).all(), name


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", groups()["strategy"])
def test_every_model_that_can_be_configured_is_used_without_its_run(files, strategy, tmp_path):
    runs, personal = {}, []
    for number, kind in enumerate(KINDS):
        words = filled(kind, files)
        run = tmp_path / str(number)
        try:
            more = [f"strategy={strategy}", *OWN.get(strategy, []), f"run_dir={run}"]
            api.run([*SMALL, *words, *more], progress=False)
        except ConfigError as error:
            print(f"{strategy}, {kind}: {error}")
            continue
        if SavedModel.load(run).about["personal"]:
            with pytest.raises(ConfigError, match="lacks the layers that each client keeps"):
                api.load_model(run)
            personal.append(kind)
        else:
            runs[kind] = run
    assert runs or personal
    if runs:
        use_elsewhere(runs, files, tmp_path)
