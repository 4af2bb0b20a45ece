"""Where the jobs of a sweep run: on Ray, on this machine's cores or on a cluster's.

``run_jobs`` is what `murmur -m` calls: each job that keeps one core busy is a task of Ray. On this
machine its workers are forks of a process that has imported everything (``engines.ray_fork``), so
that a job costs no imports; RAY_ADDRESS names a cluster instead. A job whose process or machine
dies goes on from its checkpoint elsewhere, some times; then it is in the table as failed, and the
rest goes on.

``RayLauncher`` is the same as a launcher of Hydra's (``hydra/launcher=ray``), for searches, whose
sweeper draws the jobs, and for jobs that want more than one core or a GPU. Why not Hydra's own
hydra-ray-launcher 1.2.2: it requires an old cloudpickle, Ray's dashboard and AWS libraries, joins
no cluster with its defaults, and ends the whole sweep when one worker is lost.
"""

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from fl_app.config import own_classes
from fl_app.sweep.sweep import Job, Sweep, SweepFolder, is_hydra, run_job

RETRIES = 3  # times that a job goes on after its process died with it


def cores() -> int:
    """Processor cores that this process may use; fewer than the machine has where it is bound."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def warm_up(sweep: Sweep) -> None:
    """Start Ray's head for ``sweep`` while its jobs are checked, where they will run on one."""
    if not sweep.single or not sweep.unfinished() or "ray" in sys.modules:
        return
    if "RAY_ADDRESS" not in os.environ:
        from fl_app.engines.ray_start import Head

        Head.shared(cores())


def run_jobs(sweep: Sweep) -> None:
    """Run what is unfinished to its end: on all cores, where each job keeps one of them busy.

    Jobs that use all cores by themselves (``engine=ray``) run one after the other in this process.
    Where there are fewer jobs than cores, each gets its share of them as threads. Failures of jobs
    are in their folders; nothing is raised for them.

    Args:
        sweep: begun already.

    Raises:
        ConfigError: RAY_ADDRESS names no cluster.
    """
    jobs = sweep.unfinished()
    if not sweep.single:
        for job in jobs:
            run_job(job, sweep.folder, Path.cwd())
    elif jobs:
        address = os.environ.get("RAY_ADDRESS")
        cpus = 1
        if address is None:
            cpus = max(1, cores() // len(jobs))
        run_on_ray(jobs, sweep.folder, Path.cwd(), address, cpus)


def run_on_ray(
    jobs: Sequence[Job],
    folder: SweepFolder,
    base: Path,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = RETRIES,
    key: str = "RAY_ADDRESS",
) -> list[float]:
    """Run ``jobs`` to their ends, as many at a time as there is room for.

    Args:
        jobs: of the sweep.
        folder: the sweep's, which all machines see.
        base: where the command was typed.
        address: a cluster's (HOST:PORT, or auto); None: a Ray of this process, with all its cores,
            which stays for the next call.
        cpus: cores that a job reserves, and the threads that it may use.
        gpus: GPUs that a job reserves; a fraction shares one.
        retries: how often a job is started again when its process or machine dies.
        key: where the address was set, for the error.

    Returns:
        What a search should make large, of each job (``run_job``); NaN where it failed or was lost,
        which its folder tells.

    Raises:
        ConfigError: there is no cluster at ``address``.
    """
    from fl_app.engines.ray import RayPool
    from fl_app.engines.ray_start import Head, start_ray

    RayPool.end()  # whose workers would keep the cores
    if address is None and "ray" not in sys.modules:
        # It starts while this process imports what the workers, its forks, have then imported.
        Head.shared(cores())
        import fl_app.run.prepare
        import fl_app.server_app  # noqa: F401
    ray = start_ray(address, cores(), key)
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_run)
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, int(cpus))))
    variables = {
        "OMP_NUM_THREADS": threads,
        own_classes.VARIABLE: os.environ.get(own_classes.VARIABLE, ""),
    }
    started = [task.remote(job, folder.path, base, variables) for job in jobs]
    found: list[float] = []
    try:
        for job, value in zip(jobs, started, strict=True):
            try:
                found.append(ray.get(value))
            except ray.exceptions.RayError as error:
                folder.note_error(job, error)
                found.append(math.nan)
    except BaseException:  # an interrupted sweep; Ray itself fails where a job has just ended
        for value in started[len(found) :]:
            ray.cancel(value, force=True)
        raise
    return found


def _run(job: Job, folder: Path, base: Path, variables: dict[str, str]) -> float:
    """One job, in a worker's process, which may be a fork of an older command.

    So ``variables``, this command's threads and folders of classes, go before the environment that
    it was forked with. What it returns is ``run_job``'s.
    """
    os.environ.update(variables)
    return run_job(job, SweepFolder(folder), base)


class RayLauncher(Launcher):
    """``conf/hydra/launcher/ray.yaml``: the jobs of a sweeper of Hydra's on Ray.

    Attributes:
        address: a cluster's, or ``local`` for a Ray of this process.
        num_cpus: cores that a job reserves.
        num_gpus: GPUs that it reserves.
        retries: how often it is started again when its worker dies.
    """

    def __init__(self, address: str, num_cpus: float, num_gpus: float, retries: int) -> None:
        self.address = address
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.retries = retries

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra once, before the first batch; jobs need nothing of Hydra's context."""
        self.hydra = config.hydra

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch to its end; a job that was lost gives NaN, and is noted in its folder."""
        base = Path(self.hydra.runtime.cwd)
        jobs = []
        for trial, words in enumerate(job_overrides, initial_job_idx):
            jobs.append(Job.of([word for word in words if not is_hydra(word)], base, trial))
        address = None
        if self.address != "local":
            address = self.address
        values = run_on_ray(
            jobs,
            SweepFolder(Path(self.hydra.sweep.dir)),
            base,
            address,
            self.num_cpus,
            self.num_gpus,
            self.retries,
            "hydra.launcher.address",
        )
        results: list[JobReturn] = []
        for words, value in zip(job_overrides, values, strict=True):
            result = JobReturn(overrides=words, status=JobStatus.COMPLETED)
            result.return_value = value
            results.append(result)
        return results


def register_launcher() -> None:
    """Let Hydra know ``hydra/launcher=ray``, without a folder where it looks for plugins.

    It instantiates classes of the package ``hydra_plugins`` only, which it imports by their names.
    So this module gets a second name there, once Hydra has looked for installed plugins.
    """
    plugins = Plugins.instance()
    package = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    setattr(package, "murmur", sys.modules[__name__])  # noqa: B010
    sys.modules["hydra_plugins.murmur"] = sys.modules[__name__]
    RayLauncher.__module__ = "hydra_plugins.murmur"
    plugins.register(RayLauncher)
