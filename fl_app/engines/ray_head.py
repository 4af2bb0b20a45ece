"""Ray's head in a process of its own, which ends everything that it has started.

``python -P -m fl_app.engines.ray_head WORKERS PARENT FOLDER`` (``-P``: `engines/ray.py` must not
pass for Ray) starts Ray's processes (``murmur.compat.ray_workers``), prints the address, and ends
everything when `murmur` or one of the processes ends. With another version of Ray, whose private
interfaces are different, it ends without an address, and ``ray_start`` does without it.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

from fl_app.config.errors import ConfigError
from murmur.compat.ray_workers import start_node
from murmur.processes import adopt_orphans, end_children

# Of a socket's folder: Ray's longest path below it has 87, macOS allows 103.
MAX_FOLDER_BYTES = 16
_SHORT_FOLDER = "/tmp"


def main(workers: int, parent: int, folder: str) -> None:
    """Starts Ray, prints its address (HOST:PORT), stays until something ends; leaves nothing.

    Args:
        workers: cores of this Ray.
        parent: the process id of the `murmur` that wants it.
        folder: where its sockets and logs lie; removed at the end.
    """
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    status = 0
    try:
        node = start_node(workers, folder)
        print(node.gcs_address, flush=True)
        while not node.dead_processes() and os.getppid() == parent:
            time.sleep(0.5)
    except Exception:
        traceback.print_exc()
        status = 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_children(at_once=True)  # Ray's own take seconds to end, and keep nothing of ours
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)  # without Ray's own end, which waits


def socket_folder() -> str:
    """Returns the folder for temporary files, or /tmp where a socket's path would be too long.

    Only sockets and what belongs to them move; TMPDIR stays what it is for everything else.

    Raises:
        ConfigError: neither folder will do.
    """
    own = tempfile.gettempdir()
    for folder in (own, _SHORT_FOLDER):
        if len(os.fsencode(folder)) <= MAX_FOLDER_BYTES and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ConfigError(
        f"TMPDIR={own}: leaves no room for the names of sockets, and {_SHORT_FOLDER} cannot be "
        f"written; set it to a folder whose path has at most {MAX_FOLDER_BYTES} characters"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
