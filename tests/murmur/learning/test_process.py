"""What a process may use: its heap, and one thread where results must not depend on the cores."""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from murmur.learning.process import keep_heap, one_thread

FREED = """
import numpy as np
from murmur.learning import process
def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
assert process.{}()
blocks = [np.ones(2**20) for _ in range(16)]
kept = blocks[0::2]
full = resident()
del blocks
print((full - resident()) // 2**10)
"""


def threads():
    return {library["filepath"]: library["num_threads"] for library in threadpool_info()}


def test_every_library_that_is_loaded_takes_one_thread_until_the_end_of_the_block():
    import sklearn.linear_model  # noqa: F401  brings more of them

    with threadpool_limits(2):
        before = threads()
        with one_thread():
            assert np.eye(2) @ np.eye(2) is not None and set(threads().values()) == {1}
        assert threads() == before and 2 in before.values()


def test_a_block_that_ends_gives_no_threads_to_another():
    began, both_began, ended, seen = Event(), Event(), Event(), []

    def first():
        with one_thread():
            began.set()
            both_began.wait(0.2)
        ended.set()

    def second():
        began.wait(10)
        with one_thread():
            both_began.set()
            ended.wait(10)
            seen.append(set(threads().values()))

    with ThreadPoolExecutor(2) as pool:
        for block in [pool.submit(first), pool.submit(second)]:
            block.result()
    assert seen == [{1}]


def test_keeping_the_heap_is_harmless_and_repeatable():
    assert keep_heap() is keep_heap()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_a_heap_that_is_kept_grows_and_large_blocks_go_back():
    def freed(how):
        """MiB of 64 that are given back, with as many in between that are not."""
        done = subprocess.run(
            [sys.executable, "-c", FREED.format(how)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert freed("return_large_blocks") >= 60
    assert freed("keep_heap") < 8


@pytest.mark.parametrize(("before", "after"), [({}, "1"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "0")])
def test_large_pages_are_asked_for_before_the_first_tensor_but_by_who_has_said_otherwise(
    before, after
):
    code = """
import os, sys
from murmur.learning.process import take_over
take_over()
assert "torch" not in sys.modules
print(os.environ["THP_MEM_ALLOC_ENABLE"])
"""
    own = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=own | before, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{after}\n"
