"""What is drawn is what the rows say: means, ranges, the place for ∞, no more points than fit."""

import math

import pytest

from fl_app.report import series
from fl_app.report.charts import Chart, Line, Look, Point, spread_out
from fl_app.report.privacy_figures import epsilon_figure, spend_figure
from fl_app.report.published import comparisons
from fl_app.report.reading import Run, read
from fl_app.report.scales import Linear, Log, byte_count, log_number
from fl_app.report.score_figures import bytes_figure, rounds_figure
from fl_app.report.settings import group
from tests.fl_app.report.folders import write_run


@pytest.fixture
def sweep(sweep_folder):
    return group(read(sweep_folder).runs)


def test_mean_least_and_most_are_over_seeds(sweep):
    curve = series.over_rounds(sweep.settings[0], "accuracy")
    assert curve[6].mean == pytest.approx(0.715)
    assert (curve[6].low, curve[6].high, curve[6].count) == pytest.approx((0.71, 0.72, 2))


def test_rounds_have_a_panel_for_each_algorithm_on_the_same_axes(sweep):
    figure = rounds_figure(sweep, "accuracy")
    assert [len(p.legend) for p in figure.panels] == [3, 2]  # NbAFL at ∞ has no row
    first, second = (panel.chart for panel in figure.panels)
    assert (first.x, first.y) == (second.x, second.y)
    assert "PrivateKT" in figure.finding


def test_claimed_and_proven_share_an_axis_that_has_a_place_for_infinity(sweep):
    (panel,) = epsilon_figure(sweep, "accuracy").panels
    axis = panel.chart.x
    assert axis.place(5) < axis.place(30) < axis.gap < axis.place(math.inf) < 1
    dots = {p.kind: p.x for line in panel.chart.lines[-4:-3] for p in line.points if p.says}
    assert dots["dot"] > dots["ring"]  # six rounds cost more than is claimed for the run


def test_an_unfinished_setting_says_that_its_spend_is_so_far(tmp_path):
    write_run(tmp_path / "run", "privacy.epsilon=2", done=3)
    (panel,) = epsilon_figure(group(read(tmp_path / "run").runs), "accuracy").panels
    assert panel.table.rows[0][2:4] == ["none", "6 so far"]


def test_bytes_add_up_over_rounds(sweep):
    figure = bytes_figure(sweep, "accuracy")
    assert figure.panels[0].table.rows[0][1:3] == ["6 kB", "1 kB"]


def test_spends_count_every_client_of_every_seed(sweep):
    assert sum(series.spends(sweep.settings[0]).values()) == 8
    table = spend_figure(sweep).panels[0].table
    least, median, most = table.rows[0][2:]
    assert float(least) < float(most) and median in (least, most)


def test_more_spends_than_fit_are_counted_together():
    from fl_app.report.privacy_figures import _merged

    merged = _merged({1 + i / 100: 1 for i in range(1000)} | {math.inf: 7})
    assert sum(merged.values()) == 1007
    assert len(merged) <= 42 and merged[math.inf] == 7


def test_curves_are_thinned_with_both_ends_kept():
    kept = series.thin(range(501))
    assert (kept[0], kept[-1]) == (0, 500)
    assert len(kept) <= series.MOST_ROUNDS + 1


@pytest.mark.parametrize("values", [[0.3], [0.1, 0.9], [0, 0], [-3, 250], [math.inf], []])
def test_linear_axes_hold_their_values_and_have_ticks(values):
    axis = Linear.over(values)
    assert all(-1e-9 <= axis.place(v) <= 1 + 1e-9 for v in values if math.isfinite(v))
    assert len(axis.ticks) >= 2
    assert all(-1e-9 <= tick.place <= 1 + 1e-9 for tick in axis.ticks)


@pytest.mark.parametrize("values", [[1], [0.001, 1e7], [5, 7], [math.inf], [0, 3], [9, math.inf]])
def test_log_axes_hold_their_values_and_have_few_ticks(values):
    axis = Log.over(values)
    assert all(-1e-9 <= axis.place(v) <= 1 for v in values)
    assert 1 <= len(axis.ticks) <= 8
    assert (axis.ticks[-1].label == "∞") == (math.inf in values)


