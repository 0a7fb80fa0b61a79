"""Arbiter: a rank's slowdown has at most one active explanation, in whatever order verdicts are proposed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schema.verdicts.kinds import OF_OWN_JOB
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.arbiter import RESTORED_NS, Arbiter, explained
from scheduler_feedback.detectors.context import Cover, PartFault, Proposal, Published

CAUSES = (Cause.UNKNOWN, Cause.THERMAL, Cause.NIC, Cause.CPU_CONTENTION, Cause.CONGESTION, Cause.HOST_CONTENTION,
          Cause.PAUSES, Cause.STAGE_PARTITION)  # fmt: skip
DETECTORS = ("straggler", "hang", "health", "interference", "workload")
RUNNING = {"a": 1, "b": 1}


def verdict(
    name: str, kind: Kind = Kind.STRAGGLER, cause: Cause = Cause.THERMAL, ranks: Sequence[int] = (3,), gang: str = "a",
    confidence: float = 0.95, slowdown: float = 1.3, step: int = 9,
) -> Verdict:  # fmt: skip
    rank = ranks[0] if ranks else -1
    return Verdict(
        name, kind, gang, 1, rank, "n0", cause, confidence, slowdown, 1.0, slowdown, 0, 1,
        ranks=tuple(ranks) if len(ranks) > 1 else (), detected_step=step,
    )  # fmt: skip


def published(arbiter: Arbiter, **results: Sequence[Proposal]) -> list[str]:
    """Return the events that one tick publishes: +id for a verdict, -id for its end."""
    return [
        ("-" if isinstance(one, Cleared) else "+") + one.verdict_id
        for one in arbiter.resolve(results, RUNNING, 0) if not isinstance(one, Abstention)
    ]  # fmt: skip


verdicts = st.builds(
    verdict,
    st.sampled_from([f"v{number}" for number in range(4)]),
    st.sampled_from(Kind),
    st.sampled_from(CAUSES),
    st.lists(st.integers(0, 4), max_size=3, unique=True),
    st.sampled_from(["a", "b"]),
    st.sampled_from([0.5, 0.7, 0.89, 0.9, 0.97]),
    st.sampled_from([1.0, 1.04, 1.3]),
    st.sampled_from([-1, 9]),
).map(lambda one: replace(one, verdict_id=f"{one.gang}-{one.verdict_id}"))
proposals = st.one_of(
    verdicts,
    verdicts.map(lambda one: Cleared(one.verdict_id, one.gang, 0, "over")),
    verdicts.map(lambda one: Cover(one.verdict_id, tuple(range(one.rank + 1)))),
    verdicts.map(lambda one: PartFault(one.verdict_id, "GPU-1", "n0", one.cause, 1)),
)
ticks = st.lists(st.dictionaries(st.sampled_from(DETECTORS), st.lists(proposals, max_size=3)), max_size=4)


@settings(max_examples=200)
@given(ticks)
def test_one_rank_and_slowdown_never_has_two_active_explanations(stream: list[dict[str, list[Proposal]]]) -> None:
    """Check the published events only: consumers get the begin and the end of every verdict."""
    arbiter, active = Arbiter(), dict[str, Verdict]()
    for results in stream:
        for one in arbiter.resolve(results, RUNNING, 0):
            if isinstance(one, Verdict):
                active[one.verdict_id] = one
            elif isinstance(one, Cleared):
                active.pop(one.verdict_id, None)
        assert active.keys() == arbiter._active.keys()
        for one, other in itertools.combinations(active.values(), 2):
            if one.gang != other.gang:
                continue
            first, second = explained(one), explained(other)
            if {one.kind, other.kind} <= OF_OWN_JOB:
                continue  # a stage that always had more work can get more still
            assert not (first.parts & second.parts and first.ranks & second.ranks), (one, other)
            hardware = [v for v in (one, other) if v.kind is Kind.STRAGGLER]
            own = [v for v in (one, other) if v.kind in (Kind.WORKLOAD, Kind.STAGE_IMBALANCE)]
            if hardware and own:
                assert not {hardware[0].rank} & {own[0].rank, *own[0].ranks} - {-1}, "also the job's own doing"


@settings(max_examples=100)
@given(ticks, st.randoms(use_true_random=False))
def test_the_order_of_the_detectors_changes_nothing(stream: list[dict[str, list[Proposal]]], random: Random) -> None:
    one, other = Arbiter(), Arbiter()
    for results in stream:
        shuffled = list(results.items())
        random.shuffle(shuffled)
        assert one.resolve(results, RUNNING, 0) == other.resolve(dict(shuffled), RUNNING, 0)
        assert (one.published, one.dump()) == (other.published, other.dump())


def test_a_straggler_is_not_the_jobs_own_doing() -> None:
    arbiter = Arbiter()
    offset = verdict("offset", Kind.WORKLOAD, Cause.STANDING_OFFSET)
    stage = verdict("stage", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, (8, 9))
    lengths = verdict("lengths", Kind.SEQUENCE_IMBALANCE, Cause.SEQUENCE_LENGTH, ())
    assert published(arbiter, workload=[offset, stage, lengths]) == ["+offset", "+stage", "+lengths"]
    assert published(arbiter, straggler=[verdict("slow")]) == ["-offset", "+slow"]
    assert arbiter.published.refused == {"offset"}
    assert published(arbiter, workload=[offset]) == []
    over = Cleared("slow", "a", 5, "at normal speed")
    assert published(arbiter, straggler=[over]) == ["-slow"]
    assert published(arbiter, workload=[offset]) == ["+offset"], "its detector proposes it again"


def test_the_order_of_a_ticks_events_is_that_of_the_names() -> None:
    found = published(Arbiter(), workload=[verdict("b", Kind.WORKLOAD, ranks=())], hang=[verdict("a", Kind.HANG)])
    assert found == ["+a", "+b"]


def test_a_verdict_about_a_stage_loses_the_ranks_that_are_stragglers() -> None:
    arbiter = Arbiter()
    stage = verdict("stage", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, ())
    stage = replace(stage, ranks=(2, 3, 4))
    published(arbiter, workload=[stage])
    _, narrowed = sorted(arbiter.resolve({"straggler": [verdict("slow")]}, RUNNING, 0), key=lambda one: one.gang)
    found = arbiter.resolve({"straggler": [verdict("slow too", ranks=(4,))]}, RUNNING, 0)
    assert [(one.verdict_id, one.ranks) for one in found if isinstance(one, Verdict)] == [
        ("stage", (2,)),
        ("slow too", ()),
    ]
    assert isinstance(narrowed, Verdict)
    assert published(arbiter, straggler=[verdict("third", ranks=(2,))]) == ["-stage", "+third"]
    late = Arbiter()
    published(late, straggler=[verdict("slow")])
    assert late.resolve({"workload": [stage]}, RUNNING, 0) == [replace(stage, ranks=(2, 4))]


def test_the_only_slowdown_of_a_job_without_step_reports_has_one_explanation() -> None:
    arbiter = Arbiter()
    more_work = verdict("more", Kind.WORKLOAD, Cause.WHOLE_JOB, (), step=-1)
    neighbour = verdict("neighbour", Kind.INTERFERENCE, Cause.CONGESTION, (1, 2), confidence=0.6)
    assert published(arbiter, workload=[more_work], interference=[neighbour]) == ["+neighbour"]
    assert arbiter.published.disturbed == {"a"}
    assert published(arbiter, workload=[replace(more_work, gang="b")]) == ["+more"]


@pytest.mark.parametrize(("better", "worse"), [
    (verdict("known", Kind.HEALTH, Cause.NIC, confidence=0.6), verdict("sure", cause=Cause.UNKNOWN)),
    (verdict("sure", confidence=0.9), verdict("unsure", confidence=0.89)),
])  # fmt: skip
def test_the_better_explanation_replaces_the_other(better: Verdict, worse: Verdict) -> None:
    first, second = Arbiter(), Arbiter()
    assert published(first, health=[better], straggler=[worse]) == [f"+{better.verdict_id}"]
    assert published(second, health=[worse]) == [f"+{worse.verdict_id}"]
    assert published(second, straggler=[better]) == [f"-{worse.verdict_id}", f"+{better.verdict_id}"]
    third = Arbiter()
    published(third, health=[better])
    assert published(third, straggler=[worse]) == []


def test_an_active_verdict_stays_if_the_other_is_as_good() -> None:
    arbiter = Arbiter()
    assert published(arbiter, straggler=[verdict("first", confidence=0.95)]) == ["+first"]
    assert published(arbiter, health=[verdict("second", Kind.HEALTH, Cause.NIC, confidence=0.99)]) == []


def test_different_slowdowns_and_faults_without_one_do_not_exclude_each_other() -> None:
    arbiter = Arbiter()
    every = [
        verdict("gpu"), verdict("hang", Kind.HANG, Cause.NEVER_ARRIVED), verdict("xid", Kind.HEALTH, slowdown=1.0),
        verdict("host", cause=Cause.STORAGE), verdict("uplink", Kind.INTERFERENCE, Cause.CONGESTION, (2, 3)),
        verdict("elsewhere", gang="b"), verdict("other rank", ranks=(4,)),
    ]  # fmt: skip
    assert len(published(arbiter, any=every)) == len(every)
    assert arbiter.published.accused == {("a", 1, 3), ("a", 1, 4), ("b", 1, 3)}


def test_a_node_verdict_explains_the_ranks_that_it_covers() -> None:
    arbiter = Arbiter()
    node = verdict("node", cause=Cause.STORAGE, ranks=(0, 1))
    assert published(arbiter, straggler=[node, Cover("node", (2,))]) == ["+node"]
    assert arbiter.published.accused == {("a", 1, 0), ("a", 1, 1), ("a", 1, 2)}
    assert published(arbiter, workload=[verdict("w", cause=Cause.CPU_CONTENTION, ranks=(2,))]) == []


def test_only_published_verdicts_enter_the_fault_history() -> None:
    arbiter = Arbiter()
    fault = PartFault("v", "GPU-3", "n0", Cause.THERMAL, 5)
    refused = PartFault("w", "GPU-4", "n1", Cause.THERMAL, 5)
    published(arbiter, health=[verdict("w", cause=Cause.UNKNOWN), refused], straggler=[fault, verdict("v")])
    assert arbiter.fault_history.weight("GPU-3", "n0")
    assert not arbiter.fault_history.weight("GPU-4", "n1")


def test_rotating_slowness_lasts_as_long_as_its_verdict() -> None:
    def rotating(*causes: Cause) -> Cause | None:
        arbiter = Arbiter()
        published(arbiter, workload=[verdict(str(one), Kind.WORKLOAD, one, ()) for one in causes])
        return arbiter.published.rotating.get("a")

    assert rotating() is None
    assert rotating(Cause.WHOLE_JOB, Cause.CHECKPOINT) is None
    assert rotating(Cause.WHOLE_JOB, Cause.SEQUENCE_LENGTH) is Cause.SEQUENCE_LENGTH
    assert rotating(Cause.SEQUENCE_LENGTH, Cause.PAUSES) is Cause.PAUSES
    assert rotating(Cause.PAUSES, Cause.SEQUENCE_LENGTH) is Cause.PAUSES


def test_a_restart_changes_nothing() -> None:
    before, after = Arbiter(), Arbiter()
    published(before, straggler=[verdict("slow"), Cover("slow", (5,))], workload=[verdict("own", Kind.WORKLOAD)])
    after.load(before.dump())
    assert after.published == before.published == Published(
        frozenset({("a", 1, 3), ("a", 1, 5)}), refused=frozenset({"own"}))  # fmt: skip
    assert published(after, workload=[verdict("own", Kind.WORKLOAD, ranks=(5,))]) == []
    for data in (b"\xc1", Arbiter().dump()[:-1], b"\x93\x02\x90\x90"):
        with pytest.raises(ValueError, match="active verdicts"):
            Arbiter().load(data)


def test_verdicts_are_forgotten_with_their_attempt() -> None:
    def accused(arbiter: Arbiter, attempts: dict[str, int], now_ns: int) -> bool:
        assert arbiter.resolve({}, attempts, now_ns) == []
        return bool(arbiter.published.accused)

    arbiter = Arbiter()
    published(arbiter, straggler=[verdict("slow")])
    kept = arbiter.dump()
    assert accused(arbiter, {"a": 1}, RESTORED_NS * 2)
    assert not accused(arbiter, {"a": 2}, 1)
    arbiter.load(kept)
    assert accused(arbiter, {}, 7), "after a restart, its job may not have reported yet"
    assert accused(arbiter, {"a": 1}, 8 + RESTORED_NS), "its detector keeps it, and clears it"
    assert not accused(arbiter, {}, 9 + RESTORED_NS)
    arbiter.load(kept)
    assert not accused(arbiter, {"a": 2}, 7)


def restarted(*active: Verdict) -> Arbiter:
    """Return an arbiter that was restored with these active verdicts."""
    before, after = Arbiter(), Arbiter()
    assert len(published(before, every=active)) == len(active)
    after.load(before.dump())
    assert published(after) == []
    return after


@pytest.mark.parametrize(
    ("detector", "ends"), [("straggler", False), ("health", False), ("hang", True), ("interference", True),
                           ("workload", True)])  # fmt: skip
def test_a_restored_verdict_ends_only_if_its_detector_learns_again(detector: str, ends: bool) -> None:
    arbiter = restarted(replace(verdict("kept", Kind.HANG), detector=detector))
    assert arbiter.resolve({}, RUNNING, RESTORED_NS) == []
    later = arbiter.resolve({}, RUNNING, 2 * RESTORED_NS)
    assert [one.verdict_id for one in later if isinstance(one, Cleared)] == ["kept"] * ends
    assert arbiter.resolve({}, RUNNING, 2 * RESTORED_NS + 1) == []


@pytest.mark.parametrize(
    "first",
    [
        replace(verdict("first", Kind.HANG), detector="hang"),
        replace(verdict("first", Kind.HEALTH, slowdown=1.0), detector="health"),
        replace(verdict("first", Kind.HEALTH), detector="health"),
        replace(verdict("first", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, (4, 5)), rank=-1, detector="workload"),
        replace(verdict("first", Kind.WORKLOAD, Cause.CHECKPOINT, ()), detector="workload"),
    ],
    ids=lambda first: first.kind,
)
def test_a_verdict_keeps_its_first_id_after_a_restart(first: Verdict) -> None:
    """After the restart the detector learns again, so it reports and clears the verdict under another id."""
    arbiter = restarted(first)
    again = replace(first, verdict_id="again", confidence=0.97)
    assert published(arbiter, it=[again]) == ["+first"]
    assert arbiter.published.refused == frozenset()
    assert published(arbiter, it=[again, PartFault("again", "GPU-1", "n0", Cause.XID, 1)]) == ["+first"]
    assert arbiter.fault_history.weight("GPU-1", "n0")
    assert published(arbiter, it=[Cleared("again", "a", 0, "over")]) == ["-first"]
    assert published(arbiter, it=[again]) == ["+again"], "a new fault has a new id"


def test_another_accusation_has_its_own_id_after_a_restart() -> None:
    first = replace(verdict("first", Kind.HANG), detector="hang")
    others = [
        replace(first, verdict_id="rank", rank=4),
        replace(first, verdict_id="node", node="n1"),
        replace(first, verdict_id="attempt", gang="b"),
        replace(first, verdict_id="detector", detector="health"),
    ]
    arbiter = restarted(first)
    assert published(arbiter, it=others) == ["+rank", "+node", "+attempt", "+detector"]
    assert published(arbiter, it=[replace(first, verdict_id=name) for name in ("x", "y")]) == ["+first", "+y"]
    straggler = replace(verdict("first"), detector="straggler")
    other = replace(straggler, verdict_id="other", ranks=(3, 4))
    assert published(restarted(straggler), straggler=[other]) == [], "this detector keeps its ids"


def test_a_detector_forgets_a_verdict_that_is_refused_under_its_first_id() -> None:
    first = replace(verdict("first", Kind.WORKLOAD, Cause.PAUSES), detector="workload")
    arbiter = restarted(first)
    again = replace(first, verdict_id="again")
    assert published(arbiter, straggler=[verdict("slow")], workload=[again]) == ["-first", "+slow"]
    assert arbiter.published.refused == {"first", "again"}


def test_the_end_of_an_unknown_verdict_is_published() -> None:
    """The straggler detector restores its verdicts from a snapshot of release 0.1.0; the arbiter has no record of
    them."""
    results: dict[str, Sequence[Proposal]] = {"straggler": [Cleared("old", "a", 5, "over")]}
    found: list[Finding] = Arbiter().resolve(results, RUNNING, 0)
    assert found == results["straggler"]
