"""A researcher's own folder of classes: every engine takes it, a device does not."""

import os
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fl_app.cli import main
from fl_app.config import plugins
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.config.overrides import to_run_config
from fl_app.device.agreement import device_config
from fl_app.device.node_settings import OwnerSettings
from fl_app.run.prepare import validated
from fl_app.run.results import RunFolder
from fl_app.run.server import metrics_of
from murmur.learning.data.datasets import digits
from tests.fl_app.running import run_inline

FOLDER = Path(__file__).parents[3] / "examples" / "own_classes"
WORDS = ["model=hernet", "dataset=stripes", "partition=blocks", "strategy=damped"]
SIZES = ["federation.num_clients=4", "federation.num_rounds=2", "federation.public=0"]


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    assert not {str(FOLDER), str(tmp_path), str(tmp_path / "my app")} & set(sys.path)


SETTLED = """
from torch import nn


def net(input_shape, num_classes):
    settled = nn.BatchNorm1d(64).eval()
    return nn.Sequential(nn.Flatten(), settled, nn.Dropout(0.3), nn.Linear(64, num_classes))
"""
ENGINES = {
    "inline": ["engine=inline"],
    "again": ["engine=inline"],
    "stack": ["engine=inline", "compute.stack=4"],
    "ray": ["engine=ray", "engine.workers=2"],
}


def test_layers_that_draw_or_keep_statistics_give_the_same_bits_on_every_engine(tmp_path, capsys):
    """An LSTM with dropout, and batch normalisation that keeps its statistics with dropout."""
    settled = own_model(tmp_path / "settled", SETTLED)
    words = [*WORDS, *SIZES, "strategy.local.epochs=2"]
    words.append("evaluation.metrics=[{hernet.worst_class: {least: 2}}]")
    folders = ["--config-dir", str(FOLDER), "--config-dir", str(settled)]
    for model, layer in (("hernet", "rows.weight_ih_l0"), ("settled", "3.weight")):
        found = {}
        for name, engine in ENGINES.items():
            run = tmp_path / model / name
            assert main([*folders, *words, f"model={model}", *engine, f"run_dir={run}"]) == 0, (
                capsys.readouterr()
            )
            os.environ[plugins.VARIABLE] = ""
            found[name] = load_file(run / "model/model.safetensors")
            rows = RunFolder(run).rows()
            assert all(0 <= row["worst_class"] <= row["accuracy"] for row in rows)
        assert layer in found["inline"]
        for name, other in found.items():
            assert all((found["inline"][key] == other[key]).all() for key in other), (model, name)


def own_model(folder, text):
    """A folder whose one model, named as the folder is, is ``net`` of this Python file."""
    name = folder.name
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / f"{name}.py").write_text(text)
    target = f"# A model.\n_target_: .{name}.net\n_partial_: true\n"
    (folder / "conf" / "model" / f"{name}.yaml").write_text(target)
    return folder


def test_workers_of_a_run_before_do_not_answer_without_the_folder(tmp_path, capsys):
    ray = ["engine=ray", "engine.workers=1", "federation.num_rounds=1"]
    plain = ["strategy=local_only", "federation.num_clients=4", "federation.public=0"]
    assert main([*plain, *ray, f"run_dir={tmp_path / 'plain'}"]) == 0, capsys.readouterr()
    words = [*WORDS, *SIZES, *ray, f"run_dir={tmp_path / 'own'}"]
    assert main(["--config-dir", str(FOLDER), *words]) == 0, capsys.readouterr()


def test_choices_are_listed_beside_ours_and_gone_with_the_folder(monkeypatch):
    assert "hernet" not in groups()["model"]
    monkeypatch.setenv(plugins.VARIABLE, str(FOLDER))
    assert {"hernet", "mlp"} <= set(groups()["model"])
    assert compose(WORDS).model.width == 24
    with pytest.raises(ConfigError, match=r"^model\.widht=3.*model\.width"):
        compose([*WORDS, "model.widht=3"])
    with pytest.raises(ConfigError, match="not named"):
        compose([*WORDS, "model._target_=hernet.stripes"])


