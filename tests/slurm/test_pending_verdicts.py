"""Verdicts on Slurm's jobs wait until the cycle has the job. No Slurm needed."""

from __future__ import annotations

from scheduler_feedback.backends.slurm.pending_verdicts import HELD_BACK_SECONDS, PendingVerdicts
from scheduler_feedback.core.events import FirstStep, Tick
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict

KNOWN = frozenset({"slurm-7"})


def verdict(gang: str = "slurm-7.0") -> Verdict:
    return Verdict(f"v-{gang}", Kind.STRAGGLER, gang, 0, 1, "n1", Cause.COMPUTE, 0.99, 1.5, 0.1, 0.15, 0, 1)


def test_a_verdict_waits_for_a_later_listing_of_the_whole_queue() -> None:
    pending = PendingVerdicts()
    assert pending.take([verdict(), Tick()], KNOWN, 10.0) == [Tick()]
    assert pending.wants_queue
    assert pending.free(KNOWN, 9.0, 11.0) == []
    (released,) = pending.free(KNOWN, 10.5, 12.0)
    assert isinstance(released, Verdict)
    assert released.gang == "slurm-7", "in the cycle's names"
    assert not pending.wants_queue
    assert not pending.waiting


def test_results_of_one_gang_keep_their_order() -> None:
    """If the end of a verdict arrived before the verdict, the verdict would stay active forever."""
    pending = PendingVerdicts()
    assert pending.take([verdict()], KNOWN, 10.0) == []
    cleared = Cleared("v-slurm-7.0", "slurm-7.0", 2, "runs at normal speed")
    assert pending.take([cleared, FirstStep("slurm-8.0", 0, 1, 5)], KNOWN | {"slurm-8"}, 10.1) == [
        FirstStep("slurm-8", 0, 1, 5)
    ]
    assert [type(event) for event in pending.free(KNOWN, 11.0, 12.0)] == [Verdict, Cleared]


def test_results_of_an_unknown_gang_expire() -> None:
    pending = PendingVerdicts()
    assert pending.take([FirstStep("slurm-9.0", 0, 1, 5)], KNOWN, 10.0) == []
    assert pending.free(KNOWN, 11.0, 12.0) == []
    assert pending.free(KNOWN | {"slurm-9"}, 11.0, 12.0) == [FirstStep("slurm-9", 0, 1, 5)]
    pending.take([verdict("slurm-9.0")], KNOWN, 20.0)
    assert pending.free(KNOWN, 21.0, 20.0 + HELD_BACK_SECONDS) == []
    assert not pending.waiting


def test_a_cleared_event_stays_behind_its_verdict() -> None:
    pending = PendingVerdicts()
    cleared = Cleared("v-slurm-7.0", "slurm-7.0", 2, "runs at normal speed")
    assert pending.take([verdict(), cleared], KNOWN, 10.0) == []
    assert pending.free(KNOWN, 10.0, 11.0) == [], "the scan began when the verdict came, and may lack jobs"
    assert [type(event) for event in pending.free(KNOWN, 10.1, 12.0)] == [Verdict, Cleared]


def test_the_expiry_does_not_depend_on_the_clocks_origin() -> None:
    pending = PendingVerdicts()
    pending.take([FirstStep("slurm-9.0", 0, 1, 5)], KNOWN, 100_000.0)
    assert pending.free(KNOWN, 0.0, 100_000.0 + HELD_BACK_SECONDS - 0.1) == []
    assert pending.waiting
    assert pending.free(KNOWN | {"slurm-9"}, 0.0, 100_000.0 + HELD_BACK_SECONDS) == [FirstStep("slurm-9", 0, 1, 5)]


def test_results_of_other_gangs_are_not_held() -> None:
    pending = PendingVerdicts()
    pending.take([verdict()], KNOWN, 10.0)
    assert pending.take([FirstStep("j-000001", 0, 1, 5)], KNOWN, 10.1) == [FirstStep("j-000001", 0, 1, 5)]
    pending.take([verdict("j-000002")], KNOWN, 10.2)
    released = pending.free(frozenset(), 11.0, 12.0)
    assert [event.gang for event in released if isinstance(event, Verdict)] == ["j-000002"]
    assert pending.wants_queue
