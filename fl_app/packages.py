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
        ConfigError: the package is not installed.
    """
    for entry in metadata.entry_points(group=group, name=name):
        return entry.load()
    raise ConfigError(
        f"needs the package {package}, which is not installed: {install_command(package)}"
    )
