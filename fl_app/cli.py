"""The `murmur` command.

``murmur key=value ...`` runs once, ``murmur -m key=a,b ...`` sweeps, ``murmur WORD ...`` opens one
of the tools below. Each tool is a function ``(argv) -> exit status`` of a module in
``fl_app.tools``, imported when it is called: ``main``, or what ``SHARED`` names where several share
a module. Tools of ``PACKAGED`` come from packages beside the core (``fl_app.packages``).

Exit statuses: 0, 1 where a run or what a tool looked at failed, 2 where the input is wrong, 130
after Ctrl-C. What is wrong with the input is one sentence on standard error.
"""

import argparse
import atexit
import contextlib
import errno
import gc
import importlib
import io
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fl_app
import fl_app.console
from fl_app.config import plugins
from fl_app.config.errors import ConfigError, nearest
from fl_app.packages import load_entry
from murmur.format import pluralize, printable

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from fl_app.run.data_card import DataCard
    from fl_app.run.results import RunFolder

NEWLINE = "\n"
TOOLS = {
    "advise": "what to choose: a strategy's settings, or rounds",
    "audit": "attack a release and measure its epsilon",
    "completion": "a script with which your shell completes murmur's words",
    "data": "what was understood of the data: rows, owners, classes, inputs",
    "device": "answer a SuperNode with the code that is installed here, and with no other",
    "doctor": "check a device or a server, and say what is missing",
    "export": "write the public pool that devices need a copy of",
    "enrol": "enter a device's key and its clients into the server's table",
    "experiments": "list the settings that are ready to run, with time and expected result",
    "guard": "answer a SuperNode with anybody's Flower app, locked in and protected",
    "ledger": "print or verify a device's ledger",
    "onnx": "write a run's model as ONNX",
    "predict": "what a run's model says of pictures, tables, texts",
    "report": "show a run or a sweep as one HTML page",
    "rerun": "do a run again, and compare its bits",
    "resume": "go on with a run that was interrupted",
    "server-key": "make the key with which a server signs what it asks, for owners to pin",
    "statement": "print a run's privacy statement for a registry, an auditor or a patient",
    "supernode": "Flower's SuperNode for a device: runs nothing that it is sent, never gives up",
    "verify": "compare a run's signed statement with what a device was asked",
}

# Tools of packages beside the core: word -> package.
PACKAGED = {"audit": "murmur-report", "guard": "murmur-guard", "report": "murmur-report"}
# Tools that share a module: word -> module:function.
SHARED = {
    "completion": "completion:completion",
    "experiments": "completion:list_experiments",
    "onnx": "predict:onnx",
    "predict": "predict:predict",
    "rerun": "rerun:rerun",
    "resume": "rerun:resume",
    "server-key": "server_key:main",
    "supernode": "device:supernode",
}

