"""What is drawn is what the rows say: means, ranges, the place for ∞, one promise in a panel."""

import json
import math
from datetime import datetime

import pytest

from fl_app.cli import main
from fl_app.config.errors import ConfigError
from fl_app.run.load import PartitionCounts, Run, load_runs
from murmur_report.charts import MAX_ROUNDS, Axis, byte_count, thin
from murmur_report.export import stand_alone
from murmur_report.figures import (
    bytes_figure,
    epsilon_figure,
    partition_figure,
    rounds_figure,
    spend_figure,
    swept_figure,
)
from murmur_report.page import page
from murmur_report.settings import group
from murmur_report.tables import references
from tests.run_folders import write_run


@pytest.fixture
def sweep(sweep_folder):
    return group(load_runs(sweep_folder).runs)


def scale(panel, axis):
    """The scale of a panel's first layer."""
    return panel.chart["layer"][0]["encoding"][axis]["scale"]


def test_a_band_is_the_95_percent_interval_of_the_mean_over_seeds(sweep):
    curves = sweep.curves("accuracy")
    line = curves[(curves["key"] == "s0") & (curves["round"] == 6)].iloc[0]
    assert line["mean"] == pytest.approx(0.715)
    half = 12.7062 * 0.005  # of Student's t with one degree of freedom, times the standard error
    assert (line["low"], line["high"]) == pytest.approx((0.715 - half, 0.715 + half), abs=1e-6)
    assert line["runs"] == 2
    assert "95% interval" in rounds_figure(sweep, "accuracy").caption


def test_rounds_have_a_panel_for_each_algorithm_on_the_same_axes(sweep):
    figure = rounds_figure(sweep, "accuracy")
    lines = [{n["key"] for n in figure.numbers if n["panel"] == p.title} for p in figure.panels]
    lines = [own - {""} for own in lines]  # chance is nobody's
    assert [len(own) for own in lines] == [3, 2]  # NbAFL at ∞ has no row
    first, second = figure.panels
    assert scale(first, "x") == scale(second, "x") and scale(first, "y") == scale(second, "y")
    assert "NbAFL" in figure.finding and "a server that reads every message" in first.title


def test_claimed_and_proven_share_an_axis_that_has_a_place_for_infinity(sweep):
    axis = Axis([5, 30, math.inf])
    assert axis.place(5) < axis.place(30) < axis.high < axis.place(math.inf) < axis.end
    figure = epsilon_figure(sweep, "accuracy")
    places = {n["kind"]: n["place"] for n in figure.numbers if n["setting"].endswith("5")}
    assert places["proven"] > places["claimed"]  # six rounds cost more than is claimed for the run
    unprotected = {n["epsilon"] for n in figure.numbers if n["setting"].endswith("∞")}
    assert unprotected == {"∞"}


def test_an_unfinished_setting_is_not_compared_with_what_is_stated(tmp_path):
    write_run(tmp_path / "all" / "a", "privacy.epsilon=2", done=3)
    write_run(tmp_path / "all" / "b", "privacy.epsilon=4")
    figure = epsilon_figure(group(load_runs(tmp_path / "all").runs), "accuracy")
    assert figure.panels[0].title == "No privacy statement yet"
    assert figure.numbers[0]["kind"] == "proven" and figure.numbers[0]["epsilon"] == 6


def test_accuracy_over_epsilon_has_a_line_for_each_value_of_another_key(tmp_path):
    for budget in (1, 5):
        for k in (2, 4):
            words = [f"privacy.epsilon={budget}", f"strategy.K={k}", "strategy=privatekt"]
            write_run(tmp_path / f"{budget}-{k}", *words)
    grouping = group(load_runs(tmp_path).runs)
    figure = swept_figure(grouping, "accuracy")
    assert figure.title == "Accuracy over ε by K" and len(figure.panels) == 1
    assert {n["line"].replace("\u00a0", " ") for n in figure.numbers} == {
        "PrivateKT, K = 2",
        "PrivateKT, K = 4",
    }
    assert {n["x"] for n in figure.numbers} == {5.94, 30}  # what was proven, not what was set
    other = swept_figure(grouping, "accuracy", over="strategy.K")
    assert other.title == "Accuracy over K by ε" and {n["x"] for n in other.numbers} == {2, 4}
    with pytest.raises(ConfigError, match=r"--by=strategy\.k: was not swept; did you mean"):
        swept_figure(grouping, "accuracy", by="strategy.k")