def test_labels_are_pushed_apart_and_stay_inside():
    assert spread_out([10, 11, 12], 14, 260) == [10, 24, 38]
    assert spread_out([250, 255], 14, 260) == [246, 260]


def test_numbers_for_people():
    assert [byte_count(v) for v in (3, 11680, 999_999, 2.5e9)] == [
        "3 B",
        "11.7 kB",
        "1 MB",
        "2.5 GB",
    ]
    assert [log_number(v) for v in (0.01, 1000, 10_000, 3e5)] == ["0.01", "1,000", "10⁴", "3·10⁵"]


def test_names_in_a_chart_are_escaped():
    evil = "</svg><script>alert(1)</script>"
    line = Line("s0", evil, Look(), [Point(0, 0, evil), Point(1, 1, evil)], end_label=evil)
    axis = Linear.over([0, 1])
    drawn = Chart(evil, evil, evil, evil, axis, axis, [line]).svg()
    assert "<script" not in drawn and drawn.count("</svg>") == 2


def published_run(**changes):
    config = {
        "strategy": {"name": "privatekt", "K": 2, "local": {"learning_rate": 0.05}},
        "dataset": {"name": "MNIST"},
        "privacy": {"epsilon": 5, "per": "round"},
        "federation": {"num_clients": 80, "clients_per_round": 40, "public": 12000},
        "model": {"_target_": "murmur.learning.models.cnn_small"},
    } | changes
    rows = tuple({"round": n, "accuracy": n / 100, "bytes_up": 1} for n in range(31))
    return Run(name="run", config=config, rows=rows)


def test_a_papers_values_lie_beside_the_run_that_they_are_about():
    (found,) = comparisons(group([published_run()]).settings)
    assert found.kind == "paper"
    assert [row[2:] for row in found.rows] == [("0.298", "0.100"), ("0.569", "0.250")]
    (differences,) = found.differences.values()
    assert any(
        "model._target_ is murmur.learning.models.cnn_small here" in item for item in differences
    )


def test_a_papers_values_are_not_shown_beside_another_setting():
    assert not comparisons(group([published_run(privacy={"epsilon": 8, "per": "run"})]).settings)


def test_what_is_published_names_settings_that_exist():
    """The settings to match are those of the experiments that reproduce the sources."""
    from omegaconf import OmegaConf

    from fl_app.config.composition import compose

    for words, name in (
        (["experiment=privatekt_mnist"], "PrivateKT, the authors' logged run"),
        (["experiment=dpfl_bnn_mnist_iid"], "DPFL-BNN, theorem 1 at γ = 0.1"),
        (["experiment=nbafl_mnist"], "NbAFL on MNIST"),
        (["experiment=kd_dpfl_mnist"], "KD-DPFL"),
        ([], "PrivateKT on digits, reference implementation"),
        (
            ["experiment=privatekt_mnist_mlp"],
            "PrivateKT on MNIST with an MLP, reference implementation",
        ),
    ):
        config = OmegaConf.to_container(compose(words))
        found = comparisons(group([Run(name="run", config=config)]).settings)
        assert name in [c.name for c in found]
        if words == ["experiment=privatekt_mnist"]:
            assert not found[0].differences


def test_a_line_ends_where_it_is_said_to_end(tmp_path):
    write_run(tmp_path / "run", "strategy=fedavg")
    grouping = group(read(tmp_path / "run").runs)
    figure = rounds_figure(grouping, "accuracy")
    assert "ends at 0.710" in figure.panels[0].chart.alt and "ends at 0.71" in figure.finding


def test_one_diverged_loss_makes_the_axis_logarithmic(tmp_path):
    for seed in ("1", "2", "3"):
        run = write_run(tmp_path / seed, "strategy=fedavg", f"seed={seed}", f"strategy.K={seed}")
    assert isinstance(rounds_figure(group(read(tmp_path).runs), "loss").panels[0].chart.y, Linear)
    run.rows_path.write_text(run.rows_path.read_text().replace('"loss": 0.5', '"loss": 5e6'))
    chart = rounds_figure(group(read(tmp_path).runs), "loss").panels[0].chart
    assert isinstance(chart.y, Log) and "logarithmic" in chart.y_label
