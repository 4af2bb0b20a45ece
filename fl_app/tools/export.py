"""``murmur export FOLDER key=value ...``: the files of which devices need a copy.

It writes ``public.npz``: the run's public pool, and what its
features were fitted with, of which every device must have a copy (``public=FILE`` in its
node-config). With ``--shards`` each simulated client's share is written as ``client-ID.npz`` too,
so that devices can be tried with the data that a simulation gives them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fl_app.config.errors import ConfigError
from fl_app.tools.options import parser_of


def main(argv: list[str]) -> int:
    """``murmur export``: write the files that devices need, and print their paths.

    Returns:
        0.

    Raises:
        ConfigError: as ``export`` does.
    """
    arguments = parser_of("export").parse_intermixed_args(argv)
    for path in export(arguments.folder, arguments.overrides, arguments.shards):
        print(path)
    return 0


def export(folder: Path, overrides: Sequence[str], shards: bool) -> list[Path]:
    """Write the public pool, and with ``shards`` every client's share, of the run ``overrides``.

    Shares hold clients' data: only the owner of a file can read it.

    Returns:
        The files, the public pool's first.

    Raises:
        ConfigError: ``folder`` looks like a setting, the settings cannot be, or the clients' data
            are not here.
    """
    from fl_app.config.compose import compose
    from fl_app.run.population import image_population, population
    from murmur.files import owner_only

    if "=" in str(folder):
        raise ConfigError(f"FOLDER={folder}: looks like a setting; name the folder first")
    config = compose(list(overrides))
    people = image_population(config)
    fitted = population(config).fitted
    if shards and not people.shards:
        raise ConfigError("--shards: with engine=deploy the clients' data are on their devices")
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "public.npz"]
    more = {}
    if fitted is not None:
        more = fitted.arrays()
    np.savez_compressed(written[0], allow_pickle=False, images=people.public, **more)
    if not shards:
        return written
    train = people.dataset.train
    for client, rows in enumerate(people.shards):
        images = train.images[rows]
        if images.shape[2:] == (1, 1):  # else read as pictures with one channel at the end
            images = images[:, :, 0, 0]
        written.append(folder / f"client-{client}.npz")
        with open(written[-1], "wb", opener=owner_only) as file:
            np.savez_compressed(file, images=images, labels=train.labels[rows])
    return written