def test_bytes_add_up_over_rounds(sweep):
    figure = bytes_figure(sweep, "accuracy")
    assert max(n["sent"] for n in figure.numbers if n["key"]) == 6000
    assert "6 kB" in figure.finding


def test_spends_count_every_client_of_every_seed(sweep):
    assert sum(sweep.settings[0].spends.values()) == 8
    own = [n for n in spend_figure(sweep).numbers if n["key"] == "s0"]
    assert len(own) == 2 and sum(n["clients"] for n in own) == 8


def test_more_spends_than_fit_are_counted_together(sweep, monkeypatch):
    many = {1 + i / 100: 1 for i in range(1000)} | {math.inf: 7}
    monkeypatch.setattr(type(sweep.settings[0]), "spends", many)
    own = [n for n in spend_figure(sweep).numbers if n["key"] == "s0"]
    assert sum(n["clients"] for n in own) == 1007
    assert len(own) <= 102 and own[-1]["epsilon"] == "∞" and own[-1]["clients"] == 7


def test_curves_are_thinned_with_both_ends_kept():
    kept = thin(range(501))
    assert (kept[0], kept[-1]) == (0, 500)
    assert len(kept) <= MAX_ROUNDS + 1


@pytest.mark.parametrize("values", [[1], [0.001, 1e7], [5, 7], [math.inf], [0, 3], [9, math.inf]])
def test_log_axes_hold_their_values_and_have_ticks(values):
    axis = Axis(values)
    assert all(axis.low <= axis.place(v) <= axis.end for v in values)
    assert axis.marks and all(axis.low <= mark <= axis.end for mark in axis.marks)
    assert (axis.infinity in axis.marks) == (math.inf in values)


def test_numbers_for_people():
    assert [byte_count(v) for v in (3, 11680, 999_999, 2.5e9)] == [
        "3 B",
        "11.7 kB",
        "1 MB",
        "2.5 GB",
    ]


def test_what_a_run_is_called_is_never_an_expression(tmp_path):
    evil = "'+alert(1)+'\"]); alert(2)//"
    for epsilon in (1, 2):
        write_run(tmp_path / str(epsilon), f"strategy.note={evil}", f"privacy.epsilon={epsilon}")
    figure = rounds_figure(group(load_runs(tmp_path).runs), "accuracy")
    assert json.loads(json.dumps(figure.panels[0].chart)) == figure.panels[0].chart
    tests = [layer["transform"][0]["filter"] for layer in figure.panels[0].chart["layer"]]
    assert all(json.dumps(figure.panels[0].title) in test for test in tests)


def test_a_saved_figure_holds_numbers_and_colours_and_needs_no_page(sweep):
    whole = json.dumps(stand_alone(rounds_figure(sweep, "accuracy")))
    assert "var(--" not in whole and "#0a63ad" in whole and "0.715" in whole


def test_of_many_clients_an_even_choice_is_drawn():
    held = PartitionCounts(tuple(range(1000)), ((1, 3),) * 1000, 1000, 4000)
    figure = partition_figure(0, "run", held, "digits, IID")
    assert len({n["client"] for n in figure.numbers}) <= 121
    assert figure.numbers[1]["share"] == 0.75 and "1,000 clients, 4,000 examples" in figure.finding
    assert "An even choice of 112 clients" in figure.caption


def test_a_figure_of_a_key_that_was_not_swept_is_refused(tmp_path, capsys):
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--over", "strategy.K"]) == 2
    assert "--over=strategy.K: was not swept" in capsys.readouterr().err


def published_run(**changes):
    config = {
        "strategy": {"name": "privatekt", "K": 2, "local": {"learning_rate": 0.05}},
        "dataset": {"name": "MNIST"},
        "privacy": {"epsilon": 5, "paper": True},
        "federation": {"num_clients": 80, "clients_per_round": 40, "public": 12000},
        "model": {"_target_": "murmur.learning.models.cnn_small"},
    } | changes
    rows = tuple({"round": n, "accuracy": n / 100, "bytes_up": 1} for n in range(31))
    return Run(name="run", config=config, rows=rows)


