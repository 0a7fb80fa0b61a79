# mypy: ignore-errors
"""Launcher of a rank: enters its node's network namespace and its control groups, then runs the training program.

python enter.py SITE GO PROGRAM [ARGUMENT ...]

SITE: file that describes the nodes (benchmarks/reality/site.py). GO: file whose existence lets the training start.
Standard library only, because the rank's interpreter may be another one.
"""

import ctypes
import json
import os
import struct
import sys
import time

PATIENCE_SECONDS = 180.0

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
SLICE_NS = 500_000


def preempt_others() -> None:
    """Give the rank a short time slice, so that it does not wait for the slice of another process to end.

    The machine has fewer processors than a real cluster, and other processes. Linux before 6.12 ignores the request.
    """
    number = SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, 0, 0, SLICE_NS, 0, 0)  # struct sched_attr, SCHED_OTHER
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        site = json.load(file)
    node = site["nodes"][os.environ["GANGWATCH_NODE"]]
    rank = os.environ["RANK"]
    name = f"{os.environ['GANGWATCH_JOB']}.{rank}"
    for group in node["groups"]:
        own = f"{group}/{name}"
        os.makedirs(own, exist_ok=True)
        for limit, text in site["limits"].items():
            if os.path.exists(f"{own}/{limit}"):
                with open(f"{own}/{limit}", "w", encoding="utf-8") as file:
                    file.write(text)
        with open(f"{own}/cgroup.procs", "w", encoding="utf-8") as file:
            file.write("0")
    preempt_others()
    until = time.monotonic() + PATIENCE_SECONDS
    while not os.path.exists(sys.argv[2]):
        if time.monotonic() > until:
            sys.exit(f"{sys.argv[2]}: this file does not exist after {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.02)
    first = os.environ["GANGWATCH_NODES"].split(":")[0]
    os.environ["MASTER_ADDR"] = site["nodes"][first]["address"]
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "eth0"
    os.environ["REALITY_ADDRESSES"] = ",".join(
        site["nodes"][each.split(":")[0]]["address"]
        for each in os.environ["GANGWATCH_NODES"].split(",")
        for _ in range(int(each.split(":")[1]))
    )
    os.execvp("nsenter", ["nsenter", f"--net=/run/netns/{node['namespace']}", *sys.argv[3:]])


if __name__ == "__main__":
    main()
