"""What ``make bench`` measures: each measure is one run of one side of a comparison."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import peak, processes, scale, small_work, sweep_startup, training, workloads
from benchmarks.workloads import Workload
from murmur.learning.process import has_bfloat16

PFL_PYTHON = processes.ROOT / "runs" / "pfl-environment" / "bin" / "python"
# Flower's newest, in the environment of `make test-flower`.
FLOWER = processes.ROOT / ".venv" / "flower-1.42" / "bin"
TIMEOUT = 1800.0  # seconds for one measure
Measure = Callable[["Bench"], dict]


class UnavailableError(Exception):
    """What this machine cannot run, or a competitor that is not installed; its text says which."""


@dataclass(frozen=True)
class Bench:
    """How much to measure, and where.

    ``scratch``: for data, runs and logs; emptied by nobody but the user. ``rounds``: of the
    comparisons, of ``clients`` clients. ``cohort``: clients in PrivateKT's round. ``many``: clients
    of the large runs. ``jobs``: of a sweep.
    """

    scratch: Path
    rounds: int = 2
    clients: int = 100
    cohort: int = 10
    many: int = 10_000
    jobs: int = 6

    def data(self, name: str, work: Workload) -> Path:
        """The folder with the arrays of ``work``, written on first use."""
        folder = self.scratch / "data" / name
        if not (folder / "public.npy").exists():  # the last one to be written
            workloads.export(work, folder)
        return folder

    def log(self, name: str) -> Path:
        """Where the output of the last run of ``name`` is kept."""
        folder = self.scratch / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name.replace(' ', '-')}.log"

    def murmur(self, name: str, settings: tuple[str, ...], rounds: int) -> dict:
        """The command ``murmur``, two workers, from typing to the last round."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as scratch:
            folder = Path(scratch) / "run"
            command = [_script("murmur"), *settings, f"federation.num_rounds={rounds}"]
            return processes.rounds(
                [*command, f"run_dir={folder}"],
                folder / "rounds.jsonl",
                rounds,
                self.log(name),
                TIMEOUT,
                FLWR_HOME=str(Path(scratch) / "flwr"),
            )

    def flower(self, name: str, work: Workload, rounds: int) -> dict:
        """The plain app under ``flwr run``, one node per client, two workers."""
        if not FLOWER.exists():
            raise UnavailableError("Flower 1.42 is not installed: `make bench` installs it")
        data = self.data(name, work)
        with tempfile.TemporaryDirectory(dir=self.scratch) as scratch:
            app, config = Path(scratch) / "app", Path(scratch) / "config.toml"
            shutil.copytree(Path(__file__).parent / "competitors" / "flower_app", app)
            config.write_text(work.flower_settings(data, rounds), encoding="utf-8")
            federation = f"num-supernodes={work.clients} client-resources-num-cpus=1"
            rows = data / "rounds.jsonl"
            rows.unlink(missing_ok=True)
            flwr = str(FLOWER / "flwr")
            return processes.rounds(
                [
                    *(flwr, "run", str(app), "--stream", "--run-config", str(config)),
                    *("--federation-config", f"{federation} init-args-num-cpus=2"),
                ],
                rows,
                rounds,
                self.log(f"{name} flower"),
                TIMEOUT,
                FLWR_HOME=str(Path(scratch) / "flwr"),
                # Else Flower installs PyTorch anew for every run, which takes minutes.
                FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
                PATH=f"{FLOWER}:/usr/bin:/bin",
                **_ports(),
            )

    def script(self, name: str, module: str, data: Path, *options: str) -> dict:
        """A competitor's own script in this environment."""
        command = [sys.executable, "-m", f"benchmarks.competitors.{module}", str(data), *options]
        return _without_first(processes.run(command, self.log(name)))

    def pfl(self, name: str, work: Workload, rounds: int) -> dict:
        """Pfl in its own environment, two processes."""
        if not PFL_PYTHON.exists():
            raise UnavailableError("pfl is not installed: `make bench-pfl`")
        data = self.data(name, work)
        command = [
            *(str(PFL_PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", "-m", "benchmarks.competitors.pfl_app", str(data)),
            *(*work.options(), "--rounds", str(rounds)),
        ]
        result = processes.run(
            command,
            self.log(f"{name} pfl"),
            OMP_NUM_THREADS="1",
            PFL_PYTORCH_DEVICE="cpu",
            PYTHONPATH=".",
        )
        return _without_first(result)

    def probe(self, name: str, *arguments: str) -> dict:
        """A look inside one run of Murmur: see ``benchmarks.probes``."""
        command = [sys.executable, "-m", "benchmarks.probes", *arguments]
        return processes.run(command, self.log(name))


def _without_first(result: dict) -> dict:
    """Without the round that reads the data and warms up; ``first`` is a command's, not this."""
    return {**result, "rounds": result["rounds"][1:]}


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _ports() -> dict[str, str]:
    import socket

    with socket.socket() as http, socket.socket() as control:
        http.bind(("127.0.0.1", 0))
        control.bind(("127.0.0.1", 0))
        return {
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http.getsockname()[1]),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control.getsockname()[1]),
        }


