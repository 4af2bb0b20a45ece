"""The jobs of a sweep as tasks of Ray, on this machine's cores or on a cluster's.

``run_jobs`` is what `murmur -m` calls: each job that keeps one core busy is a task of Ray. On this
machine its workers are forks of a process that has imported everything
(``murmur.compat.ray_workers``), so that a job costs no imports; RAY_ADDRESS names a cluster
instead. A job whose process or machine dies goes on from its checkpoint elsewhere, some times; then
it is in the table as failed, and the rest goes on. A search, whose sweeper draws the jobs, uses
Hydra's own launchers.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_app.config import plugins
from fl_app.sweep.sweep import Job, Sweep, SweepFolder, run_job

MAX_RETRIES = 3  # of a job whose process died with it


def cores() -> int:
    """Returns the cores that this process may use; fewer than the machine's where it is bound."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def warm_up(sweep: Sweep) -> None:
    """Starts Ray's head for ``sweep`` while its jobs are checked, where they will run on one."""
    if not sweep.single or not sweep.unfinished() or "ray" in sys.modules:
        return
    if "RAY_ADDRESS" not in os.environ:
        from fl_app.engines.ray_start import Head

        Head.shared(cores())


def run_jobs(sweep: Sweep) -> None:
    """Runs the unfinished jobs to their ends: on all cores, where each keeps one of them busy.

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
    cpus: int = 1,
) -> None:
    """Runs ``jobs`` to their ends, as many at a time as there is room for.

    A failed or lost job is told by its folder.

    Args:
        jobs: of the sweep.
        folder: the sweep's, which all machines see.
        base: where the command was typed.
        address: a cluster's (HOST:PORT, or auto); None: a Ray of this process, with all its cores,
            which stays for the next call.
        cpus: cores that a job reserves, and the threads that it may use.

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
    ray = start_ray(address, cores())
    task = ray.remote(num_cpus=cpus, max_retries=MAX_RETRIES)(_run)
    threads = os.environ.get("OMP_NUM_THREADS", str(cpus))
    variables = {
        "OMP_NUM_THREADS": threads,
        plugins.VARIABLE: os.environ.get(plugins.VARIABLE, ""),
    }
    started = [task.remote(job, folder.path, base, variables) for job in jobs]
    waiting = list(started)
    try:
        for job, task_end in zip(jobs, started, strict=True):
            try:
                ray.get(task_end)
            except ray.exceptions.RayError as error:
                folder.note_error(job, error)
            waiting.remove(task_end)
    except BaseException:  # an interrupted sweep; Ray itself fails where a job has just ended
        for task_end in waiting:
            ray.cancel(task_end, force=True)
        raise


def _run(job: Job, folder: Path, base: Path, variables: dict[str, str]) -> None:
    """Runs one job in a worker's process, which may be a fork of an older command.

    So ``variables``, this command's threads and folders of classes, go before the environment that
    it was forked with.
    """
    os.environ.update(variables)
    run_job(job, SweepFolder(folder), base)
