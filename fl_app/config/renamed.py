"""Keys and choices of ``conf`` under their earlier names.

A word that is typed with an earlier name is answered with the present one. Words of recorded runs
are read with it, and so are their configurations.
"""

from omegaconf import DictConfig, OmegaConf, open_dict

CHOICES = {"partition": {"legacy": "privatekt_authors"}}
KEYS = {
    "strategy.aggregation": "aggregation",
    "strategy.trimmed": "aggregation.trimmed",
    "strategy.malicious": "aggregation.malicious",
    "strategy.selected": "aggregation.selected",
}
_RULES = {  # the classes of earlier ``strategy.aggregation``, and the settings that each reads
    "median": ("Median", ()),
    "trimmed_mean": ("TrimmedMean", ("trimmed",)),
    "krum": ("Krum", ("malicious", "selected")),
}


def new_choice(group: str, choice: str) -> str | None:
    """The present name of a group's ``choice``; None where it has no other."""
    return CHOICES.get(group, {}).get(choice)


def current(word: str) -> str:
    """An override of a recorded run, ``KEY=VALUE``, under its present name."""
    key, _, value = word.partition("=")
    if key in KEYS:
        return f"{KEYS[key]}={value}"
    choice = new_choice(key, value)
    if choice is None:
        return word
    return f"{key}={choice}"


def with_present_keys(config: DictConfig) -> DictConfig:
    """Returns a recorded ``config`` with the group ``aggregation``, where its strategy had keys."""
    rule = OmegaConf.select(config, "strategy.aggregation")
    if rule not in _RULES or "aggregation" in config:
        return config
    name, settings = _RULES[rule]
    with open_dict(config):
        made = {"_target_": f"strategies.robust.{name}", "_partial_": True}
        for key in ("aggregation", "trimmed", "malicious", "selected"):
            value = config.strategy.pop(key)
            if key in settings:
                made[key] = value
        config.aggregation = made
        config.strategy.server.aggregation = made
    return config
