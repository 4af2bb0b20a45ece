"""The memory that ``benchmarks.large_model`` states is that of the processes it started."""

import os
import subprocess
import sys
import time

from benchmarks.large_model import MARK, Peak

HOLDS = "import sys; held = bytearray({}); print('there', flush=True); sys.stdin.read()"


def test_the_peak_is_of_all_marked_processes_and_of_the_largest(tmp_path):
    def start(megabytes: int, mark: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", HOLDS.format(megabytes * 10**6)],
            env={**os.environ, MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    own = str(tmp_path)
    started = [start(100, own), start(200, own), start(400, f"{own}/another")]
    peak = Peak(own)
    with peak.watching():
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        deadline = time.monotonic() + 30
        while peak.total < 300e6 or peak.largest < 200e6:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        for process in started:
            process.communicate()
    assert 300e6 <= peak.total < 400e6
    assert 200e6 <= peak.largest < 300e6
