"""What every configuration must keep: the settings outside the groups, and its classes."""

from __future__ import annotations

from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, TypeAdapter, ValidationError

from fl_app.config.allowed_classes import classes_of, strange_class
from fl_app.config.errors import ConfigError
from fl_app.config.groups import OPTIONAL_GROUPS, groups, roots

# The settings of conf/config.yaml that belong to no group.
RUN_SETTINGS: dict[str, Any] = {
    "seed": Annotated[int, Field(ge=0, lt=2**63)],
    "run_dir": str | None,
    "results_dir": str | None,
    "sweep": str | None,
    "keep_checkpoints": bool,
}


def check_run(config: DictConfig) -> None:
    """ConfigError unless the settings that belong to no group are what they must be."""
    wanted = (*RUN_SETTINGS, *(name for name in groups() if name not in OPTIONAL_GROUPS))
    missing = [key for key in wanted if key not in config]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing; do not remove it (`~{missing[0]}`)")
    for key, hint in RUN_SETTINGS.items():
        value = config[key]
        try:
            TypeAdapter(hint, config={"strict": True}).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"{key}={value}: {reason[0].lower()}{reason[1:]}") from error


def check_classes(config: DictConfig) -> None:
    """ConfigError unless all classes are in their own slots, and the strategy has its own name."""
    require_known_classes(config)
    name = str(config.strategy.name)
    named = classes_of(roots(), "strategy", name) if name in groups()["strategy"] else {}
    if any(
        named.get(place) != OmegaConf.select(config, f"{place}._target_")
        for place in ("strategy.server", "strategy.client")
    ):
        raise ConfigError(f"strategy.name={name}: is not the name of the strategy that was chosen")


def require_known_classes(config: DictConfig) -> None:
    """ConfigError unless every class stands where a file of conf/ names it."""
    strange = strange_class(OmegaConf.to_container(config), roots())
    if strange is not None:
        place, target = strange
        raise ConfigError(
            f"{place}._target_={target}: classes are chosen through the groups, not named; to add "
            "one, add a file to that group of conf/, or of a folder of your own (--config-dir)"
        )
