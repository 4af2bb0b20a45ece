"""Keeps what follows from a configuration, which one run asks for many times."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

Result = TypeVar("Result")


class _Same:
    """An object's identity, which cannot pass to another one while this holds the object."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.config is other.config


def once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Computes ``function`` once for each configuration and further arguments.

    A configuration that may change (``compose.finished`` has not made it read-only) is read anew.

    Args:
        function: of a configuration or a group of one, and of hashable arguments; its result must
            follow from these alone, and must not be changed.
    """

    @lru_cache(maxsize=8)
    def kept(same: _Same, *more: Any) -> Result:
        return function(same.config, *more)

    @wraps(function)
    def found(config: DictConfig, *more: Any) -> Result:
        if not OmegaConf.is_readonly(config):
            return function(config, *more)
        return kept(_Same(config), *more)

    return found
