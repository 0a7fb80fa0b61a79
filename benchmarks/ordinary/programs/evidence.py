"""Evidence that a job's process writes about itself: one JSON line an event, appended to a file of its job.

A line is one write(2) with O_APPEND, so that lines of many ranks never mix. Standard library only: job programs load
this file by its folder, in an interpreter without other packages.
"""

from __future__ import annotations

import json
import os
import time


def write(event: str, **more: object) -> None:
    """Append one line: the event, the identity of this process, and `more`."""
    line = {
        "event": event,
        "job": os.environ.get("GANGWATCH_JOB", ""),
        "attempt": int(os.environ.get("GANGWATCH_ATTEMPT", "0")),
        "rank": int(os.environ.get("RANK", "-1")),
        "size": int(os.environ.get("WORLD_SIZE", "0")),
        "node": os.environ.get("GANGWATCH_NODE", ""),
        "pid": os.getpid(),
        "wall": time.time(),
        **more,
    }
    path = os.path.join(os.environ["ORDINARY_TRUTH"], "evidence.jsonl")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def end(code: int) -> None:
    """Write that this rank ends with `code`, and exit at once, without handlers."""
    write("end", code=code)
    os._exit(code)
