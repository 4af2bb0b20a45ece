"""Every way to state a configuration reaches the same one; wrong input fails in one sentence."""

import itertools
import math
import re
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from fl_app.cli import main as murmur
from fl_app.config.compose import compose, for_hydra
from fl_app.config.errors import ConfigError
from fl_app.config.groups import CONF, OPTIONAL_GROUPS, STRATEGY_GROUPS, groups
from fl_app.config.instantiate import build
from fl_app.config.overrides import expand_sweep, in_typed_keys, to_overrides, to_run_config

CHOICES = [(group, choice) for group, choices in groups().items() for choice in choices]
PARTS = {
    group: names
    for group, names in groups().items()
    if group not in {*OPTIONAL_GROUPS, *STRATEGY_GROUPS}
}
# Overlays are composed one by one, the parts of a run one of each group at a time.
OVERLAYS = [[f"{group}={name}"] for group, name in CHOICES if group in OPTIONAL_GROUPS]
OVERLAYS += [
    [f"{group}={name}", f"strategy={STRATEGY_GROUPS[group]}"]
    for group, name in CHOICES
    if group in STRATEGY_GROUPS
]
TOGETHER = [
    [f"{group}={names[number % len(names)]}" for group, names in PARTS.items()]
    for number in range(max(map(len, PARTS.values())))
]


@pytest.mark.parametrize("words", [*OVERLAYS, *TOGETHER], ids=lambda words: words[0])
def test_every_yaml_composes(words):
    assert compose(words).strategy.name


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_yaml_says_what_it_is(group, choice):
    first = (CONF / group / f"{choice}.yaml").read_text().splitlines()
    comments = list(itertools.takewhile(lambda line: line.startswith("#"), first))
    assert any(not line.startswith("# @package") for line in comments), "no line says what it is"


def test_flower_run_config_reaches_the_same_configuration():
    everyday = {"strategy": "fedavg", "epsilon": "inf", "num-rounds": 3, "overrides": "seed=9"}
    assert compose(to_overrides(everyday)) == compose(
        ["strategy=fedavg", "privacy.epsilon=inf", "federation.num_rounds=3", "seed=9"]
    )


def test_a_refused_key_of_the_run_config_is_named_as_it_was_typed():
    with pytest.raises(ConfigError, match=r"num-round=3: is no key .* did you mean num-rounds"):
        to_overrides({"num-round": 3})
    refused = "privacy.epsilon=-3: must be above 0"
    assert in_typed_keys(refused, {"epsilon": -3}) == f"epsilon=-3: {refused}"
    assert in_typed_keys(refused, {"epsilon": "", "overrides": "privacy.epsilon=-3"}) == refused


def test_overrides_with_an_open_quote_are_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="overrides=seed='1: ends inside quotes"):
        to_overrides({"overrides": "seed='1"})


def test_overrides_survive_the_way_through_a_run_config():
    overrides = ["model.hidden=[32,16]", "run_dir='/tmp/a b'"]
    assert to_overrides(to_run_config(overrides)) == overrides


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("strategy=privatkt", ["strategy=privatkt", "privatekt"]),
        ("privacy.epsilonn=1", ["privacy.epsilonn=1", "privacy.epsilon"]),
        ("federation.num_client=3", ["federation.num_client=3", "federation.num_clients"]),
        ("strategie=fedavg", ["strategie=fedavg", "strategy"]),
        ("privacy.epsilon=1,2", ["murmur -m", "privacy.epsilon=1,2"]),
        ("nonsense", ["nonsense", "key=value"]),
        ("strategy.name=fedavg", ["strategy.name=fedavg", "not the name of the strategy"]),
        ("strategy.client._target_=clients.fedavg.FedAvgClient", ["strategy.name=votes"]),
    ],
)
def test_wrong_key_names_key_value_and_nearest(override, words):
    with pytest.raises(ConfigError) as caught:
        compose([override])
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "group", "words"),
    [
        ("privacy.epsilon=-1", "privacy", ["privacy.epsilon=-1", "above 0"]),
        ("privacy.noise=loud", "privacy", ["privacy.noise=loud", "seeded"]),
        ("federation.num_clients=many", "federation", ["federation.num_clients=many", "int"]),
        ("federation.clients_per_round=99", "federation", ["clients_per_round=99", "1..40"]),
        ("federation.quorum=0", "federation", ["federation.quorum=0", "(0, 1]"]),
        ("engine.workers=0", "engine", ["engine.workers=0", "at least 1"]),
    ],
)
def test_wrong_value_names_key_value_and_range(override, group, words):
    config = compose([override])
    with pytest.raises(ConfigError) as caught:
        build(config[group], group)
    for word in words:
        assert word in str(caught.value)


CNNS = ["cnn_groupnorm", "cnn_privatekt", "cnn_small", "cnn_tanh"]


