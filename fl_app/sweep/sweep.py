"""A sweep: one folder for all its jobs, so that the same command goes on where it was killed.

| in ``results_dir/sweep-NAME`` | holds |
|---|---|
| ``KEY/`` | one job's run folder; ``KEY`` follows from the job's settings alone (``job_key``) |
| ``sweep.json`` | ``{"overrides": [typed words], "jobs": [{"key": ..., "overrides": [...]}]}`` |
| ``sweep.md`` | the table at the end (``show_sweep``) |

The jobs may run in other processes, on other machines: what happened is read from the folders.

``Sweep.plan`` reads the command and writes nothing; ``Sweep.begin`` notes its jobs; ``run_job``
does one of them in whatever process that is, and notes a failure where the others find it.
"""

import fcntl
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.job_key import job_key, settings_digest
from fl_app.config.overrides import expand_sweep, is_file_name, one_line, parsed, results_root
from fl_app.run.results import RunFolder, RunInUseError
from fl_app.run.scores import compared_score
from fl_app.sweep.search import Search, is_search
from murmur.files import owner_only_folder, replace_file
from murmur.format import pluralize

if TYPE_CHECKING:
    from fl_app.run.data_card import DataCard

NO_SEARCH = (
    "privacy.search=charged: counts what the choice of a search's best trial costs; start one with "
    "`murmur -m hydra/sweeper=optuna ...`"
)
_LOOK_SECONDS = 1.0  # how often who waits for another process looks whether it is done
_INLINE = "fl_app.engines.inline.InlineEngine"


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes:
        key: ten hexadecimal digits that follow from the settings (``job_key``), and the
            name of the job's folder.
        overrides: the words that differ from a run without settings.
    """

    key: str
    overrides: list[str]

    @classmethod
    def of(cls, words: Sequence[str], base: Path, trial: int = 0) -> "Job":
        """The job of these overrides; relative paths in them start in ``base``.

        Args:
            words: its overrides.
            base: where they were typed.
            trial: of a search. Where that is charged equal settings that were drawn twice are two
                jobs: what the choice costs is known for independent ones only.

        Raises:
            ConfigError: they cannot be composed.
        """
        return cls.composed(words, compose(words), base, trial)

    @classmethod
    def composed(
        cls, words: Sequence[str], config: DictConfig, base: Path, trial: int = 0
    ) -> "Job":
        """``of`` where ``config`` is what ``words`` compose to."""
        key = job_key(config, base)
        if config.privacy.search == "charged":
            key += f"-{trial}"
        return cls(key, list(words))


class SweepFolder:
    """A sweep's folder, and what it says about its jobs.

    Nothing is kept in memory: each call reads the files, which other processes may be changing.

    Args:
        path: of the folder; made by ``add``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def jobs(self) -> list[Job]:
        """All jobs known so far, in the order in which they were asked for; none without a folder.

        A search adds its jobs one by one, as its sweeper draws them.
        """
        return [Job(**job) for job in self._read()["jobs"]]

    def add(self, jobs: Sequence[Job], overrides: Sequence[str] | None = None) -> None:
        """Note ``jobs`` that are not listed yet, and the command's words if given.

        Processes may add at the same time: a lock is held, and the list is replaced as a whole.

        Args:
            jobs: one that is listed already keeps its place and its words.
            overrides: the words of a command that begins. Jobs of an earlier command are then
                listed no longer, unless their folder is there. None: no command begins.
        """
        owner_only_folder(self.path)
        with open(self.path / ".lock", "w") as lock:  # a file: network disks lock no folders
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self._read()
            listed = {job["key"]: job for job in content["jobs"]}
            if overrides is not None:
                content["overrides"] = list(overrides)
                # A job of an earlier command stays while its folder does.
                listed = {key: j for key, j in listed.items() if (self.path / key).is_dir()}
            for job in jobs:
                listed.setdefault(job.key, {"key": job.key, "overrides": job.overrides})
            content["jobs"] = list(listed.values())
            replace_file(self.path / "sweep.json", json.dumps(content, indent=1).encode())

    def metrics(self, job: Job) -> dict[str, Any] | None:
        """A finished job's figures, as its ``metrics.json`` has them; None while it is not."""
        return _json(self.path / job.key / "metrics.json")

    def statement(self, job: Job) -> dict[str, Any] | None:
        """A finished job's privacy statement as plain values; None before there is one."""
        return _json(self.path / job.key / "privacy.json")

    def error(self, job: Job) -> str | None:
        """Why a job failed in its last attempt, in one line; None where it did not."""
        return (_json(self.path / job.key / "error.json") or {}).get("error")

    def note_error(self, job: Job, why: Exception) -> None:
        """Say in the job's folder why it failed, or that the process which did it is gone."""
        from murmur.round.task import in_words

        RunFolder(self.path / job.key).save_error(" ".join(in_words(why).split()))

    def finished(self, jobs: Sequence[Job]) -> list[Job]:
        """Returns the ``jobs`` that have their final figures."""
        return [job for job in jobs if (self.path / job.key / "metrics.json").exists()]

    def _read(self) -> dict[str, Any]:
        return _json(self.path / "sweep.json") or {"overrides": [], "jobs": []}


