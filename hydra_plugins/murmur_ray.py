"""``murmur -m hydra/launcher=ray``: each job of a sweep is a task on Ray.

Hydra accepts plugins from the namespace package ``hydra_plugins`` only, hence this folder. Why not
its own hydra-ray-launcher 1.2.2: it requires an old cloudpickle, Ray's dashboard and AWS libraries,
joins no cluster with its defaults, and ends the whole sweep when one worker is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class RayLauncher(Launcher):
    """The jobs of a batch on Ray, as many at a time as there is room for.

    ``address``: a cluster's, or ``local`` for a Ray of this process; ``num_cpus``, ``num_gpus``:
    what a job reserves; ``retries``: how often it is started again when its worker dies.
    """

    def __init__(self, address: str, num_cpus: float, num_gpus: float, retries: int) -> None:
        self.address = address
        self.options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": retries}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra once, before the first batch."""
        self.context, self.function, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch to its end; a job whose worker was lost is NaN, and noted in its folder."""
        from fl_app.engines.ray_start import start_ray
        from fl_app.sweep.workers import cores

        setup_globals()
        try:
            ray = start_ray(None if self.address == "local" else self.address, cores())
        except (ValueError, ConnectionError) as error:
            raise CompactHydraException(
                f"hydra.launcher.address={self.address}: no Ray cluster there ({error}); "
                "name its HOST:PORT, or local for a Ray of this sweep alone\n"
            ) from error
        task = ray.remote(**self.options)(_run)
        jobs = [
            task.remote(
                self.context, self._job_config(words, number), self.function, Singleton.get_state()
            )
            for number, words in enumerate(job_overrides, initial_job_idx)
        ]
        return [
            self._result(ray, job, words) for job, words in zip(jobs, job_overrides, strict=True)
        ]

    def _job_config(self, words: Sequence[str], number: int) -> DictConfig:
        config = self.context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{number}"
            config.hydra.job.num = number
        return config

    def _result(self, ray: Any, job: Any, words: Sequence[str]) -> JobReturn:
        try:
            return ray.get(job)
        except ray.exceptions.RayError as error:
            from fl_app.sweep.sweep import SweepFolder, note_lost_job

            hydra = self.config.hydra
            folder = SweepFolder(Path(hydra.sweep.dir))
            note_lost_job(list(words), folder, Path(hydra.runtime.cwd), error)
            lost = JobReturn(overrides=words, status=JobStatus.COMPLETED)
            lost.return_value = math.nan
            return lost


def _run(
    context: HydraContext, config: DictConfig, function: TaskFunction, singletons: Any
) -> JobReturn:
    """One job, in a worker's process."""
    setup_globals()
    Singleton.set_state(singletons)
    HydraConfig.instance().set_config(config)
    return run_job(
        hydra_context=context,
        task_function=function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
