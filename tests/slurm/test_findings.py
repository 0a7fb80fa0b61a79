"""What detectors say of Slurm's jobs, kept until the cycle can judge it: no Slurm needed."""

from __future__ import annotations

from scheduler_feedback.backends.slurm.pending_verdicts import HELD_BACK_SECONDS, PendingVerdicts
from scheduler_feedback.core.events import FirstStep, Tick
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict

KNOWN = frozenset({"slurm-7"})


def verdict(gang: str = "slurm-7.0") -> Verdict:
    return Verdict(f"v-{gang}", Kind.STRAGGLER, gang, 0, 1, "n1", Cause.COMPUTE, 0.99, 1.5, 0.1, 0.15, 0, 1)


def test_a_verdict_waits_for_a_look_at_the_whole_queue_that_began_after_it() -> None:
    findings = PendingVerdicts()
    assert findings.take([verdict(), Tick()], KNOWN, 10.0) == [Tick()]
    assert findings.wants_queue
    assert findings.free(KNOWN, 9.0, 11.0) == []
    (told,) = findings.free(KNOWN, 10.5, 12.0)
    assert isinstance(told, Verdict)
    assert told.gang == "slurm-7", "in the cycle's names"
    assert not findings.wants_queue
    assert not findings.waiting


def test_what_is_said_of_one_gang_stays_in_its_order() -> None:
    """A verdict that is taken back at once must not come after its end: it would stand for ever."""
    findings = PendingVerdicts()
    assert findings.take([verdict()], KNOWN, 10.0) == []
    cleared = Cleared("v-slurm-7.0", "slurm-7.0", 2, "keeps pace")
    assert findings.take([cleared, FirstStep("slurm-8.0", 0, 1, 5)], KNOWN | {"slurm-8"}, 10.1) == [
        FirstStep("slurm-8", 0, 1, 5)
    ]
    assert [type(event) for event in findings.free(KNOWN, 11.0, 12.0)] == [Verdict, Cleared]


def test_what_is_said_of_a_gang_that_nobody_knows_is_forgotten_in_the_end() -> None:
    findings = PendingVerdicts()
    assert findings.take([FirstStep("slurm-9.0", 0, 1, 5)], KNOWN, 10.0) == []
    assert findings.free(KNOWN, 11.0, 12.0) == []
    assert findings.free(KNOWN | {"slurm-9"}, 11.0, 12.0) == [FirstStep("slurm-9", 0, 1, 5)]
    findings.take([verdict("slurm-9.0")], KNOWN, 20.0)
    assert findings.free(KNOWN, 21.0, 20.0 + HELD_BACK_SECONDS) == []
    assert not findings.waiting


def test_what_takes_a_verdict_back_is_kept_behind_it_also_where_both_come_at_once() -> None:
    findings = PendingVerdicts()
    cleared = Cleared("v-slurm-7.0", "slurm-7.0", 2, "keeps pace")
    assert findings.take([verdict(), cleared], KNOWN, 10.0) == []
    assert findings.free(KNOWN, 10.0, 11.0) == [], "the look began when the verdict came, and may not have seen all"
    assert [type(event) for event in findings.free(KNOWN, 10.1, 12.0)] == [Verdict, Cleared]


def test_what_is_kept_waits_as_long_whatever_the_clock_says() -> None:
    findings = PendingVerdicts()
    findings.take([FirstStep("slurm-9.0", 0, 1, 5)], KNOWN, 100_000.0)
    assert findings.free(KNOWN, 0.0, 100_000.0 + HELD_BACK_SECONDS - 0.1) == []
    assert findings.waiting
    assert findings.free(KNOWN | {"slurm-9"}, 0.0, 100_000.0 + HELD_BACK_SECONDS) == [FirstStep("slurm-9", 0, 1, 5)]


def test_what_other_gangs_do_waits_for_nobody() -> None:
    findings = PendingVerdicts()
    findings.take([verdict()], KNOWN, 10.0)
    assert findings.take([FirstStep("j-000001", 0, 1, 5)], KNOWN, 10.1) == [FirstStep("j-000001", 0, 1, 5)]
    findings.take([verdict("j-000002")], KNOWN, 10.2)
    told = findings.free(frozenset(), 11.0, 12.0)
    assert [event.gang for event in told if isinstance(event, Verdict)] == ["j-000002"]
    assert findings.wants_queue
