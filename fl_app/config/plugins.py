"""A researcher's own folders of classes and of files that name them (``--config-dir``).

A folder holds ``conf/``, laid out as ours is, and Python files beside it. A ``_target_`` that
begins with a dot is a class in one of these files, by its path in the folder:

    mine/conf/model/hernet.yaml    # _target_: .hernet.HerNet
    mine/hernet.py

Its choices join those of our groups, in every process of a simulation: the environment variable
``MURMUR_PLUGINS`` names the folders, and processes inherit it. The folder itself is never put on
Python's import path. Its files are modules of a private package instead, so they may have any
names, also those of our packages: a folder that is a Flower app with ``strategies/`` and
``clients/`` of its own works. They import one another relatively (``from . import layers``).

A device ignores all this: there its owner installs what runs (``fl_app.device.agreement``).
"""

import ast
import hashlib
import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

from fl_app.config.errors import ConfigError, nearest

VARIABLE = "MURMUR_PLUGINS"  # folders, separated as in PATH
OPTION = "--config-dir"


def take_option(arguments: list[str]) -> list[str]:
    """``arguments`` without ``--config-dir FOLDER``, which this process and its children heed.

    Raises:
        ConfigError: no folder follows, or it holds no conf/.
    """
    rest: list[str] = []
    folders: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name != OPTION:
            rest.append(word)
            continue
        folder = value if equals else next(words, "")
        if not folder:
            raise ConfigError(f"{OPTION}: must be followed by a folder")
        path = Path(folder).expanduser().absolute()
        _require_conf(path)
        folders.append(str(path))
    if folders:
        before = [path for path in (os.environ.get(VARIABLE),) if path]
        os.environ[VARIABLE] = os.pathsep.join([*folders, *before])
    return rest


def forget() -> None:
    """Let this process, a device's, know no folders but what is installed."""
    os.environ.pop(VARIABLE, None)


def conf_folders(ours: Path) -> tuple[Path, ...]:
    """The conf/ of each folder that is named, in that order.

    Args:
        ours: our own conf/.

    Raises:
        ConfigError: a folder is missing, or one of its files has the name of one of ours, which
            it would hide.
    """
    found: list[Path] = []
    for folder in _folders():
        _require_conf(folder)
        conf = folder / "conf"
        for path in sorted(conf.rglob("*.yaml")):
            if (ours / path.relative_to(conf)).exists():
                raise ConfigError(f"{path}: has the name of one of Murmur's own files; rename it")
        found.append(conf)
    return tuple(found)


def own_part(name: str) -> Any:
    """The class or function ``name`` in a Python file of such a folder; imports the file.

    Args:
        name: the file's path in the folder with dots, then the name in it: ``hernet.HerNet`` is
            ``HerNet`` of ``hernet.py``. A dot before it is allowed.

    Raises:
        ConfigError: no folder has such a file, or two have; it cannot be imported, or has no such
            name.
    """
    module, _, part = name.removeprefix(".").rpartition(".")
    homes = _homes(module)
    if not homes:
        raise ConfigError(f"{name}: is in no folder of {OPTION} or {VARIABLE}")
    if len(homes) > 1:
        raise ConfigError(f"{name}: is in {homes[0]} and in {homes[1]}; rename one of these files")
    [folder] = homes
    try:
        found = importlib.import_module(f"{_package(folder)}.{module}")
    except Exception as error:  # whatever a user's own file raises
        reason = f"{name}: {module} of {folder} cannot be imported ({error})"
        missing = getattr(error, "name", None)
        if isinstance(error, ImportError) and missing and _is_file(folder, missing):
            reason += "; files of your folder import one another relatively: `from . import ...`"
        raise ConfigError(reason) from error
    if not hasattr(found, part):
        raise ConfigError(f"{name}: {found.__file__} has no {part!r}; {nearest(part, vars(found))}")
    return getattr(found, part)


def is_own(target: str) -> bool:
    """Returns True if a folder has a file for ``target``, a class named without its dot."""
    return bool(_homes(target.rpartition(".")[0]))


def file_of(target: str) -> Path | None:
    """The user's own Python file that ``target`` names a class of; None: it is nobody's own."""
    module = target.removeprefix(".").rpartition(".")[0]
    homes = _homes(module)
    return _file(homes[0].joinpath(*module.split("."))) if homes else None


def imports_of(file: Path) -> set[Path]:
    """The user's own Python files that ``file`` imports, and those that they import in turn."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        for place in _imported(waiting.pop()):
            if place != file and place not in found:
                found.add(place)
                waiting.append(place)
    return found


def _imported(file: Path) -> list[Path]:
    """The files that a file imports relatively, which is how own files import one another."""
    found = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        package = file.parents[node.level - 1]
        if node.module is not None:
            package = package.joinpath(*node.module.split("."))
        for place in (package, *(package / name.name for name in node.names)):
            module = _file(place)
            if module is not None:
                found.append(module)
    return found


def _homes(module: str) -> list[Path]:
    """The folders that have the file of ``module``."""
    return [folder for folder in _folders() if _is_file(folder, module)]


def _is_file(folder: Path, module: str) -> bool:
    """Returns True if ``module`` (``nets.small``) is a Python file or a package in ``folder``."""
    names = module.split(".")
    if not all(name.isidentifier() for name in names):
        return False  # no way out of the folder
    return _file(folder.joinpath(*names)) is not None


def _file(place: Path) -> Path | None:
    """The file of the module or package at ``place``, a path without its ending."""
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def _package(folder: Path) -> str:
    """The name of the private package whose modules are the files of ``folder``.

    It follows from the folder's path, so that all processes of a run have the same.
    """
    name = f"murmur_own_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    if name not in sys.modules:
        package = types.ModuleType(name, f"The Python files of {folder}.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _folders() -> list[Path]:
    named = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return [Path(text).expanduser().absolute() for text in named]


def _require_conf(folder: Path) -> None:
    if not (folder / "conf").is_dir():
        raise ConfigError(f"{OPTION}={folder}: must be a folder that holds conf/")
