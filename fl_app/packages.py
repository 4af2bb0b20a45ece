"""Finds what the packages beside the core bring: tools and checks, by their entry points.

``packages/`` holds them; each is installed by path or by wheel beside the core, since their names
are on no index. The core imports none of them.
"""

from importlib import metadata
from typing import Any

from fl_app.config.errors import ConfigError


def install_command(package: str) -> str:
    """Returns the command that installs ``package`` beside the core."""
    return f"in a checkout, `pip install ./packages/{package}`; elsewhere, its wheel"


def load_entry(group: str, name: str, package: str) -> Any:
    """Loads the entry point ``name`` of ``group``.

    Args:
        group: such as ``murmur.tools``.
        name: of the entry point.
        package: the distribution that brings it.

    Raises:
        ConfigError: the package is not installed, or a library that it needs is missing.
    """
    for entry in metadata.entry_points(group=group, name=name):
        try:
            return entry.load()
        except ImportError as error:
            raise ConfigError(f"{package} cannot be loaded: {error}") from error
    raise ConfigError(
        f"needs the package {package}, which is not installed: {install_command(package)}"
    )


def require_entry(group: str, name: str, package: str, why: str) -> None:
    """Raises ConfigError unless ``package`` brings an entry point; loads nothing.

    Args:
        group: such as ``murmur.tools``.
        name: of the entry point.
        package: the distribution that brings it.
        why: what needs it, for the message.
    """
    if not metadata.entry_points(group=group, name=name):
        raise ConfigError(f"{why}: needs the package {package}: {install_command(package)}")
