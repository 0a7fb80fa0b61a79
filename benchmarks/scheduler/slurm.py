"""A real slurmctld on this machine, which schedules the same gangs as our scheduler on the same number of nodes.

Only Slurm's controller runs. Its nodes have State=CLOUD (powered up on demand, here by a program that does nothing), so
that no slurmd is needed. The figures are slurmctld's own (sdiag, log). Like ours, they exclude submission,
authentication and the start of processes.

Configuration: cons_tres with GPUs, the tree topology plugin, one partition, first come first served, backfill. Limits
of queue depth and time are lifted, so that one pass scans the whole queue. easy: only the head gets a reservation
(bf_min_prio_reserve), as in our scheduler. planning: Slurm's default, a planned start for each gang.

LIMITS lists the differences between both schedulers.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.scheduler.gangs import (
    GPUS,
    RACK_NODES,
    SPINE_RACKS,
    Gang,
    free_nodes,
    head,
    large_nodes,
    small,
    waiting,
)
from tests.ports import held_port

PACKAGES = {"slurmctld": "slurmctld", "sbatch": "slurm-client", "scontrol": "slurm-client", "sdiag": "slurm-client"}

LIMITS = (
    "slurmctld keeps credentials, accounts and the power states of nodes up to date as it allocates; ours does not.",
    "Slurm writes its state some seconds later from another thread; our journal is not in these figures either.",
    "Slurm's tree topology is a preference, and so is ours here; neither gang requires a level.",
    "auth/none and one partition: a production slurmctld does more a job.",
)

RESERVED, BEHIND = 1_000_000, 1_000
"""Job priorities in Slurm: that of the gang with the reservation, and that of the gangs behind it."""

PARTS = ("main", "backfill")
"""Names of Slurm's two schedulers in the output of sdiag."""

SUBMITTERS = 4
PATIENCE_SECONDS = 120.0


class AbsentError(RuntimeError):
    """Slurm is not installed. The message names the missing package."""


def find() -> None:
    """Raise AbsentError if a program of Slurm is missing."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise AbsentError(f"{program} is absent: apt-get install {package}")


def configuration(folder: Path, nodes: int, port: int, cycle_seconds: int) -> str:
    """Return the content of slurm.conf. cycle_seconds: time limit of a scheduling pass."""
    scheduling = (
        "default_queue_depth=1000000",
        "partition_job_depth=0",
        "sched_interval=2",
        f"max_sched_time={cycle_seconds}",
        "sched_min_interval=0",
        "batch_sched_delay=0",
        "bf_continue",
        "bf_interval=2",
        "bf_max_job_test=1000000",
        f"bf_max_time={cycle_seconds}",
        "bf_yield_interval=10000000",
        "bf_window=10080",
        "bf_resolution=60",
        f"bf_min_prio_reserve={RESERVED}",
    )
    user = getpass.getuser()
    return f"""ClusterName=benchmark
SlurmctldHost={socket.gethostname().partition(".")[0]}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={held_port()}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldDebug=info
LogTimeFormat=iso8601_ms
MessageTimeout={cycle_seconds * 3}
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PriorityType=priority/basic
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
TopologyPlugin=topology/tree
SchedulerType=sched/backfill
SchedulerParameters={",".join(scheduling)}
MaxJobCount=100000
SuspendTime=86400
SuspendProgram=/bin/true
ResumeProgram=/bin/true
ResumeTimeout=65000
ResumeRate=0
SuspendRate=0
SlurmdTimeout=0
NodeName=n[{0:05d}-{nodes - 1:05d}] NodeAddr=127.0.0.1 CPUs={GPUS} RealMemory=1000 Gres=gpu:{GPUS} State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def topology(nodes: int) -> str:
    """Return the content of topology.conf, with the same racks and spines as our scheduler gets."""
    racks = range(0, nodes, RACK_NODES)
    lines = [
        f"SwitchName=r{n:04d} Nodes=n[{at:05d}-{min(at + RACK_NODES, nodes) - 1:05d}]" for n, at in enumerate(racks)
    ]
    spines = range(0, len(racks), SPINE_RACKS)
    for number, at in enumerate(spines):
        lines.append(f"SwitchName=s{number:02d} Switches=r[{at:04d}-{min(at + SPINE_RACKS, len(racks)) - 1:04d}]")
    lines.append(f"SwitchName=all Switches=s[00-{len(spines) - 1:02d}]")
    return "\n".join(lines) + "\n"


