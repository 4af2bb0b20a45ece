"""An additive model is drawn: a curve a column, a map a pair, the noise as a band."""

from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from safetensors.numpy import save

from fl_app.report.figures import additive_figure
from fl_app.report.page import page
from fl_app.report.reading import Source, read_run
from tests.fl_app.report.folders import write_run

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
    found = read_run(tmp_path)
    return replace(found, metrics={**(found.metrics or {}), "model_noise": 0.05})


def test_every_bin_is_drawn_at_its_log_odds(run):
    figure = additive_figure(0, "flights", run)
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


def test_the_page_shows_it(run):
    text = page(Source("flights", (run,), False), datetime(2026, 1, 1))
    assert "what noise alone" in text
    assert "carrier × hour" in text


def test_a_model_of_more_classes_or_without_bins_is_not_drawn(run):
    assert additive_figure(0, "", replace(run, layer=np.zeros((3, WIDTH), np.float32))) is None
    assert additive_figure(0, "", replace(run, layer=None)) is None
    assert additive_figure(0, "", replace(run, layer=np.zeros((2, 5), np.float32))) is None


def test_a_band_needs_a_known_noise(run):
    figure = additive_figure(0, "", replace(run, metrics={"rounds": 6}))
    assert {record["band"] for record in figure.numbers} == {0}


def test_bins_with_an_order_are_joined_but_for_those_outside_and_words_are_not(run):
    carrier, hour, _ = additive_figure(0, "flights", run).panels
    assert marks(hour) == ["bar", "line", "point"]
    assert marks(carrier) == ["bar", "point"]
    assert "'0 to 12', '12 to 24'" in str(hour.chart)


def marks(panel) -> list[str]:
    return [layer["mark"]["type"] for layer in panel.chart["layer"]]
