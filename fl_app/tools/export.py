"""``murmur export FOLDER key=value ...``: the files that devices need, from a run's configuration.

``public.npz`` is the run's public pool, and what its features were fitted with, of which every
device must have a copy (``public=FILE`` in its node-config). With ``--shards`` each
simulated client's share is written as ``client-ID.npz`` too, so that devices can be tried with the
data that a simulation gives them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.run.population import image_population, population
from murmur.learning.array_file import private


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur export``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur export", description="Write the public pool that devices need a copy of."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    parser.add_argument("--shards", action="store_true", help="write every client's share too")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="the run's settings")
    arguments = parser.parse_intermixed_args(argv)
    for path in export(arguments.folder, arguments.overrides, arguments.shards):
        print(path)
    return 0


def export(folder: Path, overrides: list[str], shards: bool) -> list[Path]:
    """Write the files; their paths. ConfigError where there is nothing to write."""
    if "=" in str(folder):
        raise ConfigError(f"FOLDER={folder}: looks like a setting; name the folder first")
    config = compose(overrides)
    people, fitted = image_population(config), population(config).fitted
    if shards and not people.shards:
        raise ConfigError("--shards: with engine=deploy the clients' data are on their devices")
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "public.npz"]
    more = {} if fitted is None else fitted.arrays()
    np.savez_compressed(written[0], allow_pickle=False, images=people.public, **more)
    train = people.dataset.train
    for client, rows in people.shards.items() if shards else ():
        written.append(folder / f"client-{client}.npz")
        images, labels = train.images[rows], train.labels[rows]
        with open(written[-1], "wb", opener=private) as file:
            np.savez_compressed(file, images=images, labels=labels)
    return written
