"""Somebody's program that uses Murmur; ``test_in_a_program.py`` runs it in a new interpreter.

``python -m tests.fl_app.program ENGINE FOLDER`` prints a JSON object: accuracies by how the run was
called, and what of the interpreter differs after all of them.
"""

import asyncio
import importlib
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

LIBRARIES = ("fl_app.server_app", "fl_app.client_app", "fl_app.run.experiment", "torch._dynamo")
WORDS = ["strategy=fedavg", "model=mlp", "federation.num_rounds=2", "federation.num_clients=6"]


def interpreter():
    """Returns what a program may have set of its process, by name."""
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    loggers = logging.root.manager.loggerDict.values()
    return {
        "environment": dict(os.environ),
        "working directory": os.getcwd(),
        "signals": {int(number): str(signal.getsignal(number)) for number in signals},
        "threads of PyTorch": torch.get_num_threads(),
        "default type": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "errors of floats": np.geterr(),
        "warnings": [str(filter) for filter in warnings.filters],
        "root logger": [
            logging.root.level,
            str(logging.root.handlers),
            logging.root.manager.disable,
        ],
        "loggers": {
            each.name: [each.level, str(each.handlers), each.disabled]
            for each in loggers
            if isinstance(each, logging.Logger) and (each.level or each.handlers or each.disabled)
        },
        "random": hash(random.getstate()),
        "random of NumPy": np.random.get_state()[1].tolist(),
        "random of PyTorch": torch.get_rng_state().tolist(),
        "hooks": [str(sys.excepthook), str(threading.excepthook), str(sys.stdout), str(sys.stderr)],
        "import path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "arguments": list(sys.argv),
    }


def main(engine, folder):
    """Calls Murmur in all the ways that a program may, and prints what came of it."""
    for name in LIBRARIES:  # whatever their import changes, they change in any program
        importlib.import_module(name)
    from fl_app.api import run

    def accuracy(name, *words):
        folder_of_run = f"run_dir={Path(folder) / name}"
        done = run([*WORDS, *words, folder_of_run], engine=engine, progress=False)
        return done.metrics["accuracy"]

    async def looped():
        return accuracy("loop")

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    np.seterr(all="raise")
    logging.basicConfig(level=logging.DEBUG, stream=open(os.devnull, "w"))  # noqa: SIM115
    accuracies = {}
    threading.Thread(target=lambda: accuracies.update(thread=accuracy("thread"))).start()
    for thread in threading.enumerate():
        if thread.name.startswith("Thread-"):
            thread.join(300)
    before = interpreter()
    accuracies["main"] = accuracy("main")
    accuracies["loop"] = asyncio.run(looped())
    with ThreadPoolExecutor(2) as pool:
        accuracies["pool"], accuracies["beside"] = pool.map(accuracy, ("pool", "beside"))
    after = interpreter()
    changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    print(json.dumps({"accuracies": accuracies, "changed": changed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