class Slurm:
    """A running slurmctld. Jobs are identified by their numbers."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.nodes = nodes
        self._configuration = folder / "slurm.conf"
        self._environment = {**os.environ, "SLURM_CONF": str(self._configuration)}
        self._script = folder / "job.sh"
        self._script.write_text("#!/bin/sh\nexec sleep 86400\n")

    def ask(self, *command: str) -> str:
        """Run one of Slurm's commands and return its output. Raises RuntimeError if the command fails."""
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def submit(self, gang: Gang, priority: int = BEHIND) -> str:
        """Submit the gang and return its job number."""
        whole = gang.ranks >= GPUS and not gang.ranks % GPUS
        size = (
            (f"--nodes={gang.ranks // GPUS}", f"--ntasks-per-node={GPUS}", f"--gpus-per-node={GPUS}")
            if whole
            else (f"--ntasks={gang.ranks}", "--gpus-per-task=1")
        )
        minutes = f"{gang.limit_seconds // 60}:{gang.limit_seconds % 60:02d}"
        printed = self.ask(
            "sbatch", "--parsable", *size, f"--time={minutes}", f"--priority={priority}", "--output=/dev/null",
            str(self._script),
        )  # fmt: skip
        return printed.strip()

    def submit_all(self, gangs: Sequence[Gang]) -> list[str]:
        """Close the partition so that no gang starts, submit the gangs, and return their job numbers."""
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            return list(pool.map(self.submit, gangs))

    def open(self, state: str) -> None:
        """Open the partition with state UP, or close it with state DOWN."""
        self.ask("scontrol", "update", "PartitionName=all", f"State={state}")

    def count(self, *states: str) -> int:
        return len(self.ask("squeue", "--noheader", f"--states={','.join(states)}", "--format=%i").split())

    def started(self) -> int:
        """Return the number of gangs that have nodes, including those in state CONFIGURING (nodes are powered up)."""
        return self.count("CONFIGURING", "RUNNING")

    def wait_for_start(self, job: str) -> None:
        """Wait until the job holds its nodes. Raises RuntimeError after a time limit."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.ask("squeue", "--noheader", f"--jobs={job}", "--format=%t").strip() not in ("CF", "R"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"slurmctld has not started job {job} within {PATIENCE_SECONDS:g} s")
            time.sleep(0.2)

    def forget_statistics(self) -> None:
        self.ask("sdiag", "--reset")

    def statistics(self) -> dict[str, float]:
        """Return the figures of sdiag by name, for example 'main/last cycle', in microseconds or as numbers of jobs."""
        found: dict[str, float] = {}
        part = ""
        for line in self.ask("sdiag").splitlines():
            if line.startswith("Main schedule"):
                part = "main"
            elif line.startswith("Backfilling"):
                part = "backfill"
            elif line.startswith("Remote Procedure"):
                part = ""
            elif part and (said := re.fullmatch(r"\s*(.+?):\s+(\d+)", line)):
                found[f"{part}/{said[1].lower()}"] = float(said[2])
            elif said := re.match(r"\s*REQUEST_SUBMIT_BATCH_JOB\s.*ave_time:(\d+)", line):
                found["submit"] = float(said[1])
        return found

    def reserve_for_all(self) -> None:
        """Switch to Slurm's default, in which backfill plans a start for each job that it considers."""
        settings = self._configuration.read_text()
        self._configuration.write_text(settings.replace(f",bf_min_prio_reserve={RESERVED}", ""))
        self.ask("scontrol", "reconfigure")