def test_a_device_does_not_know_the_folder(monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, str(FOLDER))
    owner = OwnerSettings(clients=(), data=None, public=None)
    with pytest.raises(ConfigError, match="for simulations only"):
        device_config(to_run_config(WORDS), owner)
    plugins.forget()
    with pytest.raises(ConfigError, match=r"(strategy|model)=\w+: unknown here"):
        device_config(to_run_config(WORDS), owner)


@pytest.mark.parametrize(
    ("file", "words"),
    [("conf/model/mlp.yaml", "rename it"), ("x.py", "holds conf/")],
)
def test_a_folder_that_would_hide_ours_is_refused(tmp_path, monkeypatch, file, words):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        groups()


APP = {
    "strategies/__init__.py": "",
    "strategies/base.py": "DAMPING = 0.5\n",
    "strategies/hers.py": """
from strategies.fedavg import FedAvg

from .base import DAMPING


class Hers(FedAvg):
    def update(self, number, model, total, weight):
        step = super().update(number, model, total, weight) - model
        return model + DAMPING * step
""",
    "clients/hers.py": "from clients.fedavg import FedAvgClient as HersClient\n",
    "client_app.py": "raise RuntimeError('her own app, which Murmur does not import')\n",
    "conf/strategy/hers.yaml": """# @package _global_
# Hers.
defaults:
  - fedavg
  - _self_

strategy:
  name: hers
  server: {_target_: .strategies.hers.Hers}
  client: {_target_: .clients.hers.HersClient}
""",
}


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_folder_that_is_a_flower_app_with_packages_named_as_ours(tmp_path, capsys, engine):
    """``strategies/`` and ``clients/`` of her own: each file gets its own neighbours."""
    write_files(tmp_path / "my app", APP)
    run = tmp_path / "run"
    words = [*SIZES, "strategy=hers", f"engine={engine}", "strategy.local.epochs=1"]
    status = main(["--config-dir", str(tmp_path / "my app"), *words, f"run_dir={run}"])
    assert status == 0, capsys.readouterr()
    assert len(RunFolder(run).rows()) == 3


NULLED = {
    "nulled.py": """
from clients.base import Client
from murmur.learning.codec import GridCodec
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.events import Adjacency, GaussianEvent, Release, Unit
from strategies.base import CohortStrategy


def release(setup):
    budget = setup.budget
    noise = discrete_noise_multiplier(budget.epsilon, budget.delta, budget.releases)
    return Release(GaussianEvent(noise), Unit.UNIT, Adjacency.REPLACE_SPECIAL)


class Nulled(CohortStrategy):
    algorithm = "nulled"
    adjacency = Adjacency.STATED
    units = ("client", "record")

    def codec(self):
        return GridCodec(2)

    def update(self, number, model, total, weight):
        return model

    def release_event(self):
        return release(self.setup)


class NulledClient(Client):
    units = ("client", "record")

    def codec(self, task):
        return GridCodec(2)

    def event(self, task):
        return release(self.setup)

    def train(self, task, data):
        raise NotImplementedError

    privatize = train
""",
    "conf/strategy/nulled.yaml": """# Nulled.
name: nulled
server: {_target_: .nulled.Nulled}
client: {_target_: .nulled.NulledClient}
""",
}
REFUSED = (
    r"^privacy\.epsilon=2: nulled would spend {} of a client by the end, since what is released "
    r"with unit={}, adjacency=replace_special {} with unit=client, adjacency=replace_one;"
)


@pytest.mark.parametrize(
    ("stated", "unit", "said"),
    [
        ("REPLACE_SPECIAL", "CLIENT", None),
        ("REPLACE_ONE", "CLIENT", (r"4\.\d+", "client", "counts twice")),
        ("REPLACE_ONE", "RECORD", ("inf.*", "record", "protects nothing")),
    ],
)
def test_own_class_whose_neighbours_are_not_its_statements(
    tmp_path, monkeypatch, stated, unit, said
):
    """It was charged 2 between a client and none, and said so of any two clients."""
    code = NULLED["nulled.py"].replace("STATED", stated).replace("UNIT", unit)
    write_files(tmp_path, {**NULLED, "nulled.py": code})
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    words = [*SIZES, "strategy=nulled", "privacy.epsilon=2"]
    if said is None:
        assert validated(words).strategy.adjacency == "replace_special"
        return
    with pytest.raises(ConfigError, match=REFUSED.format(*said)):
        validated(words)


