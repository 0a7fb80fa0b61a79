"""Chaos on a cluster with real kubelets: `python -m benchmarks.chaos --rounds 100 --results FILE --json`.

As root on Debian 12, after `make components`. Starts a cluster of three nodes with three fake GPUs each and three
members of etcd, and installs the chart with two controllers. Two gangs of four and three pods run in all rounds. Each
round starts a gang of two, so that all GPUs are in use, and breaks one part at a random moment of its start:

    kubelet, containerd   killed on one node, which starts it again
    leader                the processes of the controller that holds the Lease are killed
    api-server, etcd      kube-apiserver, or one of etcd's three members, is killed and started again
    api-stopped           kube-apiserver does not respond for 4 to 40 s, and continues
    network               one node is cut off for 5 to 50 s; its pods run on
    node-lost             one node is cut off for 70 to 130 s: Kubernetes reports it as lost (only with --faults)
    pods-evicted          one node is cut off for 370 to 430 s: Kubernetes also deletes its pods (only with --faults)

A round ends when the broken part has recovered, all parts are healthy and every gang has run completely for 5 s, or
after 240 s. Then it checks, by the API and by the processes on the nodes:

    half-started   a gang of which only some pods run, or of several attempts
    lost           a gang of which no pod runs
    run twice      two processes of one rank ran at the same moment, at any time of the round (sampled twice a second)

The records of all rounds are appended to --results, from which a later run continues. --minutes ends the run before
--rounds. `restarted` counts the rounds in which a fault moved or restarted one of the two gangs: allowed, but it costs
work. Exits with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.chaos import rounds
from benchmarks.chaos.faults import FAULTS, MEMBERS, USUAL
from tests.kubernetes.real_site import real_site


def earlier(results: Path | None, seed: int) -> list[dict[str, Any]]:
    """Return the records of earlier rounds with this seed. A last line that was cut off is ignored."""
    if results is None or not results.exists():
        return []
    found = []
    for line in results.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["seed"] == seed:
            found.append(record)
    return found


def summary(records: list[dict[str, Any]], wanted: int) -> dict[str, Any]:
    """Return the counts of all rounds. wanted: number of rounds of the whole campaign."""
    failures = [f"round {one['round']} ({one['fault']}): {text}" for one in records for text in one["violations"]]
    times = sorted(one["whole_after_seconds"] for one in records)
    return {
        "rounds": len(records),
        "rounds_wanted": wanted,
        "faults": dict(Counter(one["fault"] for one in records)),
        "violations": len(failures),
        "failures": failures,
        "restarted": dict(Counter(one["fault"] for one in records if one["restarted"])),
        "whole_after_seconds": {"median": times[len(times) // 2], "most": times[-1]} if times else {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="number of rounds, including earlier ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no round after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, metavar="FILE", help="file of all rounds, to continue a campaign")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=USUAL, help="faults of the rounds, in turn")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # so that the cluster is removed
    until = time.monotonic() + 60 * arguments.minutes
    records = earlier(arguments.results, arguments.seed)
    if len(records) < arguments.rounds:
        with real_site(MEMBERS) as site:
            rounds.start_standing(site)
            while len(records) < arguments.rounds and time.monotonic() < until:
                record = rounds.run(site, len(records), arguments.seed, arguments.faults)
                record["load"] = round(os.getloadavg()[0], 1)
                records.append(record)
                print(json.dumps(record), file=sys.stderr, flush=True)
                if arguments.results is not None:
                    with arguments.results.open("a") as stream:
                        stream.write(json.dumps(record) + "\n")
                if record["violations"]:
                    print(site.real.logs(), file=sys.stderr)
    found = summary(records, arguments.rounds)
    print(json.dumps(found) if arguments.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    sys.exit(1 if found["violations"] else 0)


if __name__ == "__main__":
    main()
