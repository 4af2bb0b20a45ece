"""The one error that is meant for whoever typed the command."""


class ConfigError(Exception):
    """One sentence for the user: the key or file, what is wrong with it, what is allowed."""