def write_files(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("target", "code", "reason"),
    [
        (".mine.Net", "import layers", "import one another relatively"),
        (".mine.Net", "import no_such", r"cannot be imported \(No module"),
        (".mine.Nte", "class Net: ...", "did you mean Net"),
        ("mine.Net", "class Net: ...", r"begins with a dot: \.mine\.Net"),
        (".other.Net", "", "is in no folder"),
        ("..mine.Net", "", "is in no folder"),
    ],
)
def test_a_class_that_cannot_be_had_is_said_to_be_so(tmp_path, monkeypatch, target, code, reason):
    yaml = f"# Mine.\n_target_: {target}\n_partial_: true\n"
    write_files(tmp_path, {"mine.py": code, "layers.py": "", "conf/model/mine.yaml": yaml})
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=rf"(?s)^model\._target_={target}: .*{reason}"):
        validated(["model=mine"])


def test_a_file_that_two_folders_have_is_not_guessed(tmp_path, monkeypatch):
    yaml = "# A net.\n_target_: .net.Net\n"
    write_files(tmp_path / "a", {"net.py": "class Net: ...", "conf/model/a.yaml": yaml})
    write_files(tmp_path / "b", {"net.py": "class Net: ...", "conf/model/b.yaml": yaml})
    monkeypatch.setenv(plugins.VARIABLE, os.pathsep.join(map(str, tmp_path.iterdir())))
    with pytest.raises(ConfigError, match="rename one of these files"):
        plugins.own_part(".net.Net")


def test_the_option_wants_a_folder(capsys):
    assert main(["--config-dir"]) == 2
    assert "must be followed by a folder" in capsys.readouterr().err


@pytest.mark.parametrize("engine", [words for name, words in ENGINES.items() if name != "again"])
def test_a_model_whose_statistics_nobody_protects_is_refused_before_the_run(
    tmp_path, monkeypatch, engine
):
    text = SETTLED.replace(".eval()", "").replace("settled", "learning_statistics")
    folder = own_model(tmp_path / "batch_normed", text)
    monkeypatch.setenv(plugins.VARIABLE, str(folder))
    with pytest.raises(ConfigError, match=r"^model=Sequential: keeps statistics over batches"):
        validated(["model=batch_normed", "strategy=fedavg", *engine])


@pytest.mark.parametrize(
    ("file", "name", "said"),
    [
        ("", "os.system", "is in no folder"),
        ("", "mine.f", "is in no folder"),
        ("import no_such_module", "mine.f", "cannot be imported"),
        ("def worst(logits, labels): return 1.0", "mine.wrst", "did you mean worst"),
        ("def f(logits, labels): return float('nan')", "mine.f", "gives nan"),
        ("def f(logits, labels): return 'much'", "mine.f", "cannot be used here"),
        ("class f:\n  def __init__(self, beta): ...", "mine.f", "cannot be used here"),
        ("n = 0\ndef f(*given):\n  global n; n += 1\n  return n", "mine.f", "gives 1.0, and 2.0"),
    ],
)
def test_a_score_of_ones_own_that_cannot_be_used(tmp_path, monkeypatch, file, name, said):
    (tmp_path / "conf").mkdir()
    if file:
        (tmp_path / "mine.py").write_text(file)
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=rf"^evaluation\.metrics={name}.*{said}"):
        run_inline(tmp_path / "run", f"evaluation.metrics=[{name}]")


def test_scores_of_ones_own_are_not_for_runs_on_devices(monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, str(FOLDER))
    config = compose(["evaluation.metrics=[hernet.worst_class]", "engine=deploy"])
    with pytest.raises(ConfigError, match="for simulations"):
        metrics_of(config, digits())


@pytest.mark.parametrize("base", ["fedavg", "/strategy/fedavg", "fedprox"])
def test_own_strategy_builds_on_one_of_ours_however_it_names_it(tmp_path, monkeypatch, base):
    place = tmp_path / "conf" / "strategy"
    place.mkdir(parents=True)
    text = f"# @package _global_\n# Hers.\ndefaults:\n  - {base}\n  - _self_\n"
    (place / "hers.yaml").write_text(f"{text}\nstrategy: {{name: hers}}\n")
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    strategy = compose(["strategy=hers"]).strategy
    assert strategy.name == "hers"
    assert strategy.server._target_ == compose(["strategy=fedprox"]).strategy.server._target_