def test_a_papers_values_lie_beside_the_run_that_they_are_about():
    (found,) = references(group([published_run()]))
    assert found.about["kind"] == "paper"
    assert [row[2:] for row in found.rows] == [("0.298", "0.100"), ("0.569", "0.250")]
    (differences,) = found.differences.values()
    assert any(
        "model._target_ is murmur.learning.models.cnn_small here" in item for item in differences
    )


def test_a_papers_values_are_not_shown_beside_another_setting():
    assert not references(group([published_run(privacy={"epsilon": 8, "paper": False})]))


def test_what_is_published_names_settings_that_exist():
    """The settings to match are those of the experiments that reproduce the sources."""
    from omegaconf import OmegaConf

    from fl_app.config.compose import compose

    for words, name in (
        (["experiment=privatekt_mnist"], "PrivateKT, the authors' logged run"),
        (["experiment=dpfl_bnn_mnist_iid"], "DPFL-BNN, theorem 1 at γ = 0.1"),
        (["experiment=nbafl_mnist"], "NbAFL on MNIST"),
        (["experiment=kd_dpfl_mnist"], "KD-DPFL"),
        (["strategy=privatekt", "privacy=paper"], "PrivateKT on digits, reference implementation"),
        (
            ["experiment=privatekt_mnist_mlp"],
            "PrivateKT on MNIST with an MLP, reference implementation",
        ),
    ):
        config = OmegaConf.to_container(compose(words))
        found = references(group([Run(name="run", config=config)]))
        assert name in [c.about["name"] for c in found]
        if words == ["experiment=privatekt_mnist"]:
            assert not found[0].differences


def test_a_reference_lies_beside_the_settings_that_it_is_about():
    run = published_run()
    grouping = group([run])
    figure = rounds_figure(grouping, "accuracy", references(grouping))
    rings = [n for n in figure.numbers if n["key"] == ""]
    assert [(n["round"], n["mean"]) for n in rings] == [(10, 0.298), (25, 0.569)]
    assert {n["panel"] for n in rings} == {figure.panels[0].title}


def test_a_line_ends_where_the_finding_says(tmp_path):
    write_run(tmp_path / "run", "strategy=fedavg")
    figure = rounds_figure(group(load_runs(tmp_path / "run").runs), "accuracy")
    assert "ends at 0.710" in figure.finding and figure.numbers[-1]["mean"] == 0.71


def test_one_diverged_loss_makes_the_axis_logarithmic(tmp_path):
    for seed in ("1", "2", "3"):
        run = write_run(tmp_path / seed, "strategy=fedavg", f"seed={seed}", f"strategy.K={seed}")
    figure = rounds_figure(group(load_runs(tmp_path).runs), "loss")
    assert "type" not in scale(figure.panels[0], "y")
    run.rows_path.write_text(run.rows_path.read_text().replace('"loss": 0.5', '"loss": 5e6'))
    (panel,) = rounds_figure(group(load_runs(tmp_path).runs), "loss").panels
    assert scale(panel, "y") == {"type": "log"}
    assert "log" in panel.chart["layer"][0]["encoding"]["y"]["title"]


def test_a_void_epsilon_is_a_cross_and_called_proven_nowhere(tmp_path):
    write_run(tmp_path / "a", void="noise was seeded")
    grouping = group(load_runs(tmp_path).runs)
    figure = epsilon_figure(grouping, "accuracy")
    assert [n["kind"] for n in figure.numbers] == ["claimed", "void"]
    assert "void" in figure.finding and "proven" not in figure.finding
    assert "A cross: void" in figure.caption
    assert "cross" in json.dumps(figure.panels[0].chart)
    assert all("privacy void" in n["setting"] for n in spend_figure(grouping).numbers)
    write_run(tmp_path / "b", "strategy.K=9")
    finding = epsilon_figure(group(load_runs(tmp_path).runs), "accuracy").finding
    assert "1 of 1 settings" in finding and "void" not in finding


def test_an_unfinished_run_on_seeded_noise_is_void_too(tmp_path):
    seeded = {"privacy": {"noise": "seeded"}}
    write_run(tmp_path / "a", done=2, extra=seeded)
    figure = epsilon_figure(group(load_runs(tmp_path).runs), "accuracy")
    assert [n["kind"] for n in figure.numbers] == ["void"]


