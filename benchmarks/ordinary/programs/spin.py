"""Program that keeps a CPU busy for some seconds, one CPU or any.

python -I -S spin.py SECONDS [PROCESSOR]
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    until, parent = time.monotonic() + float(sys.argv[1]), os.getppid()
    while time.monotonic() < until and os.getppid() == parent:
        sum(range(100_000))


if __name__ == "__main__":
    main()
