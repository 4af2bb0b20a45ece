"""A folder with only the files that Flower packs of this project.

Flower walks the whole folder that it is asked to pack, and resolves every path in it before it
looks at ``fab-include``. A project's folder holds its environment and its results, so that takes
ten seconds of processor time; the files that are really packed are a few hundred.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path


def copy_app(project: Path, folder: Path) -> Path:
    """Copy ``pyproject.toml`` and all that its ``fab-include`` names to ``folder``; returns it.

    ``project``: a checkout, or where a wheel was installed, which has the file within ``fl_app``.
    """
    known = project / "pyproject.toml", project / "fl_app" / "pyproject.toml"
    manifest = next(path for path in known if path.exists())
    settings = tomllib.loads(manifest.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(manifest, folder / "pyproject.toml")
    for pattern in settings["tool"]["flwr"]["app"]["fab-include"]:
        for path in project.glob(pattern):
            target = folder / path.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return folder
