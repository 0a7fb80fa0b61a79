"""Limits of a daemon's process: freed memory returns to the kernel, and full collections examine few objects."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from gangwatch.daemons.process_limits import ALL_OBJECTS_SECONDS, ShortCollections

GROWTH = """
import sys
from pathlib import Path
from gangwatch.daemons.process_limits import return_large_blocks

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

if sys.argv[1] == "on":
    return_large_blocks()
for _ in range(2):
    large = bytes(24 << 20)  # glibc then keeps blocks of up to this size in its heap
    del large
before, blocks, small = resident_mib(), [], []
for _ in range(16):
    blocks.append(b"x" * (8 << 20))
    small.append(b"x" * 100_000)
blocks.clear()
print(resident_mib() - before)
"""


def growth_mib(switch: str) -> int:
    return int(subprocess.run([sys.executable, "-c", GROWTH, switch], check=True, capture_output=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_blocks_are_returned_although_small_ones_follow_them() -> None:
    assert growth_mib("off") > 60, "without it, this test shows nothing"
    assert growth_mib("on") < 20


class Loop:
    """An object in a cycle, which only a garbage collection frees."""

    def __init__(self) -> None:
        self.own = self


def test_a_full_collection_leaves_out_older_objects_until_an_hour_has_passed() -> None:
    now = [0.0]
    collections = ShortCollections(lambda: now[0])
    collections.start()
    try:
        older = Loop()
        older_is_alive = weakref.ref(older)
        gc.collect()
        assert gc.get_freeze_count() > 0
        del older
        newer_is_alive = weakref.ref(Loop())
        gc.collect()
        assert newer_is_alive() is None, "it was made after the last full collection"
        assert older_is_alive() is not None
        now[0] = ALL_OBJECTS_SECONDS
        gc.collect()
        assert older_is_alive() is None
    finally:
        collections.stop()
    assert gc.get_freeze_count() == 0
