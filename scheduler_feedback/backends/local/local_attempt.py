"""The controller's part of one attempt: decide its start, read events from its files, clean up after dead shims."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scheduler_feedback.backends.local import attempt_files, local_processes, process_trees, rank_launch, shim
from scheduler_feedback.backends.local.memory_errors import shows_full_device
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    Checkpointed,
    Event,
    RankExit,
    RankFailed,
    RankSeen,
)


class FollowedAttempt:
    """Reader of the folder of one attempt, which returns each event once.

    Only the events that it has already returned are in memory. Another controller process can continue from the files.
    """

    def __init__(
        self, folder: Path, job_id: str, attempt: int, now_seconds: float, start_shim: Callable[[Path, str], None]
    ) -> None:
        """Read the plan. now_seconds: monotonic time. start_shim: called with folder and node to start a shim."""
        self.folder = folder
        self.job_id = job_id
        self.attempt = attempt
        self.done = False
        self._start_shim = start_shim
        self._first_seen_seconds = now_seconds
        self._plan = attempt_files.read(f"{folder}/{attempt_files.ATTEMPT}")
        self._nodes = [] if self._plan is None else rank_launch.nodes_of(self._plan)
        self._shims_started: set[str] = set()
        self._stop_requested = False
        self._running_reported = False
        self._failure_reported = False
        self._shims: dict[str, dict[str, Any]] = {}  # by node; shim.json never changes
        self._ended: dict[str, dict[str, Any]] = {}  # by node

    # --- for the backend ---------------------------------------------------------------------------------------------

    def start_missing_shims(self) -> None:
        """Start a shim on every node that has none. A second shim on a node finds its folder taken and exits."""
        for node in self._nodes:
            if node not in self._shims_started and not (self.folder / node).exists():
                self._shims_started.add(node)
                self._start_shim(self.folder, node)

    def stop(
        self,
        signal_name: str,
        grace_seconds: float,
        why: str,
        reason: str,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        """Stop the attempt: abort it if its start is not decided, else request the stop from its shims.

        checkpoint: the command that saves a checkpoint first, and its time limit.

        Only the first request counts. Raises OSError if it could not be written.
        """
        if self._stop_requested:
            return
        if attempt_files.decide(str(self.folder), attempt_files.ABORT, reason) or self._aborted() is not None:
            shim.poke(str(self.folder), self._nodes)
        elif not all((self.folder / node / attempt_files.ENDED).exists() for node in self._nodes):
            self._request_stop(signal_name, grace_seconds, why, reason, checkpoint)
        self._stop_requested = True

    def poll(self, now_seconds: float, timeout_seconds: float) -> list[Event]:
        """Decide the start if it is due, clean up after dead shims, and return the events since the last call.

        timeout_seconds: time limit for a shim to report whether its node is ready.
        """
        if self.done:
            return []
        if attempt_files.decision(str(self.folder)) is None:
            self._decide(now_seconds, timeout_seconds)
        decided = attempt_files.decision(str(self.folder))
        if decided is None:
            return []
        if decided[0] == attempt_files.GO and self._plan is not None:
            return self._follow(self._plan)
        self.done = True
        if self._plan is None:
            return [AttemptUnknown(self.job_id, self.attempt)]
        wall_ns = (self.folder / attempt_files.DECISION).stat().st_mtime_ns
        return [AttemptEnded(self.job_id, self.attempt, (), False, decided[1], wall_ns)]

    # --- before the start --------------------------------------------------------------------------------------------

    def _aborted(self) -> str | None:
        decided = attempt_files.decision(str(self.folder))
        return decided[1] if decided is not None and decided[0] == attempt_files.ABORT else None

    def _decide(self, now_seconds: float, timeout_seconds: float) -> None:
        """Decide 'go' once every node is ready. Decide 'abort' if a node refuses or the time limit is reached."""
        if self._plan is None:
            attempt_files.decide(str(self.folder), attempt_files.ABORT, "the start was never carried out")
            return
        self.start_missing_shims()
        waiting = []
        for node in self._nodes:
            own = f"{self.folder}/{node}"
            refused = attempt_files.read(f"{own}/{attempt_files.REFUSED}")
            if refused is not None:
                ranks = ", ".join(map(str, rank_launch.ranks_on(self._plan, node)))
                self._abort(f"node {node} cannot start rank {ranks}: {refused['reason']}")
                return
            about = self._shim(node)
            if about is not None and not _is_alive(about):
                if about["cgroup"] is not None:  # no process was ever in it
                    local_processes.remove_cgroup(about["cgroup"])
                self._abort(f"the shim of node {node} died before the start{self._last_log_line(node)}")
                return
            if attempt_files.read(f"{own}/{attempt_files.READY}") is None:
                waiting.append(node)
        if not waiting:
            attempt_files.decide(str(self.folder), attempt_files.GO, "")
            shim.poke(str(self.folder), self._nodes)
        elif now_seconds - self._first_seen_seconds > timeout_seconds:
            self._abort(f"no response within {timeout_seconds:g} s from node {', '.join(waiting)}")

    def _abort(self, reason: str) -> None:
        attempt_files.decide(str(self.folder), attempt_files.ABORT, reason)
        shim.poke(str(self.folder), self._nodes)

    def _last_log_line(self, node: str) -> str:
        """Return the last line in the log of the node's shim; '' if there is none."""
        try:
            lines = Path(attempt_files.shim_log(str(self.folder), node)).read_text(errors="replace").split("\n")
        except OSError:
            return ""
        lines_written = [line.strip() for line in lines if line.strip()]
        return f": {lines_written[-1]}" if lines_written else ""

    # --- after the start ---------------------------------------------------------------------------------------------

    def _follow(self, plan: rank_launch.Plan) -> list[Event]:
        for node in self._nodes:
            if node not in self._ended:
                self._follow_node(plan, node)
        all_ended = len(self._ended) == len(self._nodes)
        # Start records are read after the ends, so that a gang that ran and ended between two calls yields both events.
        # They are read before anything is marked as reported, so that a failed read loses no event.
        starts = {} if self._running_reported else self._rank_records(plan, attempt_files.start_record)
        request = attempt_files.read(f"{self.folder}/{attempt_files.STOP}")
        ended = self._account(plan, request) if all_ended else None
        events: list[Event] = []
        if starts and all(starts.values()):
            self._running_reported = True
            events.append(AttemptRunning(self.job_id, self.attempt, _ranks_seen(plan, starts)))
        # Reported before an end too: the stop ended the other ranks, so their exit codes do not show which one failed.
        if request is not None and request["why"] == "rank-failed" and not self._failure_reported:
            self._failure_reported = True
            events.append(RankFailed(self.job_id, self.attempt, request["rank"], request["exit_code"]))
        if ended is not None:
            self.done = True
            events.append(ended)
        return events

    def _follow_node(self, plan: rank_launch.Plan, node: str) -> None:
        """Read whether the attempt has ended on the node. If its shim died before that, clean up the node."""
        about = self._shim(node)
        # Check the process before the record: a shim that ends in between has written it by then.
        alive = about is not None and _is_alive(about)
        ended = attempt_files.read(f"{self.folder}/{node}/{attempt_files.ENDED}")
        if ended is not None:
            self._ended[node] = ended
        elif not alive:
            self._clean_up(plan, node, about or {})

    def _shim(self, node: str) -> dict[str, Any] | None:
        """Return the record of the node's shim; None if no shim has started yet."""
        if node not in self._shims:
            about = attempt_files.read(f"{self.folder}/{node}/{attempt_files.SHIM}")
            if about is None:
                return None
            self._shims[node] = about
        return self._shims[node]

    def _account(self, plan: rank_launch.Plan, request: dict[str, Any] | None) -> AttemptEnded:
        exits = self._rank_records(plan, attempt_files.exit_record)
        codes = {rank: None if record is None else record["exit_code"] for rank, record in exits.items()}
        reasons = [ended["reason"] for ended in self._ended.values() if ended["reason"]]
        if not reasons and request is not None:
            reasons = [request["reason"] or request["why"]]
        return AttemptEnded(
            self.job_id,
            self.attempt,
            tuple(RankExit(rank, codes[rank]) for rank in sorted(codes)),
            started=all(ended["started"] for ended in self._ended.values()),
            reason="; ".join(reasons),
            ended_wall_ns=max(ended["wall_ns"] for ended in self._ended.values()),
            why="" if request is None else request["why"],
            signalled=any(ended["signalled"] for ended in self._ended.values()),
            checkpointed=self._checkpointed(request),
            out_of_memory=any(self._ran_out(plan, rank) for rank, code in codes.items() if code),
        )

    def _ran_out(self, plan: rank_launch.Plan, rank: int) -> bool:
        return shows_full_device(attempt_files.log_file(plan["state_folder"], self.job_id, self.attempt, rank))

    def _checkpointed(self, request: dict[str, Any] | None) -> Checkpointed | None:
        """Return the result of the checkpoint command; None if no command was requested."""
        if request is None or "checkpoint" not in request:
            return None
        saved = attempt_files.read(f"{self.folder}/{attempt_files.SAVED}")
        if saved is None:
            return Checkpointed(None, 0.0, "the attempt ended before the command ran, or its shim died")
        return Checkpointed(saved["exit_code"], saved["seconds"], saved["reason"])

    def _rank_records(self, plan: rank_launch.Plan, name: Callable[[int], str]) -> dict[int, dict[str, Any] | None]:
        return {
            rank: attempt_files.read(f"{self.folder}/{slot['node']}/{name(rank)}")
            for rank, slot in enumerate(plan["placement"])
        }

    def _request_stop(
        self,
        signal_name: str,
        grace_seconds: float,
        why: str,
        reason: str,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        request: dict[str, Any] = {"signal": signal_name, "grace_seconds": grace_seconds, "why": why, "reason": reason}
        if checkpoint is not None:
            request["checkpoint"] = dict(checkpoint)
        attempt_files.claim(f"{self.folder}/{attempt_files.STOP}", attempt_files.encode(request))
        shim.poke(str(self.folder), self._nodes)

    # --- after a shim's death ----------------------------------------------------------------------------------------

    def _clean_up(self, plan: rank_launch.Plan, node: str, about: dict[str, Any]) -> None:
        """Kill the remaining processes of a dead shim, and write its last records. May need several calls.

        The kernel killed the ranks with their shim (parent-death signal). Children of the ranks are found by the
        cgroup, by descent from a rank, and by the environment that every process of the attempt was given.
        (Without a cgroup, a process that has left its parents and cleared its environment is not found.)
        """
        same_boot = about.get("boot_id") == local_processes.boot_id()
        reason = (
            f"the shim of node {node} died{self._last_log_line(node)}" if same_boot else "the machine was restarted"
        )
        spec = plan["spec"]
        if not self._stop_requested:
            self._request_stop(spec["checkpoint_signal"], spec["grace_seconds"], "shim-died", reason)
            self._stop_requested = True
        if same_boot and self._kill_leftovers(plan, node, about["cgroup"]):
            return
        if same_boot and about["cgroup"] is not None:
            local_processes.remove_cgroup(about["cgroup"])
        wall_ns = time.time_ns() if same_boot else _last_change_ns(self.folder / node)
        # No rank file is removed before all exit records of the node exist (a machine crash may have lost some). They
        # are removed after every other evidence of a start is written, so that an interrupted cleanup can be repeated.
        exits = {
            rank: f"{self.folder}/{node}/{attempt_files.exit_record(rank)}" for rank in rank_launch.ranks_on(plan, node)
        }
        started = not same_boot or any(map(Path.exists, map(Path, (*exits.values(), *self._rank_files(plan, node)))))
        for rank, path in exits.items():
            if started and attempt_files.read(path) is None:
                attempt_files.write(path, {"rank": rank, "exit_code": None, "wall_ns": wall_ns}, durable=True)
        for rank_file in self._rank_files(plan, node):
            try:
                Path(rank_file).unlink()
            except OSError:  # a remaining file names a dead process, which does no harm
                pass
        ended = {"wall_ns": wall_ns, "started": started, "signalled": False, "reason": reason}
        attempt_files.write(f"{self.folder}/{node}/{attempt_files.ENDED}", ended, durable=True)
        self._ended[node] = ended

    def _rank_files(self, plan: rank_launch.Plan, node: str) -> list[str]:
        return [
            attempt_files.rank_file(plan["state_folder"], node, self.job_id, self.attempt, rank)
            for rank in rank_launch.ranks_on(plan, node)
        ]

    def _kill_leftovers(self, plan: rank_launch.Plan, node: str, cgroup: str | None) -> bool:
        """Kill all remaining processes of the attempt on the node. Return whether there were any."""
        left = {stat.pid: stat for stat in process_trees.with_environment(rank_launch.marks(plan, node))}
        for rank_file in self._rank_files(plan, node):
            record = attempt_files.read(rank_file)
            stat = None if record is None else local_processes.read_stat(record["pid"])
            if record is not None and stat is not None and stat.start_time == record["start_time"] and not stat.gone:
                left[stat.pid] = stat
        left |= {stat.pid: stat for stat in process_trees.descendants(left)}
        for stat in left.values():
            local_processes.send_signal(stat.pid, stat.start_time, signal.SIGKILL)
        if cgroup is not None and local_processes.cgroup_occupied(cgroup):
            local_processes.kill_cgroup(cgroup)
            return True
        return bool(left)


def _is_alive(about: dict[str, Any]) -> bool:
    """Return whether the shim that wrote this shim.json still runs."""
    return about["boot_id"] == local_processes.boot_id() and local_processes.is_alive(about["pid"], about["start_time"])


def _ranks_seen(plan: rank_launch.Plan, starts: dict[int, dict[str, Any] | None]) -> tuple[RankSeen, ...]:
    return tuple(
        RankSeen(rank, slot["node"], slot["slot"], record["pid"], record["start_time"])
        for rank, slot in enumerate(plan["placement"])
        if (record := starts[rank]) is not None
    )


def _last_change_ns(folder: Path) -> int:
    """Return when a file of the folder was last written: the best known end of an attempt after a machine crash."""
    return max((entry.stat().st_mtime_ns for entry in folder.iterdir()), default=0)
