"""Speed of gang scheduling on a real API server: `python -m benchmarks.kubernetes --json`.

For each number of nodes, starts a control plane on loopback (etcd on disk, kube-apiserver, no audit log) and creates
node objects without kubelets, or with `--hollow` nodes that KWOK runs. Then runs several schedulers, one after the
other, on the same pods: a loop that only binds pods, as the upper limit of the API server; kube-scheduler without
gangs; kube-scheduler with Kubernetes' own gangs; coscheduling of sigs.k8s.io/scheduler-plugins, Volcano, Kueue and
KAI, if `--coscheduling`, `--volcano`, `--kueue` and `--kai` name their programs; and our controller with its journal
on disk. Results come from a watch of the API server; `load` is the load of the machine at the end.

    binds_per_second      single pods that all fit at once, bound per second. Our controller is frozen while they are
                          created, and time runs from its thaw; the others are started after the creation, and time
                          runs from the first bound pod
    gang_ms               1,000 gangs of 3: milliseconds a gang, from the request that creates the last pod to all bound
    gang_all_ms           the same from the first pod's creation, including the server's time to create them
    gang512_seconds       a 512-pod gang, all of it inside one spine: from the request that creates the last pod to all
                          bound; gang512_all_seconds from the first's; gang512_spines: in how many spines it is
                          (kube-scheduler without gangs and coscheduling cannot keep it in one)
    unschedulable_seconds a gang of 10 that fits no node: from the request that creates its last pod to its condition
                          (without conditions of groups: of all ten pods), as the watch delivers it; median of five
                          gangs, and unschedulable_most_seconds, the longest
    queue_seconds         200 gangs of 2 to 16 pods that all fit: from the request that creates the last pod to all
                          bound; queue_all_seconds from the first's
    PART_*_processor_seconds  of the scheduler, its other programs and the API server, from the first creation to all
                          bound
    PART_not_in_seconds   the part did not end within this limit
    cordon_nodes_per_second  500 nodes reported as broken by verdicts: from the verdicts to the taint on the last node
    rss_mib               a controller that takes over a cluster with ten pods a node, eight of them ours in running
                          gangs of eight: resident once it has settled and has written a snapshot; rss_most_mib: at most
    *_processor_ms        processor time of a bind, by process

`kube_scheduler`, `kube_scheduler_gangs`, `coscheduling`, `volcano`, `kueue`, `kai` and `server` contain the same keys
for the others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from benchmarks.kubernetes import contenders, queueing_peers
from benchmarks.kubernetes.measurements import GPUS, Bed, Figures, Start
from benchmarks.kubernetes.peers import (
    COSCHEDULING,
    GANGS,
    GATES,
    KAI,
    KUEUE,
    KUEUE_API,
    OURS,
    PLAIN,
    SERVER_OPTIONS,
    VOLCANO,
    Peer,
)
from benchmarks.kubernetes.watching import LIMIT_SECONDS, NotInTimeError
from tests.kubernetes.bed import ControlPlane

PARTS = ("binds", "gangs", "gang512", "unschedulable", "queue", "cordon", "memory")
WITH_GANGS = ("gangs", "gang512", "unschedulable", "queue")
"""Parts that every scheduler of gangs runs."""
WHO = ("server", "kube-scheduler", "kube-scheduler-gangs", "coscheduling", "volcano", "kueue", "kai", "gangwatch")
Say = Callable[[str], None]


class Run:
    """Measurements of one cluster. It prints and collects the figures."""

    def __init__(self, bed: Bed, parts: Sequence[str], say: Say) -> None:
        self.bed, self.parts, self.say = bed, parts, say
        self.found: Figures = {}

    def add(self, who: str, figures: Figures) -> None:
        """Add figures. Those of gangwatch have no key of their own."""
        to = self.found if who == OURS.name else self.found.setdefault(who.replace("-", "_"), {})
        to.update(figures)
        self.say(f"{who}: {', '.join(f'{key} {value:.4g}' for key, value in figures.items())}")

    def part(self, who: str, part: str, work: Callable[[], Figures]) -> None:
        """Add the figures of one part.

        A part of a peer that does not end in time has its limit as figure, so that the others are measured.
        """
        try:
            figures = work()
        except NotInTimeError as error:
            if who == OURS.name:
                raise
            self.say(f"{who}: {error}")
            figures = {f"{part}_not_in_seconds": LIMIT_SECONDS}
        self.add(who, figures)

    def binds(self, who: str, scheduler: str, start: Start) -> None:
        """Measure the binding of pods without gangs by a scheduler that `start` starts."""
        if "binds" in self.parts:
            self.part(who, "binds", lambda: self.bed.binds_of(scheduler, start))
            self.bed.clear()

    def of_gangs(self, peer: Peer, process: subprocess.Popen[bytes]) -> None:
        """Run the parts with gangs on a scheduler that runs already."""
        for part in WITH_GANGS:
            if part in self.parts:
                self.part(peer.name, part, partial(getattr(self.bed, part), peer, process))


def measure(count: int, folder: Path, arguments: argparse.Namespace, say: Say) -> Figures:
    """Return the figures for a cluster of this many nodes."""
    with ControlPlane(folder / "plane", manager=False, options=SERVER_OPTIONS) as plane:
        bed = Bed(plane, folder, count, say, arguments.volcano and arguments.volcano[1])
        bed.prepare()
        run = Run(bed, arguments.parts, say)
        hollow = contenders.hollow_nodes(plane, folder / "kwok") if arguments.hollow else nullcontext()
        with bed.seen, hollow:
            for who in WHO:
                if who in arguments.who:
                    _measure_one(who, run, folder, arguments)
        return run.found


def _measure_one(who: str, run: Run, folder: Path, arguments: argparse.Namespace) -> None:
    bed = run.bed
    if who == "server":
        run.binds(who, contenders.BARE, partial(contenders.bare, bed.plane, folder / "bare", bed.count, GPUS))
    elif who == "kube-scheduler":
        start = partial(contenders.kube_scheduler, bed.plane, folder / "other")
        run.binds(who, PLAIN.scheduler, start)
        with start() as process:
            run.of_gangs(PLAIN, process)
    elif who == "kube-scheduler-gangs":
        with contenders.kube_scheduler(bed.plane, folder / "gangs", GATES) as process:
            run.of_gangs(GANGS, process)
    elif who == "coscheduling":
        if arguments.coscheduling is not None:
            with contenders.coscheduling(bed.plane, folder / "coscheduling", arguments.coscheduling) as process:
                run.of_gangs(COSCHEDULING, process)
    elif who == "volcano":
        if arguments.volcano is not None:
            with contenders.volcano(bed.plane, folder / "volcano", arguments.volcano[0]) as process:
                run.of_gangs(VOLCANO, process)
    elif who == "kueue":
        if arguments.kueue is not None:
            program, source = arguments.kueue
            started = queueing_peers.kueue(bed.plane, folder / "kueue", program, source, bed.count, GPUS)
            with started as (process, others):
                bed.seen.follow(f"/apis/{KUEUE_API}/workloads")
                bed.others, bed.finalized = others, True
                run.of_gangs(KUEUE, process)
            bed.others, bed.finalized = {}, False
    elif who == "kai":
        if arguments.kai is not None:
            with queueing_peers.kai(bed.plane, folder / "kai", *arguments.kai) as (process, others):
                bed.others = others
                run.of_gangs(KAI, process)
            bed.others = {}
    else:
        _measure_ours(run, folder / "ours" / "state")


def _measure_ours(run: Run, state: Path) -> None:
    bed = run.bed
    with contenders.controller(bed.plane, state) as process:
        if "binds" in run.parts:
            run.add(OURS.name, bed.binds_of_ours(state, process))
            bed.clear()
        run.of_gangs(OURS, process)
    for name in ("cordon", "memory"):
        if name in run.parts:
            run.add(OURS.name, getattr(bed, name)())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 5000], help="numbers of nodes, one run each")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="measurements to make")
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO), help="schedulers to measure")
    parser.add_argument(
        "--coscheduling", type=Path, metavar="PROGRAM", help="kube-scheduler of sigs.k8s.io/scheduler-plugins"
    )
    parser.add_argument(
        "--volcano",
        type=Path,
        nargs=2,
        metavar=("PROGRAM", "CRDS"),
        help="Volcano's scheduler, and the folder of its definitions",
    )
    parser.add_argument(
        "--kueue",
        type=Path,
        nargs=2,
        metavar=("PROGRAM", "CONFIG"),
        help="Kueue, and the folder config/components of its repository",
    )
    parser.add_argument(
        "--kai",
        type=Path,
        nargs=2,
        metavar=("PROGRAMS", "CRDS"),
        help="folder of KAI's scheduler and binder, and the folder of KAI's definitions",
    )
    parser.add_argument(
        "--hollow",
        action="store_true",
        help="let KWOK (packaging/kubernetes/kwok/build.sh) run the nodes and their pods",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder to keep all logs in")
    arguments = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # so that all started processes are stopped

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found: dict[str, Figures] = {}
    for count in arguments.nodes:
        with tempfile.TemporaryDirectory(prefix="gangwatch-kubernetes-") as temporary:
            folder = Path(temporary) if arguments.keep is None else arguments.keep / str(count)
            try:
                found[str(count)] = measure(count, folder, arguments, say)
            except BaseException:
                for log in sorted(folder.glob("*/*.log")):
                    if log.parent.name != "plane":
                        say(f"{log.name}: {log.read_text()[-3000:]}")
                raise
    if arguments.json:
        print(json.dumps({"load": os.getloadavg(), **found}))
    else:
        for name, figures in found.items():
            print(f"{name} nodes on {os.cpu_count()} processors: {figures}")


if __name__ == "__main__":
    main()
