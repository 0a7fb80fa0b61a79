"""Traces: the story of a job as spans, also if an earlier controller started the job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.schema.span import Span
from scheduler_feedback.api.job_spans import MOST_EVENTS, About, Traces, root_id, trace_id
from scheduler_feedback.core.actions import Entry

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND
VERDICT = "rank 1 of j-000002 is a straggler (suspended), slowdown 1.50, confidence 0.98 on n0"


def entry(second: float, kind: str, text: str = "", subject: str = "j-000002", **detail: str) -> Entry:
    return Entry(WALL + int(second * SECOND), subject, kind, text or kind, True, tuple(detail.items()))


STORY = (
    entry(0, "submitted", "train: 4 ranks"),
    entry(0, "waits", "needs 4 slots, 2 available now"),
    entry(10, "backfilled", "attempt 1 starts on n0:0,1 n1:0,1"),
    entry(11, "running", "all ranks of attempt 1 run"),
    entry(12, "first-step", "attempt 1 made its first step"),
    entry(40, "verdict", VERDICT, verdict="v-7", window_wall_ns=f"{WALL + 30 * SECOND}..{WALL + 39 * SECOND}"),
    entry(41, "migrate", "will move to n2", gain="100 s"),
    entry(41, "stopping", "stop of attempt 1 requested (migrate)"),
    entry(45, "pending", "waits for its next attempt: stopped to be moved"),
    entry(46, "started", "attempt 2 starts on n1:0,1 n2:0,1"),
    entry(47, "running", "all ranks of attempt 2 run"),
    entry(99, "ended", "completed: all ranks exited with 0"),
)


def traces(known: Sequence[str] = ("j-000001", "j-000002"), past: Sequence[Entry] = ()) -> Traces:
    def about(job_id: str) -> About | None:
        return About(f"name of {job_id}", WALL, (("gangwatch.ranks", 4),)) if job_id in known else None

    return Traces(about, lambda _job, number: past[:number], lambda _job: ["j-000001", "j-gone"])


def folded(entries: Sequence[Entry], into: Traces) -> list[Span]:
    return [span for number, one in enumerate(entries) for span in into.take(number, one)]


def seconds(span: Span) -> tuple[float, float]:
    return (span.start_ns - WALL) / SECOND, (span.end_ns - WALL) / SECOND


def test_a_job_has_a_trace_from_submission_to_end() -> None:
    fold = traces()
    spans = folded(STORY, fold)
    assert [(span.name, *seconds(span)) for span in spans] == [
        ("queued", 0, 10),
        ("placed", 10, 11),
        ("running", 11, 41),
        ("verdict: rank 1 of j-000002 is a straggler (suspended)", 30, 41),
        ("checkpoint", 41, 45),
        ("queued", 45, 46),
        ("placed", 46, 47),
        ("migration", 41, 47),
        ("running", 47, 99),
        ("job name of j-000002", 0, 99),
    ]
    root = spans[-1]
    assert {span.trace_id for span in spans} == {trace_id("j-000002", WALL)}
    assert len({span.span_id for span in spans}) == len(spans)
    assert (root.parent_id, root.span_id) == (b"", root_id("j-000002", WALL))
    assert {span.name for span in spans if span.parent_id == spans[2].span_id} == {spans[3].name}
    assert all(span.parent_id == root.span_id for span in spans[:-1] if not span.name.startswith("verdict"))
    assert [event.name for event in root.events] == ["first-step", "migrate"]
    assert dict(root.attributes)["gangwatch.ranks"] == 4
    assert dict(spans[3].attributes)["verdict"] == "v-7"
    assert [span.failed for span in spans] == [""] * len(spans)
    assert len(fold) == 0


def test_a_queued_span_links_to_the_jobs_it_waited_for() -> None:
    queued = folded(STORY, traces())[0]
    (link,) = queued.links  # a forgotten job has no trace to link to
    assert (link.trace_id, link.span_id) == (trace_id("j-000001", WALL), root_id("j-000001", WALL))
    assert dict(link.attributes)["gangwatch.job"] == "j-000001"
    assert dict(queued.attributes)["reason"] == "needs 4 slots, 2 available now"


@pytest.mark.parametrize("known_before", range(1, len(STORY)))
def test_a_restarted_controller_continues_the_same_trace(known_before: int) -> None:
    whole = traces()
    expected = [span for number, one in enumerate(STORY) for span in whole.take(number, one) if number >= known_before]
    later = traces(past=STORY)
    found = [span for number, one in enumerate(STORY) if number >= known_before for span in later.take(number, one)]
    links_aside = [(s.trace_id, s.span_id, s.parent_id, s.name, s.start_ns, s.end_ns, s.events) for s in found]
    assert links_aside == [
        (s.trace_id, s.span_id, s.parent_id, s.name, s.start_ns, s.end_ns, s.events) for s in expected
    ]


def test_a_cleared_verdict_ends_its_span() -> None:
    story = [
        *STORY[:6],
        entry(60, "cleared", "verdict v-7 ended: it runs at normal speed again"),
        *STORY[11:],
    ]
    found = {span.name: seconds(span) for span in folded(story, traces())}
    assert found["verdict: rank 1 of j-000002 is a straggler (suspended)"] == (30, 60)


def test_a_failed_job_marks_its_spans() -> None:
    story = [*STORY[:5], entry(20, "ended", "failed: rank 2 exited with 1")]
    spans = folded(story, traces())
    assert {span.name: span.failed for span in spans if span.failed} == {
        "running": "failed: rank 2 exited with 1",
        "job name of j-000002": "failed: rank 2 exited with 1",
    }


def test_only_jobs_have_traces_and_events_are_limited() -> None:
    fold = traces(known=("j-000002",))
    for subject in ("node:n0", "cluster", "j-array"):
        assert fold.take(1, entry(0, "submitted", subject=subject)) == []
    many = [entry(13 + n, "stay", "stays") for n in range(1000)]
    root = folded([*STORY[:5], *many, entry(2000, "ended", "completed: done")], fold)[-1]
    assert len(root.events) == MOST_EVENTS
    assert len(fold) == 0
    assert fold.take(9, entry(2001, "verdict-confirmed", "by ada")) == []
