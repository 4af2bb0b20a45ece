"""A copy of a configuration is what copy.deepcopy makes: equal, whole, and apart from the first."""

import copy

from omegaconf import OmegaConf

from fl_app.config.compose import installed
from murmur.compat.omegaconf_copy import copy_of


def state(node):
    """All that OmegaConf keeps about ``node`` and what is in it, but for parents."""
    about = vars(node._metadata)
    content = vars(node).get("_content", vars(node).get("_val"))
    if isinstance(content, dict):
        return type(node), about, {key: state(child) for key, child in content.items()}
    if isinstance(content, list):
        return type(node), about, [state(child) for child in content]
    return type(node), about, content


def test_a_copy_is_that_of_deepcopy():
    config = installed(("strategy=kd_dpfl", "experiment=digits_kd_dpfl"))
    before = copy.deepcopy(config)
    made = copy_of(config)
    assert state(made) == state(before)
    OmegaConf.set_struct(made, False)
    made.seed = 99
    made.federation.new = {"a": [1]}
    made.about.clear()
    OmegaConf.resolve(made)
    OmegaConf.set_readonly(made, True)
    assert made.federation.new._get_root() is made
    assert state(config) == state(before)


def test_resolvers_of_a_copy_keep_their_own_values():
    OmegaConf.register_new_resolver("drawn", lambda: object(), use_cache=True, replace=True)
    config = OmegaConf.create({"a": "${drawn:}", "b": ["${a}", None]})
    first, second = copy_of(config), copy_of(config)
    assert first.a is first.b[0]
    assert first.a is not second.a
    assert not config._metadata.resolver_cache
