"""Print what pyproject.toml requires, one requirement a line, for an image's layer of dependencies.

    python requirements.py [EXTRA ...]

Beside the project's own dependencies: those of each EXTRA, and what builds the project.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """Returns what builds the project, its dependencies and those of ``extras``.

    Args:
        pyproject: the content of pyproject.toml.
        extras: names of optional dependencies; none may name the project itself.

    Raises:
        KeyError: there is no such extra.
    """
    told = tomllib.loads(pyproject)
    found = [*told["build-system"]["requires"], *told["project"]["dependencies"]]
    for extra in extras:
        found += told["project"]["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(), sys.argv[1:])))
