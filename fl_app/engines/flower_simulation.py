"""Flower's simulation whose workers are started anew where they die, as those of ``engine=ray``.

Flower 1.41 does not replace a worker: the clients of its message would fail, and half of all
clients in all later rounds. It has no setting for it, but hands what it calls client resources on
to Ray as the options of its actors. The SuperExec finds the script that calls ``main`` on its PATH
before Flower's own of that name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fl_app.engines.workers import RETRIES

_SCRIPT = """#!{python} -P
from fl_app.engines.flower_simulation import main

main()
"""


def write_script(folder: Path) -> None:
    """``flwr-simulation`` in ``folder``, which is made."""
    folder.mkdir()
    script = folder / "flwr-simulation"
    script.write_text(_SCRIPT.format(python=sys.executable))
    script.chmod(0o700)


def main() -> None:
    """Run Flower's command of that name."""
    from flwr.simulation import app as flower

    app: Any = flower  # of whose private interface it uses one function
    settings = app._run_simulation_settings

    def replacing(config: Any) -> Any:
        nodes, backend, options, *rest = settings(config)
        options["client_resources"] |= {"max_restarts": -1, "max_task_retries": RETRIES}
        return nodes, backend, options, *rest

    app._run_simulation_settings = replacing
    app.flwr_simulation()
