"""Runs on data as people have them: a table by its owners, texts with an LSTM and a transformer."""

import json

import numpy as np
import pandas
import pytest

from fl_app.cli import main
from fl_app.config.compose import ENCODER, compose, decided
from fl_app.config.errors import ConfigError
from fl_app.run.prepare import prepare
from tests.fl_app.running import run_inline

FILLING = ["a", "the", "day", "it", "was"]
FEDAVG = ("strategy=fedavg", "federation.public=0", "strategy.local.epochs=8")


def test_a_table_by_its_owners(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3))
    frame = pandas.DataFrame(rows, columns=list("abc"))
    frame["label"], frame["user"] = (rows @ [1, -1, 2] > 0).astype(int), rng.integers(0, 5, 300)
    frame.to_csv(tmp_path / "x.csv", index=False)
    words = (*FEDAVG, "dataset=table", f"dataset.path={tmp_path / 'x.csv'}", "partition=natural")
    run = run_inline(tmp_path / "run", *words, "dataset.client=user", "federation.num_clients=4")
    assert run.rows()[-1]["accuracy"] > 0.9
    assert json.loads((run.path / "privacy.json").read_text())["split"] == ""
    with pytest.raises(ConfigError, match=r"dataset\.client"):
        run_inline(tmp_path / "other", *words, "dataset.inputs=[a,b,c]")


