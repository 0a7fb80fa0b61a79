"""Failures during a move on a real Slurm: killed daemons, commands that hang or print garbage, lost jobs.

The backend is real. Instead of a cycle there is a state with the desired state. Failing commands are scripts in a
folder before Slurm's own on PATH.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_audit import Line, lines
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.events import AttemptEnded, Event, Hosted
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.state import State
from scheduler_feedback.part_failures import PartFailures
from tests.slurm.bed import Bed

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = "gpu002"
OPTED_IN = "--comment=gangwatch:restartable,signal=USR1,grace=3"


class World:
    """Backend on the test cluster, and the events that it has reported. programs: folder of replaced commands."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in ("squeue", "sinfo", "scontrol", "scancel", "sbatch"):
            self.restore(name)
        self.state = State(nodes={name: Node(name, 8) for name in bed.names})
        self.state.nodes[SLOW].state = NodeState.SUSPECT
        self.state.nodes[SLOW].slowdown = 1.5
        self.reported: list[Event] = []
        self.holding: set[tuple[str, int]] = set()
        self.backend: SlurmBackend | None = None

    def start(self, **settings: Any) -> SlurmBackend:
        commands = Commands(str(self.programs), str(self.bed.configuration), timeout_seconds=3.0)
        self.backend = SlurmBackend(
            self.folder, commands, SlurmSection(idle_seconds=1.0, attentive_seconds=0.5, **settings)
        )
        self.backend.start(10.0)
        self.backend.attach(SimpleNamespace(ask=self._ask), PartFailures())
        return self.backend

    def stop(self) -> None:
        if self.backend is not None:
            self.backend.stop()
            self.backend = None

    def _ask(self, question: Callable[[State], Any], /) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(question(self.state))
        return answer

    # --- Slurm's commands --------------------------------------------------------------------------------------------

    def restore(self, name: str) -> None:
        path = self.programs / name
        path.unlink(missing_ok=True)
        found = shutil.which(name)
        assert found is not None
        path.symlink_to(found)

    def replace_command(self, name: str, script: str) -> None:
        """Replace a Slurm command by this shell script, in which $REAL is the path of the real command."""
        real = shutil.which(name)
        new = self.programs / f".{name}"
        new.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
        new.chmod(0o755)
        new.replace(self.programs / name)

    # --- observed events ---------------------------------------------------------------------------------------------

    def look(self) -> list[Event]:
        """Process the backend's events as the product's loop does. Raises BackendError."""
        assert self.backend is not None
        events = list(self.backend.observe(self.holding))
        for event in events:
            if isinstance(event, Hosted):
                self.holding.add((event.job_id, event.attempt))
            elif isinstance(event, AttemptEnded):
                self.holding.discard((event.job_id, event.attempt))
        self.reported += events
        return events

    def look_quietly(self) -> str:
        """Like ``look``, but return the error as text."""
        try:
            self.look()
        except BackendError as error:
            return str(error)
        return ""

    def wait(self, what: str, done: Callable[[], Any], seconds: float = 40.0) -> None:
        def tried() -> bool:
            self.look_quietly()
            return bool(done())

        try:
            self.bed.wait_for(what, tried, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n" + "\n".join(map(str, self.audit()[-12:]))) from None

    def audit(self, *actions: str) -> list[Line]:
        return [line for line in lines(self.folder / "slurm-actions.jsonl") if not actions or line.action in actions]

    def move(self, number: str, attempt: int = 0) -> None:
        assert self.backend is not None
        self.backend.apply(
            StopGang("a-000001", f"slurm-{number}", attempt, "SIGUSR1", 3.0, StopReason.MIGRATE, "a test asks for it")
        )

    def submit(self, *options: str) -> str:
        """Start a gang of four that exits on its save signal. Return when it runs and the backend has reported it."""
        script = "srun sh -c 'trap \"exit 0\" USR1; while :; do sleep 0.1; done'"
        number = self.bed.submit(script, "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=60", *options)
        self.bed.wait_for("it runs", lambda: self.bed.job(number)["JobState"] == "RUNNING")
        if self.backend is not None:
            self.wait("it is reported", lambda: (f"slurm-{number}", 0) in self.holding)
        return number

    def runs_again(self, number: str) -> bool:
        job = self.bed.job(number)
        return job["JobState"] == "RUNNING" and job["Restarts"] == "1"


@pytest.fixture
def world(bed: Bed, tmp_path: Path) -> Iterator[World]:
    made = World(bed, tmp_path)
    yield made
    made.stop()


def test_slurmctld_is_killed_during_a_move(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    time.sleep(6)  # slurmctld saves a job up to 5 s after a change; a killed one forgets a job that it has not saved
    # The requeue reaches slurmctld, but its response is lost: slurmctld and the command both die.
    killed = world.folder / "killed"
    world.replace_command(
        "scontrol", f'if [ "$1" = requeue ]; then $REAL "$@"; touch {killed}; sleep 60; fi\nexec $REAL "$@"'
    )
    world.move(number)
    world.wait("the requeue", killed.exists)
    world.bed.kill_controller()
    world.restore("scontrol")
    world.wait("trouble", lambda: "exit code 1" in world.look_quietly() or "did not end within" in world.look_quietly())
    time.sleep(1)
    world.bed.start_controller()
    world.wait("it runs again", lambda: world.runs_again(number))
    world.wait("it is reported", lambda: (f"slurm-{number}", 1) in world.holding)
    assert SLOW in world.bed.job(number)["ExcNodeList"]
    # Requeued once: the job's state is read before the command is repeated. slurmctld saves its state some seconds
    # late, so the first requeue may have been lost with it; then there is a second.
    outcomes = [line.outcome.partition(":")[0] for line in world.audit("requeue")]
    assert outcomes[0] == "failed"
    assert outcomes.count("done") <= 1
    assert world.bed.job(number)["Restarts"] == "1"
    assert {event.attempt for event in world.reported if isinstance(event, AttemptEnded)} == {0}


def test_the_controller_is_killed_between_the_requeue_and_the_start(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    world.replace_command("scontrol", 'case "$1 $2" in "update JobId="*) exit 1;; esac\nexec $REAL "$@"')
    world.move(number)
    world.wait("a start that failed", lambda: world.audit("start"))
    world.stop()
    world.restore("scontrol")
    assert world.bed.job(number)["JobState"] == "PENDING"  # Slurm alone would hold it for two minutes
    world.holding.clear()
    world.start()
    world.wait("it runs again", lambda: world.runs_again(number), 20)
    assert SLOW in world.bed.job(number)["ExcNodeList"]
    assert [line.outcome for line in world.audit("requeue")] == ["done"]
    world.wait("nothing is left over", lambda: '"moving":{}' in (world.folder / "slurm-touched.json").read_text())


def test_a_hanging_command_is_killed_and_no_result_is_invented(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    world.replace_command("sinfo", "sleep 100")
    began = time.monotonic()
    world.wait("trouble", lambda: "sinfo --json: killed: it did not end within 3 s" in world.look_quietly())
    assert time.monotonic() - began < 15
    assert not [event for event in world.reported if isinstance(event, AttemptEnded)]
    with pytest.raises(BackendError, match="did not end within"):
        assert world.backend is not None
        world.backend.nodes()
    world.restore("sinfo")
    world.wait("it answers", lambda: not world.look_quietly(), 20)
    assert (f"slurm-{number}", 0) in world.holding


WRONG = (
    ('$REAL "$@" | head -c 3000', "not a complete JSON document"),
    ('echo \'{"jobs": "none"}\'', "no list named 'jobs'"),
    ('echo \'{"errors": [{"error": "Socket timed out"}], "jobs": []}\'', "Slurm reports: Socket timed out"),
)


def test_invalid_squeue_output_is_refused(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    for broken, expected in WRONG:
        world.replace_command("squeue", f'[ "$1" = --json ] || exec $REAL "$@"\n{broken}')
        world.wait(expected, lambda expected=expected: expected in world.look_quietly())
    # Unreadable records affect only themselves: the others are read, and no job counts as ended.
    broken = """$REAL "$@" | sed 's/"restart_cnt": [0-9]*/"restart_cnt": "x"/'; echo ' '"""
    world.replace_command("squeue", f'[ "$1" = --json ] || exec $REAL "$@"\n{broken}')
    world.wait("no record", lambda: "restart_cnt: expected a number" in world.look_quietly())
    one = f"""$REAL "$@" | sed '/"job_id": {number},/,/"restart_cnt"/s/"restart_cnt": [0-9]*/"restart_cnt": "x"/'"""
    world.replace_command("squeue", f'[ "$1" = --json ] || exec $REAL "$@"\n{one}')
    other = world.bed.submit("sleep 60", "--nodes=1", "--gpus-per-node=1")
    world.wait("the other", lambda: (f"slurm-{other}", 0) in world.holding)
    assert world.backend is not None
    refused = {labels: value for name, labels, value in world.backend.measures() if "refused" in name}
    assert refused[(("kind", "job"),)] > 0
    assert not [event for event in world.reported if isinstance(event, AttemptEnded)]
    world.restore("squeue")
    world.wait("it answers", lambda: not world.look_quietly(), 20)
    assert (f"slurm-{number}", 0) in world.holding
    assert world.bed.job(number)["Restarts"] == "0"


def test_a_job_that_ends_between_scan_and_action_is_not_touched(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    world.bed.ask("scancel", number)
    world.move(number)
    world.wait("the audit", lambda: world.audit("requeue"))
    line = world.audit("requeue")[0]
    assert line.outcome in ("withheld: it is CANCELLED by now", "withheld: it is now COMPLETED")
    assert not world.audit("start", "signal")
    # A job that Slurm never had.
    world.move("999999")
    world.wait("the audit", lambda: [one for one in world.audit("requeue") if one.target == "999999"])
    assert world.audit("requeue")[-1].outcome == "withheld: it no longer exists"


def test_a_killed_slurmd_takes_its_node_out_of_use_and_its_job_moves(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    node = world.bed.ask("scontrol", "show", "hostnames", world.bed.job(number)["NodeList"]).split()[1]
    world.bed.kill_node(node)
    assert world.backend is not None
    backend = world.backend
    world.wait("the node is gone", lambda: node not in [seen.node for seen in backend.nodes() if seen.present])
    # Slurm requeues the job after its two minutes; the attempt's end is reported once.
    world.wait("the end", lambda: [event for event in world.reported if isinstance(event, AttemptEnded)])
    assert [event.attempt for event in world.reported if isinstance(event, AttemptEnded)] == [0]
    world.bed.start_node(node)
    world.wait("the node is back", lambda: node in [seen.node for seen in backend.nodes() if seen.present])
    assert not world.audit("requeue", "drain")


def test_no_other_job_starts_on_the_nodes_of_a_moving_job(world: World) -> None:
    """Between the job's exit and its next start its nodes are free. A pending gang would fit on three of them."""
    bed = world.bed
    bed.submit("sleep 300", "--nodes=59", "--gpus-per-node=8", "--nodelist=gpu[006-064]", "--time=60")
    bed.wait_for("the cluster is full", lambda: len(bed.nodes_in("idle")) == 5)
    number = world.submit(OPTED_IN)
    assert bed.ask("scontrol", "show", "hostnames", bed.job(number)["NodeList"]).split() == bed.names[:4]
    world.start()
    world.wait("it is reported", lambda: (f"slurm-{number}", 0) in world.holding)
    greedy = bed.submit("sleep 300", "--nodes=3", "--gpus-per-node=8", "--time=60")
    bed.wait_for("it waits", lambda: bed.job(greedy)["Reason"] in ("Resources", "Priority"))
    place = [name for name in bed.names[:5] if name != SLOW]
    spec = JobSpec("gang", ("x",), 32, kind=JobKind.EXTERNAL)
    claim = [Slot(name, index) for name in place for index in range(8)]
    world.state.jobs[f"slurm-{number}"] = Job(f"slurm-{number}", spec, JobState.STOPPING, 0, claim=claim)
    world.move(number)
    world.wait("it runs again", lambda: world.runs_again(number), 20)
    assert bed.ask("scontrol", "show", "hostnames", bed.job(number)["NodeList"]).split() == place
    assert bed.job(greedy)["JobState"] == "PENDING"
    assert [line.outcome for line in world.audit("keep", "unkeep")] == ["done", "done"]
    assert "No reservations" in bed.ask("scontrol", "show", "reservation")


def test_a_job_moves_without_a_reservation(world: World) -> None:
    world.start()
    number = world.submit(OPTED_IN)
    world.replace_command("scontrol", 'if [ "$1" = create ]; then exit 1; fi\nexec $REAL "$@"')
    claim = [Slot("gpu009", 0)]
    spec = JobSpec("gang", ("x",), 32, kind=JobKind.EXTERNAL)
    world.state.jobs[f"slurm-{number}"] = Job(f"slurm-{number}", spec, JobState.STOPPING, 0, claim=claim)
    world.move(number)
    world.wait("it runs again", lambda: world.runs_again(number), 20)
    assert [line.outcome.partition(":")[0] for line in world.audit("keep", "unkeep")] == ["failed"]
    assert SLOW in world.bed.job(number)["ExcNodeList"]


def test_a_job_that_never_opted_in_is_refused(world: World) -> None:
    world.start()
    number = world.submit()
    with pytest.raises(BackendError, match="it has not opted in"):
        world.move(number)
    # A handler of Slurm's own warning is an opt-in too; --no-requeue is a refusal.
    warned = world.submit("--no-requeue", OPTED_IN)
    with pytest.raises(BackendError, match="--no-requeue"):
        world.move(warned)


def test_pending_gangs_that_opted_in_exclude_slow_nodes_for_a_time(world: World) -> None:
    bed = world.bed
    later = "--begin=now+1hour"
    mine = bed.submit("sleep 1", "--nodes=4", "--gpus-per-node=8", later, OPTED_IN, "--exclude=gpu009")
    other = bed.submit("sleep 1", "--nodes=4", "--gpus-per-node=8", later)
    whole = bed.submit("sleep 1", "--nodes=64", "--gpus-per-node=8", later, OPTED_IN)
    world.start()
    world.wait("the exclusion", lambda: bed.job(mine)["ExcNodeList"] == f"{SLOW},gpu009" or _both(bed, mine))
    assert bed.job(other)["ExcNodeList"] == "(null)"
    assert bed.job(whole)["ExcNodeList"] == "(null)"  # too few nodes would be left
    world.state.nodes[SLOW].state = NodeState.HEALTHY
    world.wait("its end", lambda: bed.job(mine)["ExcNodeList"] == "gpu009")
    world.wait("its weight", lambda: bed.node(SLOW)["Weight"] == "10")


def _both(bed: Bed, number: str) -> bool:
    names = bed.ask("scontrol", "show", "hostnames", bed.job(number)["ExcNodeList"]).split()
    return sorted(names) == [SLOW, "gpu009"]