# Options of Hydra's that have no use here, and what to say instead.
_INSTEAD = {
    **dict.fromkeys(
        ("-cn", "--config-name", "-cp", "--config-path"),
        "Murmur has one configuration; choose among its files with GROUP=NAME, such as "
        "experiment=digits_votes, and bring your own with --config-dir FOLDER",
    ),
    "-cd": "write --config-dir FOLDER",
    "--experimental-rerun": "do a run again with `murmur rerun RUN`",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command.

    Args:
        argv: the words after ``murmur``; None: those of this process.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = "murmur"
    signal.signal(signal.SIGTERM, _terminate)
    fl_app.console.keep_going()
    try:
        _require_working_directory()
        arguments = fl_app.console.take_option(plugins.take_option(arguments))
        tool = arguments[0] if arguments and arguments[0] in TOOLS else None
        name = "murmur" if tool is None else f"murmur {tool}"
        if tool is None:
            status = _hydra(arguments)
        else:
            opened = _tool(tool)
            _collect_garbage()
            status = opened(arguments[1:])
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(f"{name}: {printable(error, NEWLINE)}", file=sys.stderr)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{name}: {error.filename}: {error.strerror}{_mend(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 2


def _mend(error: OSError, again: str = "the same command") -> str:
    """Returns what to do about a full disk, and nothing for other errors.

    Args:
        error: with its number.
        again: what goes on when there is room.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"; make room on that disk, then {again} goes on"
    return ""


def _require_working_directory() -> None:
    """ConfigError where the folder that the command was typed in is no more."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "the working directory is no more; change to a folder that exists (cd)"
        ) from None


def _tool(word: str) -> Callable[[list[str]], int]:
    """Returns what a word opens: an entry of its package, or a function of its module."""
    if word in PACKAGED:
        entry: Callable[[list[str]], int] = load_entry("murmur.tools", word, PACKAGED[word])
        return entry
    module, _, function = SHARED.get(word, f"{word}:main").partition(":")
    opened: Callable[[list[str]], int] = getattr(
        importlib.import_module(f"fl_app.tools.{module}"), function
    )
    return opened


def _collect_garbage() -> None:
    """Start Python's garbage collector, which ``fl_app.__main__`` has held back until here.

    While modules are imported there is nothing to collect, and it would look through all of them
    again and again. It leaves alone what is there now.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _terminate(number: int, _: object) -> None:
    """End as Ctrl-C does, so that nothing that was started goes on without us."""
    signal.signal(number, signal.SIG_IGN)  # a second one must not cut short the cleaning up
    raise KeyboardInterrupt


def _hydra(arguments: list[str]) -> int:
    """Check the command, then let Hydra start its run or its jobs."""
    if arguments in (["--help"], ["-h"]):
        from fl_app.config.groups import help_text

        print(help_text(TOOLS))
        return 0
    if len(arguments) == 2 and arguments[0] in ("--help", "-h"):
        from fl_app.config.groups import help_about

        print(help_about(arguments[1]))
        return 0
    from fl_app.config.compose import compose

    if arguments == ["--version"]:
        print(f"murmur {fl_app.version()}")
        return 0
    if arguments and re.fullmatch(r"[\w-]+", arguments[0]) and arguments[0][0] != "-":
        raise ConfigError(_not_a_tool(*arguments[:2]))
    options = _options(arguments)
    words: list[str] = options.overrides
    if options.multirun:
        return _sweep(words, arguments)
    config = compose(words)
    if config.sweep is not None:
        raise ConfigError(f"sweep={config.sweep}: names a sweep; start one with `murmur -m`")
    if config.privacy.search == "charged":
        from fl_app.sweep.sweep import NO_SEARCH

        raise ConfigError(NO_SEARCH)
    if len(words) == len(arguments) and not any(word.startswith("hydra") for word in words):
        return run(words)  # nothing that needs Hydra's own main, which composes twice more
    statuses: list[int] = []
    _start(lambda overrides: statuses.append(run(overrides)), arguments, words)
    return max(statuses, default=0)


def _not_a_tool(word: str, value: str = "VALUE") -> str:
    """Returns the error message for a ``word`` that is no tool: a key without =, or a slip."""
    if _is_key(word):
        return f"{word} {value}: write {word}={value}"
    return f"{word}: is no tool; {nearest(word, TOOLS)}"


def _is_key(word: str) -> bool:
    """Returns True if ``word`` is a setting, or a group of them."""
    from fl_app.config.compose import known_keys
    from fl_app.config.groups import groups

    return word in groups() or word in known_keys()


def _options(arguments: list[str]) -> argparse.Namespace:
    """The command as Hydra's parser reads it.

    Raises:
        ConfigError: names an option that is none of Hydra's, with the nearest, or one that can
            mean nothing here, with what to use.
    """
    from murmur.compat.hydra_parser import hydra_parser, option_names

    parser = hydra_parser()
    known = option_names(parser)
    for word, following in zip(arguments, [*arguments[1:], "VALUE"], strict=True):
        name, _, value = word.partition("=")
        if name in _INSTEAD:
            raise ConfigError(f"{word}: {_INSTEAD[name]}")
        if name.startswith("--") and _is_key(name[2:]):
            raise ConfigError(f"{word}: write {name[2:]}={value or following}, without dashes")
        if name.startswith("-") and name not in known:
            raise ConfigError(f"{word}: is no option; {nearest(name, known)}")
    try:
        with contextlib.redirect_stderr(io.StringIO()) as usage:
            return parser.parse_intermixed_args(arguments)
    except SystemExit:
        reason = usage.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(f"{reason}; see `murmur --hydra-help`") from None


def _sweep(words: list[str], arguments: list[str]) -> int:
    """All jobs of a sweep that are not finished yet; 0 if all of them are in the end."""
    from fl_app.config.overrides import quoted
    from fl_app.sweep.on_ray import run_jobs, warm_up
    from fl_app.sweep.search import conclusion, replaced
    from fl_app.sweep.show import SweepProgress, show_sweep
    from fl_app.sweep.sweep import Sweep, is_hydra

    console = fl_app.console.console()
    sweep = Sweep.plan(words)
    if not any(map(is_hydra, words)):
        warm_up(sweep)
    with console.status(f"checking {pluralize(len(sweep.unfinished()), 'job')}"):
        cards, expected = sweep.check()
    for card in cards:
        _show_card(card, console)
    for settings, line in expected:
        print(f"{settings or 'all jobs'}: {line}")
    sweep.begin()
    trials = None
    if sweep.search is not None:
        trials, added = sweep.search.drawn(sweep.folder.path)
        arguments = replaced(arguments, added)
    _collect_garbage()
    progress = SweepProgress(sweep, console, trials)
    try:
        with progress:
            if any(map(is_hydra, words)):  # a launcher or a sweeper of Hydra's
                where = f"hydra.sweep.dir={quoted(sweep.folder.path)}"
                _start(_job, [*arguments, where], words)
            else:
                run_jobs(sweep)
    except KeyboardInterrupt:
        print("murmur: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        show_sweep(sweep.folder, console)
        if sweep.search is not None:
            for line in conclusion(sweep.folder.path, sweep.search):
                console.print(line, soft_wrap=True, highlight=False, markup=False)
        atexit.register(_silence)  # runs before what libraries have registered until here
    jobs = sweep.jobs or sweep.folder.jobs()
    return 0 if len(sweep.folder.finished(jobs)) == len(jobs) else 1


def _show_card(card: "DataCard", console: "Console") -> None:
    """Say what was understood of the data."""
    for line in card.shown(console.width):
        console.print(line, soft_wrap=True, highlight=False)


def _silence() -> None:
    """Let no library's words at the end of the process stand below a sweep's table."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())


def _job(overrides: list[str]) -> float:
    """One job of a sweep, in whatever process the launcher has chosen.

    Args:
        overrides: the job's own.

    Returns:
        What a sweeper optimises.
    """
    from hydra.core.hydra_config import HydraConfig

    from fl_app.sweep.sweep import Job, SweepFolder, run_job

    settings = HydraConfig.get()
    base = Path(settings.runtime.cwd)
    job = Job.of(overrides, base, settings.job.num)
    return run_job(job, SweepFolder(Path(settings.sweep.dir)), base)


def _start(job: Callable[[list[str]], Any], arguments: list[str], words: list[str]) -> None:
    """Give the command to Hydra, which calls ``job`` with the overrides of each job.

    Args:
        job: what to do with them.
        arguments: the command's words, options among them.
        words: those of ``arguments`` that are overrides.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException

    from fl_app.config.compose import for_hydra
    from fl_app.config.groups import CONF

    def task(_: "DictConfig") -> Any:
        started.append(True)
        return job(list(HydraConfig.get().overrides.task))

    started: list[bool] = []
    more = [f"file://{folder}" for folder in plugins.conf_folders(CONF)]
    if more:
        arguments = [*arguments, f"hydra.searchpath={json.dumps(more)}"]
    given = dict(zip(words, for_hydra(words), strict=True))
    sys.argv = [sys.argv[0], *(given.get(word, word) for word in arguments)]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # or Hydra prints errors itself, and exits
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    except (HydraException, ValueError) as error:
        if started and not isinstance(error, HydraException):
            raise  # a bug in what ran
        raise ConfigError(" ".join(str(error).split())) from error


def run(overrides: list[str]) -> int:
    """One run from its overrides to its summary; also what `murmur resume` and `rerun` end in.

    Args:
        overrides: as typed behind ``murmur``.

    Returns:
        0; 1 where the run failed or no round was accepted, 130 where it was interrupted.

    Raises:
        ConfigError: the settings cannot be; nothing has been started.
    """
    from fl_app.run.prepare import opening_lines, prepare

    console = fl_app.console.console()
    ready = prepare(overrides)  # which starts the engine before more is imported
    from fl_app.run.progress import LiveProgress, show_end
    from murmur.round.task import RunError

    _collect_garbage()
    folder = ready.folder
    _show_card(ready.card, console)
    for line in opening_lines(ready):
        console.print(line, style="yellow", highlight=False)
    try:
        with LiveProgress(folder, ready.rounds, console, ready.adversary, ready.score):
            ready.run()
    except KeyboardInterrupt:
        print(f"murmur: interrupted; {_goes_on(folder)}", file=sys.stderr)
        return 130
    except (RunError, ConfigError) as error:
        print(f"murmur: the run failed: {printable(error, NEWLINE)}", file=sys.stderr)
        return 1
    except OSError as error:
        mended = _mend(error, f"`murmur resume {shlex.quote(str(folder.path))}`")
        if not mended:
            raise
        print(f"murmur: {error.filename or folder.path}: {error.strerror}{mended}", file=sys.stderr)
        return 1
    show_end(folder, ready.labels, console)
    if any(row["counted"] for row in folder.rows() if row["round"] > 0):
        return 0
    print("murmur: no round was accepted: never did the quorum of clients answer", file=sys.stderr)
    return 1


def _goes_on(folder: "RunFolder") -> str:
    """How the interrupted run in ``folder`` goes on, if it does."""
    from fl_app.run.progress import shown_path

    begun = folder.rows() or folder.has_ledger()
    if begun and not folder.checkpoint_path.exists():
        return f"it kept no checkpoints; what it has done is in {folder.path}"
    return f"`murmur resume {shown_path(folder.path)}` goes on from here"


if __name__ == "__main__":
    sys.exit(main())
