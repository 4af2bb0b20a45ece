"""What the client's half of a run is built from, and its digest.

Server, devices and simulated clients each have a configuration of their own. They would do the same
where these values of it are the same (``fl_app.device.agreement`` compares them before a run).
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fl_app.config import instantiate
from fl_app.config.once import once
from fl_app.config.overrides import flat

# What the client's half is built from; `${...}` in it leads to more.
READ = (
    *("strategy.name", "strategy.client", "evaluation.client", "model", "features", "privacy"),
    *("federation.num_clients", "federation.clients_per_round", "federation.num_rounds"),
    *("federation.schedule", "seed", "task"),
)
# What of it is the server's word: digests of what is public, and the range of labels.
_PUBLIC = (
    *("federation.devices.public", "federation.devices.features"),
    "federation.devices.label_range",
)
# Left out where they say what was always so: digests and headers of older runs stay as they are.
_USUAL = {"task": "classification", "federation.devices.label_range": None}
# Where a model begins, for what the server sends is the model itself; and what features are fitted
# on, for devices know the result by its digest.
_SERVERS = ("model.start", "features.fitted_", "features.names")


def started_with(config: DictConfig) -> str:
    """A digest, in hexadecimal, of all that a client is built from and a server has set.

    The server's and each client's are the same where they would do the same. Masks of clients of a
    secure sum that were started with other configurations do not cancel.

    Args:
        config: the server's, or that of a device or a simulated client.
    """
    text = json.dumps(_started(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def settings_of(config: DictConfig) -> dict[str, Any]:
    """Returns what ``started_with`` digests, by key, as a run header holds it: without infinities.

    Args:
        config: the server's, or that of a device or a simulated client.
    """
    text = json.dumps(_started(config), default=str)
    return json.loads(text, parse_constant=str)


@once
def _started(config: DictConfig) -> dict[str, Any]:
    public = {key: OmegaConf.select(config, key) for key in _PUBLIC}
    return {
        key: _equal(as_plain(value))
        for key, value in (*leaves(config), *public.items())
        if key not in _USUAL or value != _USUAL[key]
    }


def _equal(value: Any) -> Any:
    """``value`` with numbers that are equal written alike: 1, 1.0 and true are to a comparison."""
    if isinstance(value, list):
        return [_equal(item) for item in value]
    if isinstance(value, bool | int) and float(value) == value:
        return float(value)
    return value


def leaves(config: DictConfig) -> Iterator[tuple[str, Any]]:
    """Yields the settings that the client half is built from, with their values.

    Settings of the server alone are left out.
    """
    plain = with_knobs(config, resolve=True)
    for place in READ:
        node: Any = plain
        for part in place.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        for key, value in flat({place: node}).items():
            if not key.startswith(_SERVERS):
                yield key, value


def with_knobs(config: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Plain ``config`` in which both clients have what they take from their group.

    Args:
        config: the whole configuration, which is not changed.
        resolve: whether interpolations are resolved. Without, a client whose constructor takes
            ``K`` has ``${strategy.K}``, as conf/ would say it.
    """
    found: dict[str, Any] = as_plain(config, resolve)
    for group in ("strategy", "evaluation"):
        own = found[group]
        if own["client"] is None:
            continue
        for knob in instantiate.knobs_of(own["client"], own, group):
            own["client"][knob] = own[knob] if resolve else f"${{{group}.{knob}}}"
    return found


def as_plain(value: Any, resolve: bool = True) -> Any:
    """``value`` without OmegaConf's own types."""
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=resolve)
    return value