RAY = ("engine=ray", "engine.workers=2")


def _many(bench: Bench, clients: int, cohort: int | None = None) -> tuple[str, ...]:
    """A small model on ever so many clients: what a client costs beside its training."""
    asked = "null" if cohort is None else cohort
    return (*workloads.mlp(clients, 16).settings, f"federation.clients_per_round={asked}")


def _privatekt(bench: Bench) -> tuple[str, ...]:
    return (*workloads.PRIVATEKT.settings, f"federation.clients_per_round={bench.cohort}")


def _cnn_eager(bench: Bench) -> dict:
    work = workloads.cnn(bench.clients)
    options = [*work.options(), "--rounds", str(bench.rounds)]
    return bench.script("cnn eager", "eager", bench.data("cnn", work), *options)


def _peak(bench: Bench) -> dict:
    """The machine's peak, and GFLOP of the training in a round of each comparison."""
    offsets = np.load(bench.data("privatekt", workloads.PRIVATEKT) / "offsets.npy")
    epochs, shares = 5, bench.cohort * float(np.diff(offsets).mean())
    examples = {
        "cnn": 600 * bench.clients,
        "mlp": 600 * bench.clients,
        "privatekt": epochs * shares,
    }
    return {**peak.measure(), **{name: n * peak.training(name) for name, n in examples.items()}}


def _steps(bench: Bench) -> dict:
    """Milliseconds of processor for a step, without and with the compiled block and bfloat16."""
    found = training.measure(["cnn_16", "cnn_privatekt"], 3)
    return {f"{model}, {side}": ms for model, own in found.items() for side, ms in own.items()}


def _later_job(bench: Bench, engine: str) -> dict:
    """Seconds of a sweep's later jobs beyond their work."""
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        (_, *later), _ = sweep_startup.measure(engine, bench.jobs, Path(folder))
    return {"later": later}


def _finished_sweep(bench: Bench) -> dict:
    """The command of a sweep of 60 small jobs, all of which are finished; done once before."""
    command = [_script("murmur"), "-m", *workloads.SWEEP, f"results_dir={bench.scratch}"]
    done, log = bench.scratch / "sweep-bench" / "sweep.md", bench.log("sweep finished")
    if not done.exists():
        processes.seconds(command, log)
    return {"whole": processes.seconds(command, log)}


def _no_pool(bench: Bench) -> dict:
    """The whole command of the experiment; a run of 60 rounds and 1,000 clients."""
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        command = [_script("murmur"), "experiment=fashion_no_pool", f"run_dir={folder}/run"]
        return {"whole": processes.seconds(command, bench.log("no pool"))}


