"""What a user starts: the Flower apps, the `murmur` command, engines, results.

Files here are entrances: ``cli`` (the command), ``api`` (notebooks), ``server_app`` and
``client_app`` (Flower). ``config`` composes settings, ``run`` does a run on the server, ``engines``
say where, ``sweep`` does many, ``device`` answers on people's own devices; ``tools`` and
``tracking`` look at runs. Importing this package makes sure that Python finds our own packages
beside it (``PACKAGES``).
"""

from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "murmur-fl"  # our name on a package index, and that of Flower's bundles
# Top-level packages that stand beside this one: their names are fixed.
PACKAGES = ("strategies", "clients", "murmur")


def version() -> str:
    """Returns the installed version, such as 1.0.0; PackageNotFoundError where there is none."""
    from importlib import metadata  # not before it is asked for: many commands never do

    return metadata.version(DISTRIBUTION)


def require(extra: str, *modules: str) -> None:
    """ConfigError that names ``extra`` where one of its top-level ``modules`` is not installed."""
    from fl_app.config.errors import ConfigError

    for module in modules:
        if find_spec(module) is None:
            raise ConfigError(
                f"the package {module} is not installed: pip install '{DISTRIBUTION}[{extra}]'"
            )


def _require_own_packages() -> None:
    """ImportError where a user's folder has the name of one of ours and is found first."""
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"{name}: is missing beside {Path(__file__).parent}")
        found = Path(spec.origin)
        if found.resolve().parents[1] != home:
            hides = found.parent if found.stem == "__init__" else found
            raise ImportError(
                f"{hides} hides Murmur's own package of that name; start Python in another "
                "folder, or with -P"
            )


_require_own_packages()