@contextmanager
def running(nodes: int, cycle_seconds: int) -> Iterator[Slurm]:
    """Run a slurmctld with this many nodes. Raises AbsentError without Slurm, and RuntimeError if it does not start."""
    find()
    with tempfile.TemporaryDirectory(prefix="gangwatch-slurm-") as name:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(configuration(folder, nodes, held_port(), cycle_seconds))
        (folder / "topology.conf").write_text(topology(nodes))
        (folder / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName=n[{0:05d}-{nodes - 1:05d}] Name=gpu Count={GPUS}\n"
        )
        with (folder / "output").open("wb") as output:
            server = subprocess.Popen(
                ["slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf")],
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            slurm = Slurm(folder, nodes)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    slurm.ask("sdiag")
                    break
                except RuntimeError as error:
                    if server.poll() is not None or time.monotonic() > deadline:
                        log_tail = (folder / "output").read_text(errors="replace")[-2000:]
                        raise RuntimeError(f"slurmctld does not answer: {error}\n{log_tail}") from None
                    time.sleep(0.2)
            yield slurm
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def measure(nodes: int, gangs: int, behind: int, cycle_seconds: int) -> dict[str, object]:
    """Return Slurm's figures for the gangs of ``gangs.py``. cycle_seconds: time limit of a pass over the queue."""
    with running(nodes, cycle_seconds) as slurm:
        version = slurm.ask("slurmctld", "-V").split()[-1]
        slurm.open("DOWN")
        slurm.submit_all(small(gangs))
        slurm.forget_statistics()
        slurm.open("UP")
        started, gang_seconds = _first_pass(slurm, gangs, cycle_seconds)
    with running(nodes, cycle_seconds) as slurm:
        large = large_nodes(nodes)
        slurm.wait_for_start(slurm.submit(Gang(large * GPUS, 3600)))
        time.sleep(1.0)  # by then the pass that started it has ended and is counted
        large_seconds = _longest_pass(slurm.statistics())
        slurm.forget_statistics()
        slurm.submit(Gang((nodes + 1) * GPUS, 3600))
        refused_ms = slurm.statistics()["submit"] / 1e3
    with running(nodes, cycle_seconds) as slurm:
        slurm.wait_for_start(slurm.submit(Gang((nodes - free_nodes(nodes)) * GPUS, 7200)))
        slurm.open("DOWN")
        slurm.submit(head(nodes), RESERVED)
        slurm.submit_all(waiting(behind))
        slurm.open("UP")
        easy = _backfill_pass(slurm, behind, cycle_seconds)
        slurm.reserve_for_all()
        planning = _backfill_pass(slurm, behind, cycle_seconds)
    return {
        "version": version,
        "gangs": started,
        "gang_ms": round(gang_seconds * 1e3 / max(started, 1), 3),
        "large_gang_ms": round(large_seconds * 1e3, 2),
        "too_large_ms": round(refused_ms, 3),
        "easy": easy,
        "planning": planning,
        "limits": LIMITS,
    }


def _longest_pass(figures: dict[str, float]) -> float:
    """Return the duration of the longest scheduling pass in seconds.

    It may be a pass of Slurm's main scheduler, of its backfill scheduler, or one at submission.
    """
    return (
        max(figures.get("main/max cycle", 0.0), figures.get("backfill/max cycle", 0.0), figures.get("submit", 0.0))
        / 1e6
    )


def _first_pass(slurm: Slurm, gangs: int, cycle_seconds: int) -> tuple[int, float]:
    """Wait until all gangs have started or a pass has reached its time limit. Return (started gangs, seconds of
    passes)."""
    deadline = time.monotonic() + 3 * cycle_seconds + PATIENCE_SECONDS
    while True:
        time.sleep(1.0)
        figures = slurm.statistics()
        passes = [(figures.get(f"{part}/total cycles", 0.0), figures.get(f"{part}/mean cycle", 0.0)) for part in PARTS]
        started = slurm.started()
        if started and passes[0][0] and (started >= gangs or passes[0][0] * passes[0][1] > cycle_seconds * 0.9e6):
            return started, sum(cycles * mean for cycles, mean in passes) / 1e6
        if time.monotonic() > deadline:
            raise RuntimeError(f"slurmctld has started {started} of {gangs} gangs: {figures}")


def _backfill_pass(slurm: Slurm, behind: int, cycle_seconds: int) -> dict[str, object]:
    """Run one backfill pass over the gangs behind the reservation, and return its figures.

    In the figures, `cut` is whether the pass ended before it had considered all gangs.
    """
    slurm.forget_statistics()
    deadline = time.monotonic() + 3 * cycle_seconds + PATIENCE_SECONDS
    while True:
        time.sleep(1.0)
        figures = slurm.statistics()
        # The first pass may have begun before the setup was complete.
        if figures.get("backfill/total cycles", 0) >= 2:
            seen = int(figures["backfill/last depth cycle"])
            return {
                "cycle_seconds": round(figures["backfill/last cycle"] / 1e6, 4),
                "seen": seen,
                "tried": int(figures["backfill/last depth cycle (try sched)"]),
                "cut": seen < behind,
            }
        if time.monotonic() > deadline:
            raise RuntimeError(f"no backfill pass of slurmctld has ended: {figures}")