def test_classes_owners_and_what_is_left_out_are_printed(tmp_path, capsys):
    rows = "".join(f"{i},{i % 7},p{i % 9},{'no' if i % 2 else 'yes'}\n" for i in range(90))
    (tmp_path / "x.csv").write_text(",a,user,label\n" + rows)
    words = [*FEDAVG, "engine=inline", "federation.num_rounds=1", "federation.num_clients=4"]
    words += ["dataset=table", f"dataset.path={tmp_path / 'x.csv'}", "dataset.client=user"]
    assert main([*words, "partition=natural", f"results_dir={tmp_path}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "classes 2, as training/test: no: " in said and ", yes: " in said
    assert "owners 7, 10 rows each" in said
    assert "left out column '', an index" in said
    assert "note: column" not in said


def test_a_statement_says_that_rows_of_protected_owners_are_public(tmp_path, capsys):
    rows = "".join(f"{i},p{i % 9},{i % 2}\n" for i in range(90))
    (tmp_path / "x.csv").write_text("a,user,label\n" + rows)
    words = ("strategy=fedavg", "dataset=table", f"dataset.path={tmp_path / 'x.csv'}")
    words = (*words, "dataset.client=user", "partition=natural", "federation.public=20")
    said = {}
    for split, clients in (("owners", 4), ("rows", 9)):
        more = (f"dataset.split={split}", f"federation.num_clients={clients}")
        path = run_inline(tmp_path / split, *words, *more).path
        said[split] = (path / "privacy.txt").read_text()
        for form in ("opendp", "markdown"):
            curator = ["--curator", "A Hospital", "--curator-type", "Nonprofit"]
            main(["statement", str(path), "--format", form, *curator])
            said[split] += capsys.readouterr().out
    assert "dataset.split" not in said["owners"]
    assert said["rows"].count("dataset.split=rows has put into the") == 3  # twice in Markdown


@pytest.mark.parametrize("model", ["mlp", "linear", "cnn_small"])
def test_a_model_that_reads_words_as_magnitudes_is_refused(tmp_path, model):
    frame = pandas.DataFrame({"text": [f"word {n} here" for n in range(60)], "label": [0, 1] * 30})
    frame.to_parquet(tmp_path / "x.parquet")
    words = ["dataset=table", f"dataset.path={tmp_path / 'x.parquet'}", "federation.num_clients=2"]
    with pytest.raises(ConfigError, match=r"as magnitudes.*model=text_lstm"):
        run_inline(tmp_path / "run", *FEDAVG, *words, f"model={model}")


def test_a_model_of_texts_knows_all_words_of_the_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    known = tokenizers.models.WordLevel({"[UNK]": 0, "good": 7, "bad": 5000}, unk_token="[UNK]")
    tokenizers.Tokenizer(known).save(str(tmp_path / "words.json"))
    words = ["dataset=table", "dataset.path=x.csv", "model=text_lstm"]
    config = compose([*words, f"dataset.tokenizer={tmp_path / 'words.json'}"])
    assert config.model.vocabulary == 5001 and "model.vocabulary=5001" in decided(config)
    assert compose(words).model.vocabulary == 4096
    assert compose([*words, "dataset.vocabulary=64"]).model.vocabulary == 64
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        compose([*words, f"dataset.tokenizer={tmp_path / 'nowhere.json'}"])


@pytest.mark.parametrize("model", ["text_lstm", "text_transformer"])
def test_texts_are_learnt_from(tmp_path, model):
    rng = np.random.default_rng(0)
    words = (["good", "fine", "great"], ["bad", "poor", "awful"])
    labels = rng.integers(0, 2, 240)
    texts = [" ".join(["it", "was", str(rng.choice(words[label]))]) for label in labels]
    pandas.DataFrame({"text": texts, "label": labels}).to_parquet(tmp_path / "x.parquet")
    run = run_inline(
        tmp_path / "run",
        *FEDAVG,
        "dataset=table",
        f"dataset.path={tmp_path / 'x.parquet'}",
        "dataset.length=5",
        "dataset.vocabulary=64",
        f"model={model}",
        "model.width=16",
        "federation.num_clients=3",
        "strategy.local.learning_rate=0.5",
    )
    assert run.rows()[-1]["accuracy"] > 0.8


def _weather(path):
    """1,500 short texts on rain or on sun, whose words overlap; the path of their table."""
    rng = np.random.default_rng(3)
    about = {"rain": "cloud wet drop storm umbrella grey", "sun": "warm bright ray beach heat sky"}
    rows = []
    for _ in range(1500):
        kind = str(rng.choice(list(about)))
        words = [*rng.choice(about[kind].split(), 5), *rng.choice(FILLING, 5)]
        rows.append({"said": " ".join(rng.permutation(words)), "kind": kind})
    pandas.DataFrame(rows).to_csv(path, index=False)
    return [f"dataset.path={path}", "dataset=table", "dataset.text=said", "dataset.label=kind"]


def test_texts_are_learnt_with_nothing_else_set_and_without_an_encoder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("fl_app.config.compose.has_encoder", lambda package: False)
    monkeypatch.chdir(tmp_path)
    words = [*_weather(tmp_path / "x.csv"), "engine=inline", "run_dir=run"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "note: texts are 1024 hashed words and pairs of words (features=words)" in said
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.8


def test_an_encoder_that_is_installed_goes_before(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_app.config.compose.has_encoder", lambda package: True)
    words = _weather(tmp_path / "x.csv")
    found = compose([*words, "seed=2"])
    assert found.strategy.name == "class_statistics"
    assert found.features.encoder == found.dataset.tokenizer == ENCODER
    averaged = compose([*words, "strategy=fedavg", "seed=2"])
    assert averaged.model.hidden == [] and averaged.features.encoder == ENCODER
    own = compose([*words, "strategy=fedavg", "model=text_lstm", "seed=2"])
    assert own.features._target_.endswith(".none") and own.dataset.tokenizer is None
    chosen = compose([*words, "features=words", "features.size=64", "seed=2"])
    assert chosen.features.size == 64 and chosen.strategy.name != "class_statistics"


def test_a_run_hands_on_which_features_it_has(tmp_path, monkeypatch):
    words = ["engine=inline", *_weather(tmp_path / "x.csv"), f"run_dir={tmp_path / 'run'}"]
    monkeypatch.setattr("fl_app.config.compose.has_encoder", lambda package: False)
    handed_on = prepare(words).overrides
    monkeypatch.setattr("fl_app.config.compose.has_encoder", lambda package: True)
    found = compose([*handed_on, "seed=3"])
    assert found.features == compose(["features=words"]).features
    assert found.strategy.name == "class_statistics"


def test_columns_have_features_of_their_own_where_a_strategy_would_take_those_of_images():
    for words, expected in (
        (["dataset=table", "strategy=votes"], "pca"),
        (["dataset=table", "strategy=votes", "features=none"], "none"),
        (["dataset=table", "strategy=fedavg"], "none"),
        (["dataset=digits", "strategy=votes"], "scattering"),
    ):
        found = compose(words)
        assert found.features._target_.endswith(f".{expected}")
        assert "own_features" not in found.dataset


def test_text_and_inputs_are_not_both_said(tmp_path):
    words = [*_weather(tmp_path / "x.csv"), "dataset.inputs=[said]", "strategy=fedavg"]
    with pytest.raises(ConfigError, match="text=said: is the only input"):
        run_inline(tmp_path / "run", *words)