def _json(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@dataclass(frozen=True)
class Sweep:
    """One command ``murmur -m``, before it starts.

    Attributes:
        folder: ``results_dir/sweep-NAME``; without a name it follows from the jobs' keys, so that
            the same command finds it again.
        overrides: the words typed.
        jobs: all jobs, finished or not; empty for a search, whose sweeper draws them.
        rounds: how many rounds each job has, by key.
        search: what a search is, which has no jobs yet.
        single: whether every job keeps one core busy and no more, so that many run at a time. Also
            true for a search, of which nothing is known yet.
    """

    folder: SweepFolder
    overrides: list[str]
    jobs: list[Job]
    rounds: dict[str, int] = field(default_factory=dict)
    single: bool = False
    search: Search | None = None

    @classmethod
    def plan(cls, overrides: Sequence[str]) -> "Sweep":
        """Compose every job of the command; nothing is written.

        Two jobs with the same settings are one. Of a search only the words that hold for all jobs
        can be checked.

        Args:
            overrides: as typed behind ``murmur -m``, those about Hydra among them.

        Raises:
            ConfigError: a job's settings cannot be composed, ``run_dir`` is set, or the sweep's
                name is no name of a folder.
        """
        varied = [o.input_line or "" for o in parsed(overrides) if o.is_sweep_override()]
        fixed = [word for word in overrides if word not in varied]
        search = is_search(fixed)
        planned = [] if search else expand_sweep([w for w in overrides if not is_hydra(w)])
        configs = [compose(fixed)] if search else _composed(planned)
        base = configs[0]
        searched = None
        if search:
            searched = Search.of(fixed, base)
            added = [word for word in searched.added if not is_hydra(word)]
            base = compose([*fixed, *added])
        elif base.privacy.search == "charged":
            raise ConfigError(NO_SEARCH)
        if base.run_dir is not None:
            raise ConfigError(
                f"run_dir={base.run_dir}: a sweep has a folder for each job; name the sweep with "
                "sweep=NAME, and where it goes with results_dir=PATH"
            )
        jobs: list[Job] = []
        rounds: dict[str, int] = {}
        single = True
        if search:
            name = settings_digest([job_key(base, Path.cwd()), sorted(varied)])
        else:
            for words, config in zip(planned, configs, strict=True):
                job = Job.composed(words, config, Path.cwd())
                if job.key not in rounds:
                    jobs.append(job)
                    rounds[job.key] = int(config.federation.num_rounds)
                    single = single and _is_single(config)
            name = settings_digest(sorted(rounds))
        path = results_root(base.results_dir) / f"sweep-{_name(base) or name}"
        return cls(SweepFolder(path), list(overrides), jobs, rounds, single, searched)

    def unfinished(self) -> list[Job]:
        """The jobs that have no final figures yet."""
        return [job for job in self.jobs if self.folder.metrics(job) is None]

    def check(self) -> tuple[list["DataCard"], list[tuple[str, str]]]:
        """Build every unfinished job as its run will; of jobs that differ in their seed, one.

        It takes a fraction of a second for each, and what is read here need not be read again by
        the jobs, which are forks of this process.

        Returns:
            The card of each data set; and what sets each job apart from all others, and what it is
            expected to reach: none where nothing is known beforehand.

        Raises:
            ConfigError: names all jobs that cannot run.
        """
        unfinished = [job.overrides for job in self.unfinished()]
        if not unfinished:
            return [], []  # and import nothing
        from fl_app.run.prepare import forecast_of, validated

        cards: dict[DataCard, DataCard] = {}
        expected: list[tuple[str, str]] = []
        refused: dict[str, str] = {}
        for own, words in _by_setting(unfinished).items():
            try:
                run = validated(words)
            except ConfigError as error:
                refused[own] = one_line(error)
                continue
            card = run.card
            cards.setdefault(replace(card, left_out=(), clients=None), card)
            forecast = forecast_of(run)
            if forecast is not None:
                expected.append((own, f"expected: {forecast.text()}"))
        _refuse(refused, len(_by_setting(unfinished)))
        return list(cards.values()), expected

    def begin(self) -> None:
        """Note the jobs on disk, so that a kill loses none; earlier failures are past.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        try:
            self.folder.add(self.jobs, self.overrides)
            for job in self.folder.jobs():
                (self.folder.path / job.key / "error.json").unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.folder.path}: cannot be written ({error.strerror}); choose another folder "
                "with results_dir=PATH"
            ) from error


def _by_setting(jobs: Sequence[Sequence[str]]) -> dict[str, Sequence[str]]:
    """The first job of each setting by the words that tell it from the others; seeds are none."""
    common = set.intersection(*map(set, jobs))
    found: dict[str, Sequence[str]] = {}
    for words in jobs:
        own = [w for w in words if w not in common and not w.startswith("seed=")]
        found.setdefault(" ".join(own), words)
    return found


def _composed(jobs: Sequence[Sequence[str]]) -> list[DictConfig]:
    """The configuration of each job; ConfigError names all that have none."""
    configs: list[DictConfig] = []
    refused: dict[str, str] = {}
    names = {tuple(words): own for own, words in _by_setting(jobs).items()}
    for words in jobs:
        try:
            configs.append(compose(words))
        except ConfigError as error:
            if tuple(words) in names:
                refused[names[tuple(words)]] = one_line(error)
    _refuse(refused, len(names))
    return configs


def _refuse(refused: Mapping[str, str], settings: int) -> None:
    """Say of each setting, by name, why it cannot run, in a line of its own.

    Raises:
        ConfigError: one cannot.
    """
    if refused:
        number = f"{len(refused)} of {pluralize(settings, 'setting')} cannot run"
        lines = [f"{own or 'every job'}: {why}" for own, why in refused.items()]
        raise ConfigError("\n  ".join([f"{number}, so nothing was started:", *lines]))


def run_job(job: Job, folder: SweepFolder, base: Path) -> float:
    """Do one job unless it is done.

    A job that was interrupted goes on from its checkpoint. Where another process does it,
    this waits for its end. A failure is noted in the job's folder and does not stop the sweep.

    Args:
        job: of the sweep.
        folder: the sweep's.
        base: where the command was typed, which may be another machine's working directory.

    Returns:
        What a search should make large (``scores.compared_score``): the mean accuracy of the job's
        last five rounds, in [0, 1], or R²; NaN where it failed or has none.
    """
    from fl_app.run.prepare import prepare

    folder.add([job])
    while folder.metrics(job) is None:
        try:
            prepare(job.overrides, folder.path / job.key, base).run()
        except RunInUseError:  # by another command that does the same sweep
            time.sleep(_LOOK_SECONDS)
            continue
        except Exception as error:
            folder.note_error(job, error)
        break
    metrics = folder.metrics(job)
    if metrics is None:
        return math.nan
    _, value = compared_score(metrics)
    return math.nan if value is None else value


def _is_single(config: DictConfig) -> bool:
    """Tells whether a job keeps one core busy: inline, with one worker, on a processor."""
    engine = config.engine
    return engine._target_ == _INLINE and engine.workers == 1 and config.compute.device == "cpu"


def is_hydra(word: str) -> bool:
    """Tells whether an override is about Hydra itself: launcher, sweeper."""
    return word.lstrip("+~").startswith(("hydra/", "hydra."))


def _name(config: DictConfig) -> str | None:
    """The sweep's name as typed; None where it has none. ConfigError for one with a path in it."""
    name = config.sweep
    if name is not None and (not isinstance(name, str | int) or not is_file_name(str(name))):
        raise ConfigError(f"sweep={name}: must be a name of letters, digits, '.', '_' and '-'")
    return None if name is None else str(name)
