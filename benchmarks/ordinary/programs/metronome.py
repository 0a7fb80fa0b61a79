"""Program that measures how much CPU this machine gives a process: a short computation ten times per second.

    python -I -S metronome.py FILE

FILE contains two little-endian doubles: the monotonic time of the newest computation, and the fair seconds so far.
If the computation gets the share s of a CPU, a second counts as 1 / (0.9 + 0.1 / s) fair seconds: this is the speed
of work of which a tenth is computing and the rest waiting for timers.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time

BEAT_SECONDS = 0.1
BURST_SECONDS = 0.004
COMPUTING = 0.1
"""Share of a daemon's response time that is computing. The rest is mostly timers, sockets and disk."""


def main() -> None:
    with open(sys.argv[1], "r+b") as file:
        memory = mmap.mmap(file.fileno(), 16)
    fair, parent = 0.0, os.getppid()
    last = time.monotonic()
    while os.getppid() == parent:
        asleep = time.monotonic()
        time.sleep(BEAT_SECONDS)
        awake = time.monotonic()
        used = time.thread_time()
        while time.thread_time() - used < BURST_SECONDS:
            pass
        burst_wall = time.monotonic() - awake
        share = min(1.0, BURST_SECONDS / burst_wall)
        punctual = min(1.0, BEAT_SECONDS / max(awake - asleep, 1e-9))
        now = time.monotonic()
        # A period in which nothing ran here at all counts as two beats at most.
        rate = punctual / (1.0 - COMPUTING + COMPUTING / share)
        fair += min(now - last, 2 * BEAT_SECONDS) * rate
        last = now
        memory[:16] = struct.pack("<dd", now, fair)


if __name__ == "__main__":
    main()
