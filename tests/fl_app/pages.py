"""The commands that the project's pages name, and whether each could be typed as it stands there.

A command stands in a block, fenced or indented, or in a sentence, as code. ``read`` starts none: it
has the command's own program read the words. Those of a run are composed; of anything else the
options are parsed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import itertools
import os
import re
import runpy
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from fl_app.cli import TOOLS, main
from fl_app.config.compose import compose
from fl_app.config.groups import groups
from fl_app.config.overrides import to_overrides
from fl_app.config.plugins import take_option
from fl_app.sweep.sweep import Sweep

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "research")
PAGES = sorted(
    str(path.relative_to(PROJECT))
    for pattern in ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))
    for path in PROJECT.glob(pattern)
    if path.name != "CHANGELOG.md"  # which tells of commands that are gone
)
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
PROJECT_FILE = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)(?: {4,}.*\n)*")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PROGRAM = re.compile(r" *(?:[A-Z_]+=\S+ )*(?:murmur|python|make|flwr|pip) \S")
SETTING = re.compile(r"[a-z_][\w.]*=[^|.\\]")  # a key and a value, not left open
NOT_HERE = ("pytest", "plain_app.use")  # the second one is in the folder that the page copies
MISSING = re.compile(r"arguments are required|expected (at least )?one argument|must be given")
# What stands for a reader's own, and what may stand there.
PLACEHOLDERS = {
    "key=value": "seed=1",
    "key=a,b": "seed=1,2",
    "KEY=VALUE": "seed=1",
    "strategy=x": "strategy=fedavg",
    "strategy=X": "strategy=fedavg",
    "experiment=X": "experiment=digits_votes",
    "$SETTINGS": "seed=1",
    "$RUNTIME_PORT": "9092",
    "127.0.0.1:$RUNTIME_PORT": "127.0.0.1:9092",
    "GROUP": "partition",
    "HEX": "0" * 64,
    "KEY": "seed",
    "KIND": "Nonprofit",
    "QUESTION": "rounds",
    "STUDY": "sampling",
    "WORD": "audit",
    **dict.fromkeys(("A", "E", "M", "N", "P"), "1"),
}


def in_blocks(page: str) -> list[list[str]]:
    """The words of each command in a page's blocks, in their order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    found = [
        body
        for language, body in FENCED.findall(text)
        if language in ("bash", "sh") or (not language and PROGRAM.match(body))
    ]
    found += filter(PROGRAM.match, INDENTED.findall(FENCED.sub("", text)))
    lines = "\n".join(found).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def in_sentences(page: str) -> list[list[str]]:
    """The words of each command that a page's sentences name with something behind it."""
    text = FENCED.sub("", (PROJECT / page).read_text(encoding="utf-8"))
    spans = [" ".join(span.split()).replace("\\|", "|") for span in CODE.findall(text)]
    return [shlex.split(span) for span in spans if PROGRAM.match(span)]


def settings_in_sentences(page: str) -> list[list[str]]:
    """The words of each choice that a page's sentences name, with the settings behind it."""
    text = FENCED.sub("", (PROJECT / page).read_text(encoding="utf-8"))
    found = []
    for span in CODE.findall(text):
        with contextlib.suppress(ValueError):  # half a quote
            words = shlex.split(" ".join(span.split()))
            keys = [word.partition("=")[0] for word in words]
            are_told = all(SETTING.match(word) for word in words)
            if words and are_told and keys[0] in groups():
                found.append(words)
    return found


class _ReadError(BaseException):
    """Raised to end a program: a parser has read the words to the last."""


def read(words: Sequence[str], whole: bool = True) -> None:
    """Have a command's own program read its words, and start nothing.

    Programs that are neither ours nor Python's are left out.

    Args:
        words: the command.
        whole: whether words that the program needs must be there. A sentence names a command
            without them, and ``...`` says that they are left out.

    Raises:
        ValueError: it cannot read them, and why.
    """
    whole = whole and words[-1] != "..."
    for program, *rest in _variants(words):
        if program == "murmur" and (rest[0] in TOOLS or rest[0] in ("--help", "--version")):
            _parse(functools.partial(main, rest), rest[1:], whole)
        elif program == "murmur":
            _compose(rest)
        elif program == "python" and rest[0] == "-m" and rest[1] not in NOT_HERE:
            _read_module(rest[1], rest[2:], whole)
        elif program == "make":
            _require(f"\n{rest[0]}:" in MAKEFILE, f"make {rest[0]}: no such target")
        elif program == "flwr" and "--run-config" in rest:
            config = rest[rest.index("--run-config") + 1]
            compose(to_overrides(dict(re.findall(r'(\S+)="(.*?)"', config))))
        elif program == "pip":
            for extra in re.findall(r"(?:\.|-fl|\.whl)\[(.+?)\]", " ".join(rest)):
                missing = [name for name in extra.split(",") if f"\n{name} = [" not in PROJECT_FILE]
                _require(not missing, f"pip: no extra {missing}")


def _variants(words: Sequence[str]) -> Iterator[list[str]]:
    """A command with each of its alternatives (``a|b``), with values where it leaves them open."""
    typed = [_unbracketed(word) for word in itertools.takewhile(lambda word: word != "|", words)]
    while re.match(r"[A-Z_]+=", typed[0]):  # the environment
        typed = typed[1:]
    open_too = [PLACEHOLDERS.get(word, word) for word in typed if word != "..."]
    yield from map(list, itertools.product(*(word.split("|") for word in open_too)))


def _unbracketed(word: str) -> str:
    """A word of ``[--out FILE]`` without the bracket, which is no part of it."""
    is_part = word.count("[") == word.count("]") and not re.fullmatch(r"\[[A-Z]+\]", word)
    return word if is_part else word.strip("[]")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _compose(words: list[str]) -> None:
    """The settings of a run, or of every job of a sweep."""
    with patch.dict(os.environ):  # which --config-dir changes
        first, *rest = words = take_option(words)
        if first != "-m":
            compose(words)
        elif rest:
            Sweep.plan(rest)


def _read_module(name: str, words: list[str], whole: bool) -> None:
    """Words of ``python -m``."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        raise ValueError(f"python -m {name}: no such module")
    text = Path(spec.origin).read_text(encoding="utf-8")
    if "ArgumentParser" in text:
        _parse(functools.partial(runpy.run_module, name, run_name="__main__"), words, whole)
    else:
        _require(not words or "sys.argv" in text, f"python -m {name}: takes no words")


def _parse(start: Callable[[], object], words: list[str], whole: bool) -> None:
    """Start a program, which is ended where its parser has read the last of its words."""

    def ending(parse):
        def parse_and_end(parser, args=None, namespace=None):
            found = parse(parser, args, namespace)
            if args is None or list(args)[-1:] == words[-1:]:
                raise _ReadError
            return found

        return parse_and_end

    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        for name in ("parse_args", "parse_intermixed_args"):
            method = getattr(argparse.ArgumentParser, name)
            stack.enter_context(patch.object(argparse.ArgumentParser, name, ending(method)))
        stack.enter_context(patch("sys.argv", ["program", *words]))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(said))
        try:
            status = start()
        except _ReadError:
            return
        except SystemExit as end:
            status = end.code
    is_read = status in (0, None) or (not whole and MISSING.search(said.getvalue()))
    _require(bool(is_read), said.getvalue().strip())
