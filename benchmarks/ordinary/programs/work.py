"""Program of a simple job: it sleeps or computes for some seconds, as its plan specifies.

    python -I -S work.py PLAN

PLAN is a JSON object; each key may be absent:

seconds      how long the rank works; null: until it is killed code         its exit code; with only_rank, of that
rank alone (the others work on) number       the signal with which it kills itself instead of exiting only_rank
the one rank that fails ignore       true: SIGTERM is ignored. Without it SIGTERM is recorded and the rank ends with
143 saves        true: on SIGTERM it saves how long it has worked and exits with 75; the next attempt continues there
children     processes that it forks; they live for child_seconds and inherit its output detached     processes that
it starts in sessions of their own (setsid), which outlive it child_seconds how long those live; null: until they are
killed log_bytes    how much it writes to its output, in lines of 100 bytes burn         true: it computes instead of
sleeping
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import evidence  # type: ignore[import-not-found,unused-ignore]

TERMINATED, SAVED = 143, 75


def start_children(plan: dict[str, object]) -> None:
    """Fork the child processes that the plan specifies."""
    lives = plan.get("child_seconds", 1.0)
    for number in range(int(str(plan.get("children", 0))) + int(str(plan.get("detached", 0)))):
        detached = number >= int(str(plan.get("children", 0)))
        if os.fork() == 0:
            if detached:
                os.setsid()
                if os.fork():  # its child has no parent in the job: only the shim can find it
                    os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN if plan.get("ignore") else signal.SIG_DFL)
            evidence.write("child", detached=detached)
            time.sleep(1e9 if lives is None else float(str(lives)))
            os._exit(0)


def write_log(total: int) -> None:
    line = b"x" * 99 + b"\n"
    block = line * 10_000
    while total > 0:
        part = memoryview(block)[: min(total, len(block))]
        total -= len(part)
        while part:
            part = part[os.write(1, part) :]


def main() -> None:
    plan = json.loads(sys.argv[1])
    rank, job = os.environ.get("RANK", "0"), os.environ.get("GANGWATCH_JOB", "")
    progress = os.path.join(os.environ["ORDINARY_TRUTH"], f"progress.{job}.{rank}")
    done = 0.0
    if plan.get("saves") and os.path.exists(progress):
        with open(progress) as file:
            done = float(file.read() or 0)
    began = time.monotonic()

    def terminate(_number: int, _frame: object) -> None:
        evidence.write("terminated")
        if plan.get("saves"):
            with open(progress, "w") as file:
                file.write(str(done + time.monotonic() - began))
            evidence.end(SAVED)
        evidence.end(TERMINATED)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if plan.get("ignore") else terminate)
    evidence.write("start", parent=os.getppid())
    start_children(plan)
    if plan.get("log_bytes"):
        write_log(int(plan["log_bytes"]))
        evidence.write("logged", bytes=int(plan["log_bytes"]))
    seconds = plan.get("seconds", 1.0)
    mine = plan.get("only_rank") is None or str(plan["only_rank"]) == rank
    until = float("inf") if seconds is None else began + float(seconds) - done
    while (left := until - time.monotonic()) > 0:
        if plan.get("burn"):
            sum(range(20_000))
        else:
            time.sleep(min(left, 3600.0))
    if mine and plan.get("number"):
        evidence.write("end", code=128 + int(plan["number"]))
        signal.signal(plan["number"], signal.SIG_DFL) if plan["number"] != signal.SIGKILL else None
        os.kill(os.getpid(), plan["number"])
        time.sleep(60)
    evidence.end(int(plan.get("code", 0)) if mine else 0)


if __name__ == "__main__":
    main()
