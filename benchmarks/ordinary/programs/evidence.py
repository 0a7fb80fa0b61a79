"""Records that a job's process writes about itself: one JSON line per event, in the job's file.

Each line is one write(2) with O_APPEND, so that lines of several ranks do not mix. Standard library only, since job
programs run without other packages.
"""

from __future__ import annotations

import json
import os
import time


def write(event: str, **more: object) -> None:
    """Append one line with the event, the identity of this process, and the fields in `more`."""
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
    """Record that this rank ends with `code`, and exit at once without exit handlers."""
    write("end", code=code)
    os._exit(code)
