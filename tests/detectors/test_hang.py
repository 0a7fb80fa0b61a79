"""Hangs, and pauses that look like hangs, by the states of the ranks' processes and the job's earlier pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.series.consumption_trail import Consumed
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Abstention, Cleared, Finding, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.detectors.hang.certain_hangs import FRESH_SECONDS, is_inside
from scheduler_feedback.detectors.hang.hang import CONFIDENT, HangDetector
from scheduler_feedback.policies.remediation.hang_restart import CONFIDENCE
from tests.detectors.alone import alone
from tests.detectors.test_detectors import NS, START, Job, course, verdicts

RUNNING, STOPPED, TRACED = ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.TRACED


class Training(Job):
    """Job with processes.

    stops: (from, to, ranks, state); in this time the ranks have this process state and no step ends. pauses: (from,
    to); one rank works alone. cores: CPUs that each rank uses while it works or waits. idle: ranks that use none.
    """

    def __init__(self, ranks: int = 8, gpus: bool = False, **options: float) -> None:
        super().__init__(ranks=ranks, **options)  # type: ignore[arg-type]
        if not gpus:
            self.shape = replace(self.shape, gpus=(), nics=())
        self.stops: list[tuple[float, float, tuple[int, ...], ProcessState]] = []
        self.pauses: list[tuple[float, float]] = []
        self.idle: set[int] = set()
        self.known = True

    def _begun(self, second: float) -> tuple[float, float] | None:
        both = [(a, b) for a, b, *_ in self.stops] + self.pauses
        return next(((a, b) for a, b in both if a <= second < b), None)

    def look(self, second: float, random: np.random.Generator) -> JobTelemetry:
        count, now_ns = len(self.shape), START + round(second * NS)
        states = np.full(count, RUNNING)
        self.inside[:] = True
        self.hung_from = float("inf")
        held = self._begun(second)
        if held is not None:
            self.hung_from = held[0]
            self.inside[0] = False  # one rank saves alone, unless another is stopped
        for begin, end, ranks, state in self.stops:
            if begin <= second < end:
                states[list(ranks)] = state
                self.inside[:] = True
                self.inside[list(ranks)] = False
        late = (now_ns - self.last_ns) / NS - 3 * self.step_seconds
        if held is None and late > 0:
            self.work = _once(self.work, late)  # it continues: the current step is long
        found = super().look(second, random)

        def consumed(at_ns: np.ndarray) -> Consumed:
            used = np.where(np.isin(np.arange(count), list(self.idle)), 0.0, 0.9) * (at_ns - START)
            return Consumed(np.repeat(used[:, None], 5, axis=1), at_ns)

        return replace(found, process_states=(lambda: states) if self.known else None, consumed=consumed)


def _once(work: Callable[[float], np.ndarray], lasts: float) -> Callable[[float], np.ndarray]:
    left = [lasts]

    def longer(second: float) -> np.ndarray:
        return work(second) + (left.pop() if left else 0.0)

    return longer


def reported(found: list[tuple[int, Finding]]) -> list[tuple[int, str]]:
    return [(second, type(one).__name__) for second, one in found]


def test_a_stopped_process_is_the_culprit_and_the_text_says_so() -> None:
    job = Training()
    job.stops = [(60.0, 1e9, (3,), STOPPED)]
    ((second, verdict),) = course(alone(HangDetector()), [job], 130)
    assert isinstance(verdict, Verdict)
    assert (verdict.rank, verdict.node) == (3, "j-n1")
    assert 69 <= second <= 73
    assert verdict.confidence >= CONFIDENCE
    assert "hangs (did not enter the collective that blocks its peers): no step for 1" in sentence(verdict)
    assert "rank 3's process is stopped (SIGSTOP)" in sentence(verdict)


def test_a_process_stopped_within_the_collective_is_the_culprit() -> None:
    job = Training()
    job.stops = [(60.0, 1e9, (5,), STOPPED)]
    look = job.look

    def inside(second: float, random: np.random.Generator) -> JobTelemetry:
        found = look(second, random)
        assert found.open_collectives is not None
        found.open_collectives[5] = found.open_collectives[0]
        return found

    job.look = inside  # type: ignore[method-assign]
    (verdict,) = verdicts(course(alone(HangDetector()), [job], 130))
    assert verdict.rank == 5


def with_open_collectives(
    job: Training, numbers: Callable[[int], int], seen: Callable[[int], float] = lambda rank: 0.0
) -> None:
    """Replace the open collectives of the job. numbers: of each rank's collective; seen: seconds since its last
    report."""
    look = job.look

    def changed(second: float, random: np.random.Generator) -> JobTelemetry:
        found = look(second, random)
        assert found.open_collectives is not None
        if second > 60:
            for rank in range(len(job.shape)):
                found.open_collectives[rank] = (
                    numbers(rank),
                    START + 60 * NS,
                    START + round((second - seen(rank)) * NS),
                )
        return found

    job.look = changed  # type: ignore[method-assign]


@pytest.mark.parametrize("staged", [False, True])
def test_the_rank_in_an_earlier_collective_is_the_culprit(staged: bool) -> None:
    """Each pipeline stage counts its collectives separately, so numbers of two stages cannot be compared."""
    job = Training(ranks=16)
    if staged:
        job.shape = replace(job.shape, stage=np.arange(16) // 8)
    job.known = False
    job.pauses = [(60.0, 1e9)]
    with_open_collectives(job, lambda rank: 99 if rank == 5 else 200 if staged and rank >= 8 else 100)
    (verdict,) = verdicts(course(alone(HangDetector()), [job], 130))
    assert verdict.rank == 5


def test_a_rank_last_seen_in_a_collective_long_ago_is_not_in_it() -> None:
    job = Training(ranks=16)
    job.known = False
    job.pauses = [(60.0, 1e9)]
    with_open_collectives(job, lambda rank: 100, lambda rank: FRESH_SECONDS + 5.0 if rank == 7 else 0.0)
    (verdict,) = verdicts(course(alone(HangDetector()), [job], 130))
    assert verdict.rank == 7
    now = 1000 * NS
    opened = np.array([[5, 0, now], [5, 0, now - 15 * NS], [5, 0, now - 16 * NS], [-1, -1, -1]])
    assert is_inside(opened, now).tolist() == [True, True, False, False]
    assert is_inside(opened, now + 10 * NS).tolist() == [True, True, False, False], "the newest report defines 'now'"
    assert not is_inside(opened, now + 60 * NS).any(), "unless no rank reported for long"


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_job_that_is_stopped_as_a_whole_has_no_verdict(ranks: int) -> None:
    job = Training(ranks=ranks, nodes=1)
    job.stops = [(60.0, 160.0, tuple(range(ranks)), STOPPED)]
    found = course(alone(HangDetector()), [job], 300)
    assert not verdicts(found)
    assert ["stopped" in one.reason for _, one in found if isinstance(one, Abstention)] == [True]


def test_a_debugged_job_has_no_verdict() -> None:
    job = Training()
    job.stops = [(60.0, 400.0, (2,), TRACED)]
    found = course(alone(HangDetector()), [job], 300)
    assert not verdicts(found)
    assert ["debugger" in one.reason for _, one in found if isinstance(one, Abstention)] == [True]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ProcessState.GONE, "rank 3's process no longer exists"),
        (ProcessState.ZOMBIE, "rank 3's process has ended and is a zombie"),
    ],
)
def test_an_ended_process_is_the_culprit(state: ProcessState, words: str) -> None:
    job = Training()
    job.stops = [(60.0, 1e9, (3,), state)]
    (verdict,) = verdicts(course(alone(HangDetector()), [job], 130))
    assert (verdict.rank, verdict.confidence >= CONFIDENT) == (3, True)
    assert words in sentence(verdict)


def test_a_process_that_waits_for_a_disk_may_be_saving() -> None:
    job = Training()
    job.stops = [(60.0, 1e9, (3,), ProcessState.UNINTERRUPTIBLE)]
    (verdict,) = verdicts(course(alone(HangDetector()), [job], 130))
    assert (verdict.rank, verdict.confidence >= CONFIDENT) == (3, False)
    assert "is blocked in the kernel" in sentence(verdict)


@pytest.mark.parametrize(("stopped", "named"), [((3, 9), True), ((3, 9, 14), False), ((4, 5, 6, 7), True)])
def test_many_absent_ranks_on_several_nodes_accuse_no_rank(stopped: tuple[int, ...], named: bool) -> None:
    """The limit is two of sixteen ranks, or one node of four."""
    job = Training(ranks=16)
    job.stops = [(60.0, 1e9, stopped, STOPPED)]
    found = course(alone(HangDetector()), [job], 130)
    assert [one.ranks for one in verdicts(found)] == [stopped] * named
    assert named or [one.reason for _, one in found if isinstance(one, Abstention)] == [
        "the job has stopped finishing steps: 3 of 16 ranks on 3 nodes are absent"
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_second_stop_is_found_as_soon_as_the_first(known: bool) -> None:
    """The job stops for 40 s, for 100 s, and permanently. No stop delays the verdict on the next."""
    job = Training()
    job.known = known
    job.stops = [(60.0, 160.0, (3,), STOPPED), (200.0, 1e9, (3,), STOPPED)]
    if known:
        job.stops.insert(0, (20.0, 59.0, (3,), STOPPED))
    found = course(alone(HangDetector()), [job], 330)
    assert [name for _, name in reported(found)] == ["Verdict", "Cleared"] * (1 + known) + ["Verdict"]
    if known:  # the state proves each stop
        assert [at for at, name in reported(found) if name == "Verdict"] == pytest.approx([32, 72, 212], abs=3)
        return
    first, _, second = (at for at, _ in reported(found))
    assert 40 <= first - 60 <= 43
    assert 40 <= second - 200 <= 43


def test_a_long_checkpoint_raises_the_limit_for_the_next_one() -> None:
    """A rank saves alone while all other ranks wait in a collective, for a minute and then for longer each time."""
    job = Training()
    job.pauses = [(60.0, 95.0), (150.0, 188.0), (250.0, 305.0), (400.0, 478.0)]
    found = course(alone(HangDetector()), [job], 600)
    assert not [one for one in verdicts(found) if one.confidence >= CONFIDENCE]
    late = Training()
    late.pauses = [(60.0, 120.0), (200.0, 1e9)]
    late.idle = {0}
    found = [(at, one) for at, one in course(alone(HangDetector()), [late], 400) if at > 200]
    assert isinstance(found[0][1], Verdict)
    # The first pause was a proven hang: it counts for the restart only, not for the next verdict.
    assert found[0][1].longest_pause_seconds == pytest.approx(60.0, abs=3.0)


def test_a_pause_below_the_longest_so_far_is_no_hang() -> None:
    """Each pause is longer than forty seconds and shorter than 1.5 times the longest before it."""
    job = Training()
    job.pauses = [(60.0, 98.0), (150.0, 204.0), (300.0, 378.0)]
    assert not verdicts(course(alone(HangDetector()), [job], 460))
    # Without the longest pause, a hang would be reported after forty seconds.
    short = Training()
    short.pauses = [(150.0, 204.0)]
    assert verdicts(course(alone(HangDetector()), [short], 260))


def test_a_rank_that_works_while_the_others_wait_may_be_saving() -> None:
    """The confidence stays too low for a restart while the rank works. It rises when the rank stops working, or
    after ten minutes."""
    working = Training()
    working.pauses = [(60.0, 1e9)]
    found = verdicts(course(alone(HangDetector()), [working], 640))
    assert [one.confidence >= CONFIDENT for one in found] == [False]
    later = verdicts(course(alone(HangDetector()), [working], 60, first=641))
    assert not later, "the new detector has not seen a step yet"
    one = alone(HangDetector())
    again = Training()
    again.pauses = [(60.0, 1e9)]
    first = verdicts(course(one, [again], 300))
    again.idle = {0}
    (sure,) = verdicts(course(one, [again], 20, first=301))
    assert (sure.verdict_id, sure.confidence >= CONFIDENT) == (first[0].verdict_id, True)
    assert "sleeps and uses no CPU" in sentence(sure)
    gpu = Training(gpus=True)
    gpu.pauses = [(60.0, 1e9)]
    gpu.idle = {0}
    assert verdicts(course(alone(HangDetector()), [gpu], 300))[0].confidence < CONFIDENT, "its GPU may be busy"
    long = alone(HangDetector())
    waits = Training()
    waits.pauses = [(60.0, 1e9)]
    assert [one.confidence >= CONFIDENT for one in verdicts(course(long, [waits], 700))] == [False, True]


def test_steps_clear_a_hang_and_the_longest_pause_survives_a_restart() -> None:
    job = Training()
    job.pauses = [(60.0, 98.0)]
    detector = alone(HangDetector())
    assert not course(detector, [job], 140)
    other = alone(HangDetector())
    other.restore(detector.snapshot())
    job.pauses = [(150.0, 204.0)]
    assert not verdicts(course(other, [job], 120, first=141))
    fresh = alone(HangDetector())
    fresh.restore(msgspec.msgpack.encode(1))  # snapshot of an earlier release
    job.pauses = [(290.0, 344.0)]
    found = course(fresh, [job], 120, first=261)
    assert [type(one) for _, one in found] == [Verdict, Cleared]


@pytest.mark.parametrize("inside", [False, True], ids=["stopped", "works alone"])
def test_a_hang_that_began_before_a_restart_is_found_after_it(inside: bool) -> None:
    """The job finishes no step after the restart from which the detector could learn."""
    job = Training()
    if inside:
        job.pauses = [(60.0, 1e9)]
    else:
        job.stops = [(60.0, 1e9, (3,), STOPPED)]
    before = alone(HangDetector())
    assert not course(before, [job], 68)
    after = alone(HangDetector())
    after.restore(before.snapshot())
    found = course(after, [job], 60, first=75)
    assert [one.rank for one in verdicts(found)] == [0 if inside else 3]
    assert found[0][0] == pytest.approx(117 if inside else 87, abs=3), "seconds observed by the new detector"


def test_a_stopped_process_is_a_hang_even_without_any_step() -> None:
    """For example after a restart before the first snapshot. A job that is only slow to start has no verdict."""
    job = Training()
    job.stops = [(60.0, 1e9, (3,), STOPPED)]
    course(alone(HangDetector()), [job], 70)
    found = course(alone(HangDetector()), [job], 60, first=75)
    assert [one.rank for one in verdicts(found)] == [3]
    quiet = Training()
    quiet.pauses = [(60.0, 1e9)]
    course(alone(HangDetector()), [quiet], 70)
    assert not course(alone(HangDetector()), [quiet], 200, first=75)


def test_the_usual_step_of_an_earlier_attempt_is_not_that_of_the_next() -> None:
    """The next attempt may compile for minutes before its first step."""
    job = Training()
    before = alone(HangDetector())
    course(before, [job], 70)
    job.pauses = [(70.0, 1e9)]
    job.shape = replace(job.shape, attempt=job.shape.attempt + 1)
    after = alone(HangDetector())
    after.restore(before.snapshot())
    assert not course(after, [job], 200, first=71)
