"""A researcher's own folders of classes and of files that name them (``--config-dir``).

A folder holds ``conf/``, laid out as ours is, and Python files beside it:

    mine/conf/model/hernet.yaml    # _target_: hernet.HerNet
    mine/hernet.py

Its choices join those of our groups, and its modules can be imported, in every process of a
simulation: the environment variable ``MURMUR_PLUGINS`` names the folders, and processes inherit it.
A device ignores it: there its owner installs what runs (``fl_app.device.agreement``).
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from fl_app import PACKAGES
from fl_app.config.errors import ConfigError, nearest

VARIABLE = "MURMUR_PLUGINS"  # folders, separated as in PATH
OPTION = "--config-dir"


def take_option(arguments: list[str]) -> list[str]:
    """``arguments`` without ``--config-dir FOLDER``, which this process and its children heed."""
    rest, folders = [], []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name != OPTION:
            rest.append(word)
        elif folder := value if equals else next(words, ""):
            path = Path(folder).expanduser().absolute()
            if not (path / "conf").is_dir():
                raise ConfigError(f"{OPTION}={path}: must be a folder that holds conf/")
            folders.append(str(path))
        else:
            raise ConfigError(f"{OPTION}: must be followed by a folder")
    if folders:
        before = [path for path in (os.environ.get(VARIABLE),) if path]
        os.environ[VARIABLE] = os.pathsep.join([*folders, *before])
    return rest


def forget() -> None:
    """Let this process, a device's, know no folders but what is installed."""
    os.environ.pop(VARIABLE, None)


def conf_folders(ours: Path) -> tuple[Path, ...]:
    """The conf/ of each folder named; its Python files can be imported from now on.

    ``ours``: our own conf/. ConfigError where a folder is missing, or has a name that is taken.
    """
    found = []
    for folder in _folders():
        conf = folder / "conf"
        if not conf.is_dir():
            raise ConfigError(f"{OPTION}={folder}: must be a folder that holds conf/")
        for path in sorted(conf.rglob("*.yaml")):
            if (ours / path.relative_to(conf)).exists():
                raise ConfigError(f"{path}: has the name of one of Murmur's own files; rename it")
        for own in ("fl_app", *PACKAGES):
            if (folder / own).exists() or (folder / f"{own}.py").exists():
                raise ConfigError(f"{folder / own}: has the name of one of Murmur's own packages")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        found.append(conf)
    return tuple(found)


def own_part(name: str) -> Any:
    """What ``module.name`` stands for in a Python file of such a folder.

    ConfigError where no folder has it, or the file cannot be imported.
    """
    module, _, part = name.rpartition(".")
    for folder in _folders():
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        if not module or not file.is_file():
            continue
        try:
            found = importlib.import_module(module)
        except Exception as error:  # whatever a user's own file raises
            raise ConfigError(f"{name}: {file} cannot be imported ({error})") from error
        if Path(str(found.__file__)).resolve() != file.resolve():
            raise ConfigError(f"{name}: {found.__file__} has the same name as {file}; rename that")
        if not hasattr(found, part):
            raise ConfigError(f"{name}: {file} has no {part!r}; {nearest(part, vars(found))}")
        return getattr(found, part)
    raise ConfigError(f"{name}: is in no folder of {OPTION} or {VARIABLE}")


def _folders() -> list[Path]:
    named = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return [Path(text).expanduser().absolute() for text in named]
