"""The shim: a small process for each node and attempt that starts the ranks, waits for them and records their ends.

It is the ranks' parent, so only it can get their exit codes. It outlives the controller, which only reads the shim's
files (attempt_files.py). Run as a file, in a bare interpreter, as the leader of a session::

    python -I -S shim.py ATTEMPT_FOLDER NODE

1. It creates its folder (only one shim of a node succeeds) and records whether its ranks could start.
2. It waits for the gang's decision: no rank starts unless every node is ready. After a timeout it decides to abort.
3. It forks every rank, and each waits. Once all ranks of the node are recorded, they execute their programs. If one
   cannot, the gang is stopped on every node.
4. It waits for its children, for a stop request, and for deadlines. A failed rank stops the gang on every node, even
   without a controller.
5. Once its ranks have exited, it ends everything else of the job. As a subreaper it inherits processes that called
   setsid or lost their parent, so the attempt has ended when wait(2) has no child left.

The stop signal goes to the ranks' own processes (launchers such as torchrun forward it to their workers). SIGCONT to
all processes follows, because a stopped process could not handle the signal. After the grace period, everything is
killed. SIGTERM or SIGINT to the shim itself stops the gang in the same way. A full disk delays records but loses none.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from scheduler_feedback.backends.local import attempt_files, checkpoint_command, local_processes, rank_launch
else:  # run as a file: importing the package would take longer than everything else here
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import attempt_files
    import checkpoint_command
    import local_processes
    import rank_launch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

_POLL_SECONDS = 0.25  # a poke (SIGUSR1) is handled at once; polling finds changes whose poke was lost or not sent
_LEFTOVER_SECONDS = 1.0  # between SIGTERM and SIGKILL for processes that remain after the ranks have exited
_KILL_AGAIN_SECONDS = (0.005, 0.5)  # first and longest pause between two passes of SIGKILL
_SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def poke(folder: str, nodes: Iterable[str]) -> None:
    """Send a signal to the attempt's shims on these nodes, so that they read their folder at once."""
    for node in nodes:
        about = attempt_files.read(f"{folder}/{node}/{attempt_files.SHIM}")
        if about is not None and about["boot_id"] == local_processes.boot_id():
            local_processes.send_signal(about["pid"], about["start_time"], signal.SIGUSR1)