def test_what_clients_spent_is_never_drawn_as_less_nor_what_was_found_as_more(
    sweep, tmp_path, monkeypatch
):
    monkeypatch.setattr(type(sweep.settings[0]), "spends", {3.749: 1, 3.7412: 1})
    [disc] = [n for n in spend_figure(sweep).numbers if n["key"] == "s0"]
    assert (disc["epsilon"], disc["clients"]) == (3.75, 2)
    write_run(tmp_path, "privacy.epsilon=1.2311", found=3.7492)
    shown = epsilon_figure(group(load_runs(tmp_path).runs), "accuracy").numbers
    assert [n["epsilon"] for n in shown if n["kind"] != "proven"] == [1.24, 3.74]


def test_an_epsilon_under_assumptions_is_not_drawn_as_proven(tmp_path):
    write_run(tmp_path / "a", honest=3)
    figure = epsilon_figure(group(load_runs(tmp_path).runs), "accuracy")
    assert [n["kind"] for n in figure.numbers] == ["claimed", "assumed"]
    assert "is assumed" in figure.finding and "proven" not in figure.finding
    assert "not proven" in figure.caption
    write_run(tmp_path / "b", "strategy.K=9")
    assert (
        "is proven or assumed"
        in epsilon_figure(group(load_runs(tmp_path).runs), "accuracy").finding
    )


def looks(panel):
    """Line -> (colour, dash, mark) of a panel with lines, as its scales have them."""
    found = {}
    for layer in panel.chart["layer"]:
        for channel in ("color", "strokeDash", "shape"):
            scale = layer.get("encoding", {}).get(channel, {}).get("scale", {})
            for line, value in zip(scale.get("domain", ()), scale.get("range", ()), strict=True):
                found.setdefault(line, {})[channel] = str(value)
    return found


def test_a_colour_is_an_algorithm_and_a_dash_a_setting_the_same_in_every_figure(tmp_path):
    for name in ("privatekt", "fedavg"):
        for budget in (1, 2, 5):
            words = [f"strategy={name}", f"privacy.epsilon={budget}"]
            write_run(tmp_path / f"{name}-{budget}", *words)
    grouping = group(load_runs(tmp_path).runs)
    alone = group([run for run in load_runs(tmp_path).runs if "fedavg" in run.name])
    for settings in (grouping, alone):
        by_setting = {}
        for figure in (rounds_figure(settings, "accuracy"), bytes_figure(settings, "accuracy")):
            for panel in figure.panels:
                for line, look in looks(panel).items():
                    assert by_setting.setdefault(line, look) == look
        assert set(by_setting) == {setting.marked_label for setting in settings.settings}
        for family in settings.families:
            own = [look for line, look in by_setting.items() if line.startswith(family)]
            assert len({look["color"] for look in own}) == 1
            assert len({look["strokeDash"] for look in own}) == len(own) == 3
            assert len({look["shape"] for look in own}) == len(own)
        assert len({look["color"] for look in by_setting.values()}) == len(settings.families)


def test_no_panel_has_more_than_eight_lines(tmp_path):
    for k in range(1, 19):
        for budget in (1, 2):
            write_run(tmp_path / f"{budget}-{k}", f"strategy.K={k}", f"privacy.epsilon={budget}")
    grouping = group(load_runs(tmp_path).runs)
    for figure in (
        swept_figure(grouping, "accuracy"),
        epsilon_figure(grouping, "accuracy"),
        rounds_figure(grouping, "accuracy"),
        bytes_figure(grouping, "accuracy"),
    ):
        drawn = set()
        for panel in figure.panels:
            own = [n for n in figure.numbers if n["panel"] == panel.title and n["key"]]
            kind = "line" if figure.id == "swept" else "key"
            assert 1 <= len({n[kind] for n in own}) <= 8
            dashes = [look["strokeDash"] for look in looks(panel).values() if "strokeDash" in look]
            assert len(dashes) == len(set(dashes))
            drawn |= {n["key"] for n in own}
        assert drawn == {setting.key for setting in grouping.settings}


