"""Runs that start from what is public: an encoder and the classes' names, or a table's schema."""

import json
import shutil

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from murmur.learning.linear_model import Head
from tests.fl_app.running import run_inline

SMALL = [
    "strategy=gradient_rounds",
    "engine=inline",
    "dataset=table",
    "partition=natural",
    "dataset.client=owner",
    "dataset.test_owners=0.25",
    "federation.public=0",
    "federation.num_clients=6",
    "federation.num_rounds=2",
    "privacy.epsilon=inf",
    "privacy.noise=seeded",
    "privacy.secure_aggregation=simulated",
]
WORDS = ["[PAD]", "[UNK]", "chess", "game", "plays", "mail", "server", "sends", "letters"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder of an encoder that nobody has trained, of nine words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    import torch

    folder = tmp_path_factory.mktemp("encoder")
    known = tokenizers.models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(known)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape = transformers.BertConfig(vocab_size=len(WORDS), intermediate_size=8, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(shape).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What is computed once for an encoder stays in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def of_texts(tmp_path, encoder, *more, names="{games: chess game, net: mail sends letters}"):
    """Overrides of a run on texts of eight owners, with the encoder in ``encoder``."""
    lines = ["text,section,owner"]
    for row in range(32):
        if row % 2:
            lines.append(f"chess plays,games,{row % 8}")
        else:
            lines.append(f"mail server,net,{row % 8}")
    file = tmp_path / "texts.csv"
    file.write_text("\n".join(lines) + "\n")
    return [
        f"dataset.path={file}",
        "dataset.label=section",
        "dataset.inputs=[text]",
        "dataset.length=4",
        f"dataset.tokenizer={encoder}",
        "features=encoder",
        "features.length=4",
        f"features.encoder={encoder}",
        f"features.names={names}",
        "model.start=names",
        *more,
    ]


def test_a_run_begins_at_the_names_and_notes_the_licence(tmp_path, encoder):
    words = of_texts(tmp_path, encoder, "model.start_length=3")
    experiment = ValidatedRun(compose([*SMALL, *words]))
    assert "its licence is mit" in experiment.population.dataset.notes[-1]
    head = Head(experiment.trainer, "test")
    weights = head.weights(experiment.start)
    np.testing.assert_allclose(np.linalg.norm(weights, axis=0), 3, rtol=1e-4)
    assert not head.biases(experiment.start).any()
    folder = run_inline(tmp_path, *words, small=SMALL)
    scores = json.loads((folder.path / "metrics.json").read_text())
    assert scores["accuracy"] == 1


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_an_encoder_without_a_file_is_refused_before_anybody_is_asked(tmp_path, encoder, missing):
    folder = tmp_path / "copy"
    shutil.copytree(encoder, folder)
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=f"its folder lacks {missing}"):
        ValidatedRun(compose([*SMALL, *of_texts(tmp_path, folder)]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("{games: chess game}", "has no line for the class 'net'"),
        ("{games: chess, net: chess}", "have the same features"),
        ("[chess, mail]", "features.names"),
    ],
)
def test_classes_that_names_do_not_tell_apart_are_refused(tmp_path, encoder, names, message):
    words = of_texts(tmp_path, encoder, names=names)
    with pytest.raises(ConfigError, match=message):
        ValidatedRun(compose([*SMALL, *words]))


def test_names_need_features_that_read_texts():
    words = ["dataset=digits", "partition=iid", "model.start=names"]
    kept = [word for word in SMALL if not word.startswith(("dataset", "partition"))]
    with pytest.raises(ConfigError, match="set features=encoder"):
        ValidatedRun(compose([*kept, *words]))


def of_flights(tmp_path, *more, hour="{range: [0, 24], bins: 4}"):
    """Overrides of a run on flights of eight aircraft, which are late from hour 12 on."""
    lines = ["hour,carrier,late,owner"]
    for row in range(64):
        lines.append(f"{row % 24},{'AU'[row % 2]},{int(row % 24 >= 12)},{row % 8}")
    file = tmp_path / "flights.csv"
    file.write_text("\n".join(lines) + "\n")
    return [
        f"dataset.path={file}",
        "dataset.label=late",
        f"dataset.schema={{hour: {hour}, carrier: {{list: [A, U]}}}}",
        "features=bins",
        "features.schema=${dataset.schema}",
        "model.start=rates",
        "model.start_rates=[0.75, 0.25]",
        *more,
    ]


def test_an_additive_model_starts_at_public_rates_and_learns_its_curve(tmp_path):
    words = of_flights(tmp_path, "strategy.length=100")
    experiment = ValidatedRun(compose([*SMALL, *words]))
    head = Head(experiment.trainer, "test")
    biases = head.biases(experiment.start)
    assert np.exp(biases[1] - biases[0]) == pytest.approx(1 / 3, rel=1e-5)
    folder = run_inline(tmp_path, *words, small=SMALL)
    slopes = np.diff(head.weights(folder.load_checkpoint().run.model), axis=1)[:4, 0]
    assert slopes[:2].max() < 0 < slopes[2:].min()
    assert json.loads((folder.path / "metrics.json").read_text())["accuracy"] > 0.9


def test_a_table_that_breaks_the_schema_is_refused_before_anybody_is_asked(tmp_path):
    words = of_flights(tmp_path, hour="{list: [noon]}")
    with pytest.raises(ConfigError, match="column 'hour': the schema"):
        ValidatedRun(compose([*SMALL, *words]))


@pytest.mark.parametrize("rates", ["[0.5, 0.6]", "[1.0]", "[1.0, 0.0]"])
def test_rates_that_are_no_shares_are_refused(tmp_path, rates):
    with pytest.raises(ConfigError, match="a share above 0 for each of 2 classes"):
        ValidatedRun(compose([*SMALL, *of_flights(tmp_path, f"model.start_rates={rates}")]))