class Shim:
    """The shim of one attempt on one node: it starts the ranks, waits for them, and records their ends."""

    def __init__(self, folder: str, node: str) -> None:
        plan = attempt_files.read(f"{folder}/{attempt_files.ATTEMPT}")
        if plan is None:
            sys.exit(f"{folder}: there is no attempt in this folder")
        self.plan = plan
        self.folder, self.node = folder, node
        self.own = f"{folder}/{node}"
        self.ranks = rank_launch.ranks_on(plan, node)
        self.environments = {rank: rank_launch.rank_environment(plan, node, rank) for rank in self.ranks}
        self.pid = os.getpid()
        self.start_time = local_processes.start_time(self.pid)
        self.programs: dict[int, str] = {}  # rank -> path
        self.directory = ""
        self.logs: dict[int, int] = {}  # rank -> descriptor
        self.cgroup: str | None = None
        self.running: dict[int, int] = {}  # pid -> rank
        self.failure = ""  # why a rank could not be started
        self.stopping = self.signalled = self.clearing = False
        # The save under way, and the stop request that waits for it.
        self.saving: tuple[checkpoint_command.Checkpoint, dict[str, Any]] | None = None
        self.kill_at: float | None = None  # monotonic seconds
        self.end_requested = False
        self.executed: set[int] = set()  # ranks that have executed their program
        self.unwritten: list[tuple[str, dict[str, Any], bool]] = []  # path, record, durable
        self.complaints: set[str] = set()

    def serve(self) -> None:
        """Run the shim from start to end."""
        parent = local_processes.own_cgroup() if self.plan["use_cgroups"] else None
        # The cgroup is recorded before it exists, so that a cleanup after this shim's death finds it.
        cgroup = None if parent is None else f"{parent}/gangwatch-{self.pid}-{self.start_time}"
        boot_id = local_processes.boot_id()
        about = {"pid": self.pid, "start_time": self.start_time, "boot_id": boot_id, "cgroup": cgroup}
        if not attempt_files.create_folder(self.own, {attempt_files.SHIM: attempt_files.encode(about)}):
            return
        if cgroup is not None and local_processes.create_cgroup(cgroup):
            self.cgroup = cgroup
        try:
            self.report_readiness()
            if self.wait_for_decision():
                self.start()
                self.watch()
                self.end()
        finally:
            if self.cgroup is not None:
                local_processes.remove_cgroup(self.cgroup)

    # --- before the start --------------------------------------------------------------------------------------------

    def report_readiness(self) -> None:
        """Check programs, folders and logs of the ranks, and record whether the ranks can be started."""
        try:
            environment = self.environments[self.ranks[0]]
            self.directory = rank_launch.working_directory(self.plan, environment)
            found: dict[str, str] = {}  # all ranks of a job have the same PATH
            for rank in self.ranks:
                program = rank_launch.command_of(self.plan, rank)[0]
                if program not in found:
                    of = rank_launch.name_of_command(self.plan, rank)
                    found[program] = rank_launch.find_program(program, environment, self.directory, of)
                self.programs[rank] = found[program]
            if 0 in self.ranks and (saves := self.plan["spec"].get("checkpoint_command")):
                rank_launch.find_program(saves[0], environment, self.directory, "the checkpoint command")
            for rank in self.ranks:
                rank_file, log_file = self.paths(rank)
                os.makedirs(os.path.dirname(rank_file), mode=0o700, exist_ok=True)
                os.makedirs(os.path.dirname(log_file), mode=0o700, exist_ok=True)
                self.logs[rank] = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            attempt_files.write(f"{self.own}/{attempt_files.REFUSED}", {"reason": local_processes.describe(error)})
        else:
            attempt_files.write(f"{self.own}/{attempt_files.READY}", {})

    def paths(self, rank: int) -> tuple[str, str]:
        """Return (path of the rank's file for the node's agent, path of the rank's log)."""
        state_folder, job_id, attempt = self.plan["state_folder"], self.plan["job_id"], self.plan["attempt"]
        return (
            attempt_files.rank_file(state_folder, self.node, job_id, attempt, rank),
            attempt_files.log_file(state_folder, job_id, attempt, rank),
        )

    def wait_for_decision(self) -> bool:
        """Wait for the decision, and return whether the gang starts. After a timeout the shim decides to abort."""
        deadline = time.monotonic() + self.plan["decision_timeout_seconds"]
        while (decided := attempt_files.decision(self.folder)) is None:
            self.wait_for_signal(0.1)
            try:
                if self.end_requested:
                    why = f"the shim of node {self.node} received a signal to end"
                elif time.monotonic() > deadline:
                    why = f"node {self.node} was ready, but no controller decided"
                else:
                    continue
                attempt_files.decide(self.folder, attempt_files.ABORT, why)
            except FileNotFoundError:  # the attempt was removed
                return False
            except OSError as error:
                self.complain(f"{attempt_files.DECISION}: {local_processes.describe(error)}")
        return decided[0] == attempt_files.GO

    # --- the start ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fork all ranks and record them, then let them execute their programs, and check whether each has done so."""
        gate, release = os.pipe()
        results: dict[int, int] = {}
        try:
            for rank in self.ranks:
                results[rank], error_pipe = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.close(release)
                    self.become_rank(rank, gate, error_pipe)
                os.close(error_pipe)
                self.running[pid] = rank
            about = {rank: self.about(pid, rank) for pid, rank in self.running.items()}
            for rank in self.ranks:
                attempt_files.write(self.paths(rank)[0], about[rank])
            os.write(release, b"." * len(self.ranks))
        except OSError as error:
            self.failure = f"node {self.node}: {local_processes.describe(error)}"
        finally:
            os.close(release)  # a rank that was not released reads the end of the pipe, and exits
            os.close(gate)
        for rank in self.running.values():
            failure = os.read(results[rank], 4096).decode(errors="replace")  # exec closes the pipe
            if failure:
                self.failure = self.failure or f"rank {rank} on node {self.node}: {failure}"
            elif not self.failure:
                self.executed.add(rank)
                self.keep(attempt_files.start_record(rank), {**about[rank], "wall_ns": time.time_ns()}, durable=False)
        self.write_records()
        for descriptor in (*results.values(), *self.logs.values()):
            os.close(descriptor)
        if self.failure:
            self.stop_all("SIGKILL", 0.0, "start-failed", self.failure)

    def about(self, pid: int, rank: int) -> dict[str, Any]:
        """Return the content of the rank's file, by which the node's agent finds the rank's process."""
        return {
            "gang": self.plan["job_id"],
            "attempt": self.plan["attempt"],
            "rank": rank,
            "pid": pid,
            "start_time": local_processes.start_time(pid),
            "slot": self.plan["placement"][rank]["slot"],
            "shim_pid": self.pid,
            "shim_start_time": self.start_time,
        }

    def become_rank(self, rank: int, gate: int, error_pipe: int) -> NoReturn:
        """In the forked child, wait for a byte from `gate`, then execute the rank's program. Errors go to the pipe."""
        try:
            if local_processes.settle(self.pid, self.logs[rank], self.directory, self.cgroup) and os.read(gate, 1):
                if self.plan["spec"].get("opportunistic"):
                    local_processes.run_when_idle(self.cgroup)
                local_processes.become(
                    self.programs[rank], rank_launch.command_of(self.plan, rank), self.environments[rank]
                )
        except BaseException as error:
            os.write(error_pipe, local_processes.describe(error).encode(errors="replace")[:4096])
        finally:
            os._exit(127)

    # --- while it runs -----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch the ranks, and stop them on request, until no process of the attempt is left on the node."""
        again = _KILL_AGAIN_SECONDS[0]
        while self.reap():
            self.write_records()
            self.check_stop_request()
            self.save()
            now = time.monotonic()
            if not self.running and self.saving is None and not self.clearing:
                self.clearing = True
                self.kill_no_later_than(now + _LEFTOVER_SECONDS)
                local_processes.kill_descendants(signal.SIGTERM)
                local_processes.kill_descendants(signal.SIGCONT)
            if self.kill_at is None:
                self.wait_for_signal(_POLL_SECONDS)
            elif now < self.kill_at:
                self.wait_for_signal(min(_POLL_SECONDS, self.kill_at - now))
            else:
                if self.cgroup is not None:
                    local_processes.kill_cgroup(self.cgroup)
                local_processes.kill_descendants(signal.SIGKILL)
                self.wait_for_signal(again)
                again = min(2 * again, _KILL_AGAIN_SECONDS[1])

    def reap(self) -> bool:
        """Record the exit of every rank that has ended. Return whether any child process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self.saving is not None and pid == self.saving[0].pid:
                self.saving[0].ended(local_processes.exit_code(status))
                continue
            rank = self.running.pop(pid, None)
            if rank is None or rank not in self.executed:  # adopted, or never released
                continue
            code = local_processes.exit_code(status)
            self.keep(attempt_files.exit_record(rank), {"rank": rank, "exit_code": code, "wall_ns": time.time_ns()})
            if code != 0 and not self.stopping:
                self.check_stop_request()  # an earlier stop request may be the reason for its end
            if code != 0 and not self.stopping:
                spec = self.plan["spec"]
                reason = f"rank {rank} on node {self.node} exited with {code}"
                about = {"rank": rank, "exit_code": code}
                self.stop_all(spec["checkpoint_signal"], spec["grace_seconds"], "rank-failed", reason, **about)

    def check_stop_request(self) -> None:
        """Begin to stop the ranks if a signal to the shim or a file in the attempt's folder requests it."""
        if self.stopping:
            return
        request = attempt_files.read(f"{self.folder}/{attempt_files.STOP}")
        if request is not None:
            self.begin_stop(request)
        elif self.end_requested:
            spec = self.plan["spec"]
            reason = f"the shim of node {self.node} received a signal to end"
            self.stop_all(spec["checkpoint_signal"], spec["grace_seconds"], "shim-ended", reason)

    def stop_all(self, signal_name: str, grace_seconds: float, why: str, reason: str, **more: object) -> None:
        """Stop the gang on every node. On this node it stops even if the request cannot be written to disk."""
        request = {"signal": signal_name, "grace_seconds": grace_seconds, "why": why, "reason": reason, **more}
        self.unwritten.append((f"{self.folder}/{attempt_files.STOP}", request, True))
        self.begin_stop(request)
        self.write_records()

    def begin_stop(self, request: dict[str, Any]) -> None:
        """Start the checkpoint command if one is requested and ranks are running. Else signal the ranks at once."""
        self.stopping = True
        wanted = request.get("checkpoint")
        if wanted is None or not self.running:
            self.signal_ranks(request)
            return
        self.signalled = True  # a rank that ends during the save may be unfinished
        self.saving = checkpoint_command.Checkpoint(self.plan, self.folder, self.node, wanted, self.cgroup), request

    def save(self) -> None:
        """If the checkpoint command has ended, record its result and signal the ranks."""
        if self.saving is None:
            return
        saving, request = self.saving
        saving.poll()
        if saving.over:
            self.saving = None
            if saving.record is not None:
                self.unwritten.append((f"{self.folder}/{attempt_files.SAVED}", saving.record, True))
                self.write_records()
            self.signal_ranks(request)

    def signal_ranks(self, request: dict[str, Any]) -> None:
        self.kill_no_later_than(time.monotonic() + request["grace_seconds"])
        if request["grace_seconds"] > 0:
            self.signalled = self.signalled or bool(self.running)
            for pid in self.running:  # not reaped yet, so no other process can have these pids
                os.kill(pid, signal.Signals[request["signal"]])
            local_processes.kill_descendants(signal.SIGCONT)

    def kill_no_later_than(self, instant: float) -> None:
        self.kill_at = instant if self.kill_at is None else min(instant, self.kill_at)

    # --- records -----------------------------------------------------------------------------------------------------

    def keep(self, name: str, value: dict[str, Any], durable: bool = True) -> None:
        """Add a record of this node to the queue of ``write_records``. durable: sync it to disk."""
        self.unwritten.append((f"{self.own}/{name}", value, durable))

    def write_records(self) -> None:
        """Write the queued records in order. After an error, the remaining records are written in a later call."""
        while self.unwritten:
            path, value, durable = self.unwritten[0]
            try:
                if os.path.basename(path) in (attempt_files.STOP, attempt_files.SAVED):
                    if attempt_files.claim(path, attempt_files.encode(value)):
                        poke(self.folder, [node for node in rank_launch.nodes_of(self.plan) if node != self.node])
                else:
                    attempt_files.write(path, value, durable)
            except FileNotFoundError:  # the attempt was removed, so the record has no reader
                pass
            except OSError as error:
                # Without the file name: temporary names differ at each try, and each would be logged.
                self.complain(
                    f"{os.path.basename(path)} is not written yet: {error.strerror or local_processes.describe(error)}"
                )
                return
            del self.unwritten[0]

    def end(self) -> None:
        """Write the exits of the ranks, remove the rank files, and then record the end of the attempt on this node."""
        self.save()  # the command and the last rank may have ended at the same time
        wall_ns = time.time_ns()
        self.flush_records()
        for rank in self.ranks:
            try:
                os.unlink(self.paths(rank)[0])
            except FileNotFoundError:
                pass
            except OSError as error:  # a remaining file names a dead process, which does no harm
                self.complain(local_processes.describe(error))
        fate = {"started": not self.failure, "signalled": self.signalled, "reason": self.failure}
        self.keep(attempt_files.ENDED, {"wall_ns": wall_ns, **fate})
        self.flush_records()

    def flush_records(self) -> None:
        self.write_records()
        while self.unwritten:
            self.wait_for_signal(_POLL_SECONDS)
            self.write_records()

    def wait_for_signal(self, seconds: float) -> None:
        """Sleep until a signal arrives, at most this many seconds."""
        information = signal.sigtimedwait(_SIGNALS, seconds)
        if information is not None and information.si_signo in (signal.SIGTERM, signal.SIGINT):
            self.end_requested = True

    def complain(self, text: str) -> None:
        """Write a message to the shim's log, unless it was written before."""
        if text not in self.complaints:
            self.complaints.add(text)
            try:
                os.write(2, f"{text}\n".encode(errors="replace"))
            except OSError:
                pass


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    local_processes.close_descriptors()
    os.chdir("/")
    local_processes.become_subreaper()
    folder, node = sys.argv[1:]
    Shim(folder, node).serve()


if __name__ == "__main__":
    main()
