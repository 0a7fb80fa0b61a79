"""Test cluster: a whole Slurm on this machine in its own folder, with munged, slurmctld and one slurmd for each node.

It runs Debian's packages with real daemons and real srun ranks. Only the GPUs are fake: character devices like
/dev/null, which Slurm counts, binds and assigns like GPUs. The cluster touches nothing outside the folder except TCP
ports on loopback. At its end it ends every process that it started, jobs included. It needs root: Slurm's daemons start
steps as other users, and mknod(2) makes devices.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.ports import held_ports

PACKAGES = {
    "munged": "munge",
    "mungekey": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
}
"""The required programs, and the Debian package of each."""

GPUS = 8
PATIENCE_SECONDS = 60.0
NODE = "gpu{:03d}"

SCHEDULING = (
    "bf_interval=2",
    "sched_interval=2",
    "sched_min_interval=100000",
    "batch_sched_delay=0",
    "defer_batch",
    "bf_continue",
)
"""Interval of Slurm's scheduler: two seconds instead of the default half minute."""


class AbsentError(RuntimeError):
    """A program or root's rights are missing; the message says which."""


def find() -> None:
    """Raise AbsentError if a test cluster cannot run on this machine."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise AbsentError(f"{program} is absent: apt-get install {package}")
    if os.geteuid() != 0:
        raise AbsentError("Slurm's daemons and mknod(2) need root")


class Bed:
    """Test Slurm cluster that runs inside the ``with``.

    nodes: number of nodes. environment: additional variables of every rank, exported by a TaskProlog; '{node}' is
    replaced by the node's name.
    """

    def __init__(self, nodes: int = 64, environment: Mapping[str, str] | None = None, gpus: int = GPUS) -> None:
        find()
        self.count = nodes
        self.gpus = gpus
        self.names = [NODE.format(number) for number in range(1, nodes + 1)]
        self._environment = dict(environment or {})
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # --- coming and going --------------------------------------------------------------------------------------------

    def __enter__(self) -> Bed:
        # The folder of the tests would be too long: slurmd and munged bind sockets there, whose paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="gw-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        try:
            self._lay_out()
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _lay_out(self) -> None:
        for name in ("state", "spool", "log", "pid", "dev"):
            (self.folder / name).mkdir()
        for index in range(self.gpus):
            os.mknod(self.folder / "dev" / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        # One port for slurmctld, one for each slurmd.
        self._controller_port, *self._node_ports = held_ports(self.count + 1)
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName={self._all()} Name=gpu Type=h200 File={self.folder}/dev/gpu[0-{self.gpus - 1}]\n"
        )
        self.export(self._environment)

    def export(self, environment: Mapping[str, str]) -> None:
        """Set additional variables of all ranks; '{node}' is replaced by the node's name."""
        lines = (f'echo "export {name}={value}"' for name, value in environment.items())
        new = self.folder / "task_prolog.new"
        new.write_text("#!/bin/sh\n" + "\n".join(lines).replace("{node}", "$SLURMD_NODENAME") + "\n")
        new.chmod(0o755)
        new.rename(self.folder / "task_prolog")  # a script that a rank is just starting cannot be written

    def _all(self) -> str:
        return f"gpu[001-{self.count:03d}]"

    def _configuration(self) -> str:
        folder, host = self.folder, socket.gethostname().partition(".")[0]
        return f"""ClusterName=bed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={self._controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/pid/slurmctld.pid
SlurmdPidFile={folder}/pid/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
SlurmctldDebug=info
SlurmdDebug=error
TaskProlog={folder}/task_prolog
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters={",".join(SCHEDULING)}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=1
SlurmdTimeout=8
MessageTimeout=20
TreeWidth=64
MaxJobCount=20000
NodeName={self._all()} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{",".join(map(str, sorted(self._node_ports)))}] CPUs=64 RealMemory=1000 Gres=gpu:h200:{self.gpus} Weight=10 Feature=h200 State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""  # noqa: E501 - a line of slurm.conf is one line

    def _begin(self) -> None:
        key = self.folder / "munge.key"
        subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True, capture_output=True)
        self._start(
            "munged",
            "munged", "--foreground", "--force",
            *(f"--{name}={self.folder}/munge.{end}" for name, end in
              (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("seed-file", "seed"))),
        )  # fmt: skip
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self._wait("every node idle", lambda: len(self.nodes_in("idle")) == self.count)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                output = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._logs(ended))
                raise RuntimeError(f"{what}: not within {PATIENCE_SECONDS:g} s; ended: {ended}\n{output}")
            time.sleep(0.1)

    def _logs(self, names: Sequence[str]) -> list[Path]:
        wanted = [*names[:2], "slurmctld"]
        paths = [self.folder / "log" / f"{name}.{end}" for name in wanted for end in ("out", "log")]
        return [path for path in paths if path.exists()]

    def _end(self) -> None:
        """End slurmctld first, because it would restart jobs, then all else. No state is saved."""
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
            daemon.wait()
        self._kill_steps()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_steps(self) -> None:
        """Kill every process whose environment has this cluster's slurm.conf: step daemons and their children."""
        mark = f"SLURM_CONF={self.folder}/".encode()
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) != os.getpid():
                try:
                    mine = mark in (path / "environ").read_bytes()
                except OSError:
                    continue
                if mine:
                    try:
                        os.kill(int(path.name), signal.SIGKILL)
                    except ProcessLookupError:
                        continue

    # --- daemons and nodes -------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.configuration)}

    def start_controller(self) -> None:
        """Start slurmctld, which reads the state that an earlier one saved."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))
        self._wait("slurmctld", self._answers)

    def _answers(self) -> bool:
        return subprocess.run(["scontrol", "ping"], env=self.environment, capture_output=True).returncode == 0

    def kill_controller(self) -> None:
        daemon = self._daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self.configuration))

    def kill_node(self, name: str) -> None:
        """Send SIGKILL to a node's slurmd. Its step daemons and ranks survive."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def controller_pid(self) -> int:
        return self._daemons["slurmctld"].pid

    def reset(self) -> None:
        """Remove all jobs, and make every node idle as in slurm.conf."""
        if numbers := self.ask("squeue", "--noheader", "--format=%A").split():
            for options in (("--state=PENDING",), ("--signal=KILL", "--full"), ()):
                subprocess.run(["scancel", *options, *numbers], env=self.environment, capture_output=True)
        for line in self.ask("scontrol", "--oneliner", "show", "reservation").splitlines():
            if name := fields(line).get("ReservationName"):
                self.ask("scontrol", "delete", f"ReservationName={name}")
        for name in self.names:
            if name not in self._daemons:
                self.start_node(name)
        # A node is completing for some seconds after its processes have ended; a node that is down has nothing to
        # complete.
        if completing := self.nodes_in("completing"):
            self.ask("scontrol", "update", f"NodeName={','.join(completing)}", "State=DOWN", "Reason=reset")
        self.wait_for("no jobs", lambda: not self.ask("squeue", "--noheader").strip())
        self.ask("scontrol", "update", f"NodeName={self._all()}", "Comment=")
        self.ask("scontrol", "reconfigure")
        self.wait_for("every node idle", self._all_idle)

    def _all_idle(self) -> bool:
        """Return whether all nodes are idle and respond. A resumed node may respond to slurmctld only later."""
        if drained := self.nodes_in("drain", "down"):
            command = ["scontrol", "update", f"NodeName={','.join(drained)}", "State=RESUME"]
            subprocess.run(command, env=self.environment, capture_output=True)
        output = self.ask("scontrol", "--oneliner", "show", "nodes").splitlines()
        return all(fields(line).get("State") == "IDLE" for line in output)

    # --- queries -----------------------------------------------------------------------------------------------------

    def ask(self, *command: str, given: str | None = None) -> str:
        """Return the output of a Slurm command. Raises RuntimeError if it fails."""
        done = subprocess.run(
            command, env=self.environment, input=given, capture_output=True, text=True, cwd=self.folder, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def nodes_in(self, *states: str) -> list[str]:
        output = self.ask("sinfo", "--noheader", "--Node", f"--states={','.join(states)}", "--format=%N")
        return sorted(set(output.split()))

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script. Return its job number."""
        output = self.ask("sbatch", "--parsable", "--output=/dev/null", *options, given=f"#!/bin/sh\n{script}\n")
        return output.strip().partition(";")[0]

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`."""
        return fields(self.ask("scontrol", "--oneliner", "show", "job", number))

    def node(self, name: str) -> dict[str, str]:
        return fields(self.ask("scontrol", "--oneliner", "show", "node", name))

    def wait_for(self, what: str, done: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for the condition. Raises TimeoutError with `what` and the end of slurmctld's log."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                output = (self.folder / "log" / "slurmctld.log").read_text(errors="replace")[-1500:]
                raise TimeoutError(f"{what}: not within {seconds:g} s\n{output}")
            time.sleep(0.1)


def fields(line: str) -> dict[str, str]:
    """Return the KEY=VALUE pairs of a line. A word without '=' belongs to the value before it."""
    found: dict[str, str] = {}
    newest = ""
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals and key[:1].isalpha():
            newest = key
            found[key] = value
        elif newest:
            found[newest] += f" {word}"
    return found


if __name__ == "__main__":  # run a bed by hand: python -m tests.slurm.bed 4
    with Bed(int(sys.argv[1]) if len(sys.argv) > 1 else 4) as bed:
        sys.stdout.write(f"SLURM_CONF={bed.configuration}\n")
        sys.stdout.flush()
        signal.pause()
