"""An additive model is drawn: a curve a column, a map a pair, the noise as a band."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from fl_app.run.load import load_run
from research.owners.additive import additive_figure, linear_layer, main
from tests.run_folders import write_run

FEATURES = {
    "_target_": "murmur.learning.features.maps.bins",
    "schema": {"carrier": {"list": ["A", "U"]}, "hour": {"range": [0, 24], "bins": 2}},
    "crossed": [["carrier", "hour"]],
}
WIDTH = 3 + 4 + 12


@pytest.fixture
def run(tmp_path):
    """A finished run whose model knows that the hours from 12 on, bin 1, are late."""
    folder = write_run(tmp_path, extra={"features": FEATURES})
    layer = np.zeros((2, WIDTH), np.float32)
    layer[1, 3 + 1] = 3.0
    layer[0, 3 + 4 + 2] = 0.1
    (folder.path / "model").mkdir()
    (folder.path / "model/model.safetensors").write_bytes(save({"w": layer, "b": np.zeros(2)}))
    found = load_run(tmp_path)
    return replace(found, metrics={**(found.metrics or {}), "model_noise": 0.05})


@pytest.fixture
def figure(run, tmp_path):
    return additive_figure(run, linear_layer(tmp_path))


def test_every_bin_is_drawn_at_its_log_odds(figure):
    assert [panel.title for panel in figure.panels] == ["carrier", "hour", "carrier × hour"]
    assert len(figure.numbers) == WIDTH
    found = {(r["panel"], r["bin"], r.get("other")): r for r in figure.numbers}
    late = found["hour", "12 to 24", None]
    assert late["move"] == pytest.approx(3 / np.sqrt(3), rel=1e-3)
    assert found["carrier × hour", "A", "below 0, or missing"]["move"] == pytest.approx(
        -0.1 / np.sqrt(3), rel=1e-3
    )
    assert late["band"] == pytest.approx(2 * np.sqrt(2) * 0.05 / np.sqrt(3), rel=1e-3)
    assert figure.finding.startswith("1 of 19 bins")


def test_the_command_writes_pictures(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["additive", str(tmp_path), str(tmp_path / "out")])
    main()
    assert "carrier × hour" in (tmp_path / "out" / "additive.svg").read_text(encoding="utf-8")


def test_a_model_of_more_classes_or_without_bins_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="not \(2, 19\)"):
        additive_figure(run, np.zeros((3, WIDTH), np.float32))
    with pytest.raises(ValueError, match="no bins"):
        additive_figure(replace(run, config={}), linear_layer(tmp_path))
    layers = {"a": np.zeros((2, 5), np.float32), "b": np.zeros((2, 5), np.float32)}
    (tmp_path / "model/model.safetensors").write_bytes(save(layers))
    with pytest.raises(ValueError, match="has 2 matrices"):
        linear_layer(tmp_path)


def test_a_band_needs_a_known_noise(run, tmp_path):
    figure = additive_figure(replace(run, metrics={"rounds": 6}), linear_layer(tmp_path))
    assert {record["band"] for record in figure.numbers} == {0}


def test_bins_with_an_order_are_joined_but_for_those_outside_and_words_are_not(figure):
    carrier, hour, _ = figure.panels
    assert marks(hour) == ["bar", "line", "point"]
    assert marks(carrier) == ["bar", "point"]
    assert "'0 to 12', '12 to 24'" in str(hour.chart)


def marks(panel) -> list[str]:
    return [layer["mark"]["type"] for layer in panel.chart["layer"]]