def test_sweep_expands_to_every_job_in_order():
    jobs = expand_sweep(["privacy.epsilon=1,2", "strategy.K=range(1,3)", "seed=4"])
    assert jobs == [
        ["privacy.epsilon=1", "strategy.K=1", "seed=4"],
        ["privacy.epsilon=1", "strategy.K=2", "seed=4"],
        ["privacy.epsilon=2", "strategy.K=1", "seed=4"],
        ["privacy.epsilon=2", "strategy.K=2", "seed=4"],
    ]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("model=glob(mlp*)", ["mlp"]),
        ("model=glob([cnn*,mlp],exclude=*1*)", [*CNNS, "mlp"]),
        ("partition=glob(*_skew)", ["quantity_skew"]),
    ],
)
def test_a_glob_sweeps_over_the_choices_of_a_group(word, found):
    group = word.partition("=")[0]
    jobs = expand_sweep([word, "seed=1,2"])
    assert jobs == [[f"{group}={name}", f"seed={seed}"] for name in found for seed in (1, 2)]


@pytest.mark.parametrize(
    ("word", "said"),
    [("model=glob(resnet*)", "matches none of model's choices.*mlp"), ("seed=glob(*)", "no group")],
)
def test_a_glob_that_finds_nothing_is_refused(word, said):
    with pytest.raises(ConfigError, match=said):
        expand_sweep([word])


def test_configuration_cannot_be_changed_after_composing():
    assert OmegaConf.is_readonly(compose([]))


def test_help_lists_every_group_with_its_choices(capsys):
    assert murmur(["--help"]) == 0
    said = capsys.readouterr().out
    for group, choices in groups().items():
        line = next(line for line in said.splitlines() if line.startswith(f"  {group}: "))
        assert set(re.findall(r"[\w/]+", line)) >= {group, *choices}


def test_help_of_a_group_lists_every_setting(capsys):
    assert murmur(["--help", "federation"]) == 0
    said = capsys.readouterr().out
    for key in compose([]).federation:
        if not key.startswith("_"):
            assert re.search(rf"^ *{key}: ", said, re.MULTILINE), key


def test_help_needs_no_library():
    loaded = "import sys; from fl_app.cli import main; main(['-h']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    assert not {"hydra", "torch", "flwr", "pydantic", "rich"} & set(modules)


@pytest.mark.parametrize(
    "word",
    [
        "partition.settings={num_classes_per_partition: 2}",
        "partition.settings.num_classes_per_partition=2",
        "++partition.settings.num_classes_per_partition=2",
    ],
)
@pytest.mark.parametrize("more", [[], ["+about=x"], ["hydra.verbose=false"]])
def test_a_mapping_that_conf_leaves_empty_takes_any_key(word, more):
    config = compose(["partition=flower", word, *more])
    assert config.partition.settings == {"num_classes_per_partition": 2}
    assert not compose(["partition=flower"]).partition.settings  # what is cached stays as it was


def test_hydras_own_main_takes_keys_of_an_open_mapping_too():
    words = ["partition=flower", "partition.settings={a: 1},{a: 2}", "+about=x", "seed=3"]
    given = for_hydra(words)
    assert given == ["partition=flower", "++partition.settings={a: 1},{a: 2}", "+about=x", "seed=3"]


def test_a_key_beside_an_open_mapping_is_refused():
    with pytest.raises(ConfigError, match=r"^partition\.setting=1: unknown key"):
        compose(["partition=flower", "partition.setting=1"])


@pytest.mark.parametrize("protection", groups()["protection"])
@pytest.mark.parametrize("strategy", groups()["strategy"])
def test_no_strategy_takes_a_protection_without_a_budget(strategy, protection):
    words = [f"strategy={strategy}", f"protection={protection}"]
    if compose([f"strategy={strategy}"]).privacy.epsilon < math.inf or protection == "none":
        assert compose(words)
        return
    with pytest.raises(ConfigError, match=r"privacy\.epsilon, .* privacy=none") as refused:
        compose(words)
    assert f"protection={protection}" in str(refused.value)
    for budget in ("privacy=local", "privacy.epsilon=4", "privacy=none", "privacy.epsilon=inf"):
        assert compose([*words, budget])


@pytest.mark.parametrize(
    "asked",
    ["privacy.threat=local", "privacy.unit=record", "privacy.delta=1e-6", "privacy.threat=central"],
)
def test_a_promise_without_a_budget_is_refused(asked):
    with pytest.raises(ConfigError, match=r"privacy\.epsilon, .* privacy=none"):
        compose(["strategy=fedavg", asked])
    assert compose(["strategy=fedavg", asked, "privacy=none"])
    with pytest.raises(ConfigError, match=re.escape("protection.clipping.norm=2")):
        compose(["experiment=ldp_evaluation", "protection.clipping.norm=2"])


def test_the_command_says_what_to_set_and_makes_no_run(tmp_path, capsys):
    words = ["protection=distributed", "privacy.threat=secure_aggregation", "engine=inline"]
    assert murmur(["strategy=fedavg", *words, f"results_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "privacy.epsilon" in said and "privacy=none" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["privacy.epsilon", "privacy.delta", "protection.clipping.norm"])
def test_an_interpolation_that_leads_nowhere_is_refused_in_one_sentence(key):
    with pytest.raises(ConfigError, match="Interpolation key 'x' not found"):
        compose(["strategy=fedavg", "protection=central", "privacy.epsilon=1", f"{key}=${{x}}"])