def _dpsgd(model: str) -> Measure:
    """One client's DP-SGD beside Opacus, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.dpsgd", "--json", "--models", model]
    return lambda bench: processes.run([*command, "--lots", "50"], bench.log(f"dpsgd {model}"))


def _compared(pair: Callable[[scale.Bench], tuple[float, float]]) -> Measure:
    """Processor milliseconds of a client in two ways, and the first over the second."""

    def measured(bench: Bench) -> dict:
        with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
            first, second = pair(scale.Bench(processes.ROOT, Path(folder)))
        return {"ratio": first / second, "first ms": first, "second ms": second}

    return measured


def _privatekt_authors(bench: Bench) -> dict:
    data = bench.data("privatekt", workloads.PRIVATEKT)
    options = ["--clients", str(bench.cohort), "--rounds", "2"]
    return bench.script("privatekt authors", "privatekt_authors", data, *options)


def _murmur(name: str, settings: Callable[[Bench], tuple[str, ...]], *more: str) -> Measure:
    return lambda b: b.murmur(name, (*settings(b), *RAY, *more), b.rounds)


def _half(name: str, settings: Callable[[Bench], tuple[str, ...]]) -> Measure:
    """The same in bfloat16, where the processor has it: emulated it would say nothing."""

    def measured(bench: Bench) -> dict:
        if not has_bfloat16():
            raise UnavailableError("this processor does not multiply in bfloat16")
        return _murmur(name, settings, "compute.precision=bf16")(bench)

    return measured


# In this order, which is that of importance where the time is limited.
MEASURES: dict[str, Measure] = {
    "peak": _peak,
    "cnn murmur": _murmur("cnn murmur", lambda b: workloads.cnn(b.clients).settings),
    "cnn murmur bf16": _half("cnn murmur bf16", lambda b: workloads.cnn(b.clients).settings),
    "cnn eager": _cnn_eager,
    "cnn flower": lambda b: b.flower("cnn", workloads.cnn(b.clients), b.rounds),
    "cnn pfl": lambda b: b.pfl("cnn", workloads.cnn(b.clients), b.rounds),
    "mlp murmur": _murmur("mlp murmur", lambda b: workloads.mlp(b.clients).settings),
    "mlp flower": lambda b: b.flower("mlp", workloads.mlp(b.clients), b.rounds),
    "privatekt murmur": _murmur("privatekt murmur", _privatekt),
    "privatekt murmur bf16": _half("privatekt murmur bf16", _privatekt),
    "privatekt authors": _privatekt_authors,
    "start murmur ray": lambda b: b.murmur("start ray", (*workloads.DIGITS.settings, *RAY), 1),
    "start flower": lambda b: b.flower("digits", workloads.DIGITS, 1),
    "sweep ray": lambda b: _later_job(b, "ray"),
    "sweep inline": lambda b: _later_job(b, "inline"),
    "sweep finished": _finished_sweep,
    "dpsgd cnn": _dpsgd("cnn"),
    "dpsgd mlp": _dpsgd("mlp"),
    "no pool": _no_pool,
    "real sums": _compared(scale.real_and_simulated),
    "groups": _compared(scale.grouped),
    "start murmur inline": lambda b: b.murmur(
        "start inline", (*workloads.DIGITS.settings, "engine=inline"), 1
    ),
    "steps": _steps,
    "small work": lambda b: small_work.measure(),
    "overhead 100": lambda b: b.probe(
        "overhead 100", "overhead", *workloads.cnn(b.clients).settings
    ),
    "overhead many": lambda b: b.probe("overhead many", "overhead", *_many(b, b.many)),
    "privacy": lambda b: b.probe("privacy", "privacy", "experiment=privatekt_mnist_mlp"),
    "memory 100": lambda b: b.probe("memory 100", "memory", *_many(b, 100)),
    "memory many": lambda b: b.probe("memory many", "memory", *_many(b, b.many)),
    "sampled murmur": _murmur("sampled", lambda b: _many(b, b.many, b.many // 10)),
}