def test_chance_and_without_noise_are_lines_across(tmp_path):
    for budget in ("1", "5", "inf"):
        write_run(tmp_path / budget, f"privacy.epsilon={budget}", chance=0.125)
    grouping = group(load_runs(tmp_path).runs)
    swept = swept_figure(grouping, "accuracy")
    for figure in (swept, epsilon_figure(grouping, "accuracy")):
        levels = {n["level"]: n["mean"] for n in figure.numbers if "level" in n}
        assert levels == {"chance": 0.125, "without noise": pytest.approx(0.51)}
        assert "chance" in figure.caption and "without noise" in figure.caption
        rules = [layer for layer in figure.panels[0].chart["layer"] if rule_across(layer)]
        assert len(rules) == 2
    assert not any(n.get("x") == "∞" for n in swept.numbers if "level" not in n)
    for figure in (rounds_figure(grouping, "accuracy"), bytes_figure(grouping, "accuracy")):
        assert {n["mean"] for n in figure.numbers if n.get("level") == "chance"} == {0.125}
    assert not any("level" in n for n in rounds_figure(grouping, "loss").numbers)


def test_several_lines_without_noise_have_their_settings_names(tmp_path):
    for k, budget, seed in ((1, "1", 1), (1, "inf", 1), (2, "1", 1), (2, "inf", 30)):
        words = [f"strategy.K={k}", f"privacy.epsilon={budget}", f"seed={seed}"]
        write_run(tmp_path / f"{k}-{budget}", *words)
    grouping = group(load_runs(tmp_path).runs)
    figure = swept_figure(grouping, "accuracy")
    named = {n["shown"] for n in figure.numbers if n.get("level") == "without noise"}
    free = {s.marked_label for s in grouping.settings if s.is_without_noise}
    assert named == free and len(named) == 2


def rule_across(layer):
    """Whether a layer is a line over the whole width."""
    return layer["mark"]["type"] == "rule" and not {"x", "y2"} & set(layer["encoding"])


def test_single_rounds_are_a_dot_plot(tmp_path):
    for budget in (1, 5):
        for seed in (1, 2):
            words = [f"privacy.epsilon={budget}", f"seed={seed}"]
            write_run(tmp_path / f"{budget}-{seed}", *words, rounds=1, chance=0.125)
    figure = rounds_figure(group(load_runs(tmp_path).runs), "accuracy")
    [panel] = figure.panels
    kinds = [layer["mark"]["type"] for layer in panel.chart["layer"]]
    assert "line" not in kinds and "area" not in kinds and kinds.count("point") == 1
    dots = [n for n in figure.numbers if "level" not in n]
    assert [n["mean"] for n in dots] == [pytest.approx(0.215)] * 2
    assert all(n["low"] < n["mean"] < n["high"] for n in dots)
    assert "a dot for each setting" in figure.caption


def test_an_interval_ends_at_0_and_1_where_a_score_does(tmp_path):
    for seed in (1, 20):
        write_run(tmp_path / str(seed), f"seed={seed}")
    grouping = group(load_runs(tmp_path).runs)
    [setting] = grouping.settings
    spread = setting.spread("accuracy")
    assert (spread["low"], spread["high"]) == (0, 1)
    assert grouping.curves("accuracy")["high"].max() == 1
    for run in tmp_path.iterdir():
        rows = run / "rounds.jsonl"
        rows.write_text(rows.read_text().replace('"accuracy"', '"silhouette"'))
    [setting] = group(load_runs(tmp_path).runs).settings
    assert setting.spread("silhouette")["low"] < 0  # whose ends are others


def test_a_setting_that_learned_nothing_is_marked_everywhere(tmp_path):
    for k in (1, 2):
        for seed in (1, 2):
            chance = {1: 0.9, 2: 0.715}[k]
            words = [f"strategy.K={k}", f"seed={seed}"]
            write_run(tmp_path / f"{k}-{seed}", *words, chance=chance)
    grouping = group(load_runs(tmp_path).runs)
    all_of_it, one = grouping.settings
    assert all_of_it.marks == ("learned nothing",)
    assert one.marks == ("learned nothing in 1 of 2 runs",)
    for figure in (rounds_figure(grouping, "accuracy"), spend_figure(grouping)):
        named = {n["setting"] for n in figure.numbers if n["key"] == all_of_it.key}
        assert named == {all_of_it.marked_label} and "learned nothing" in all_of_it.marked_label
    assert page_of(tmp_path).count("learned nothing in 1 of 2 runs</strong>") == 1


def page_of(folder):
    return page(load_runs(folder), datetime(2026, 1, 2))
