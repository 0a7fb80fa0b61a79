"""Sentences of verdicts about a rank, a gang, a device or a node."""

from __future__ import annotations

import math
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.sample import expanded
from gangwatch.display import rendering, top_screen
from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.web import views
from scheduler_feedback.backends.slurm.desired_state import evidence_of
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict
from scheduler_feedback.core.verdict_text import accused, cause_of, sentence, short, spans_of
from scheduler_feedback.cycle import run

WALL = 1_800_000_000_000_000_000
GPU = "GPU-0c6f2e4b-8b0f-4c4a-9d9b-1f1c3a7e5d11"


def verdict(kind: Kind = Kind.WORKLOAD, cause: Cause = Cause.CHECKPOINT, **more: Any) -> Verdict:
    plain = Verdict("v-1", kind, "j-000001", 1, -1, "", cause, 0.82, 1.08, 0.1, 0.108, WALL, WALL)
    return replace(plain, **more)


SCOPES: tuple[dict[str, object], ...] = (
    {},
    {"node": "node-1", "level": "node"},
    {"rank": 2, "node": "node-1"},
    {"rank": 2, "node": "node-1", "level": "node", "ranks": (2, 3)},
    {"rank": 1, "node": "node-0", "ranks": (1, 3)},
    {"rank": 2},
    {"rank": 1, "ranks": (1, 2, 3)},
    {"ranks": (0, 1, 2)},
    {"gang": "", "node": "node-1", "level": "node"},
    {"gang": "", "node": "node-1", "level": "gpu", "device": GPU},
    {"node": "node-1", "level": "nic", "device": "mlx5_0"},
    {"aggressor": "j-000007", "resource": "link:leaf-1"},
    {"aggressor": "j-000007", "rank": 2, "node": "node-1"},
)

verdicts = st.builds(
    lambda kind, cause, scope, slowdown, confidence: verdict(
        kind, cause, **scope, slowdown=slowdown, confidence=confidence
    ),
    st.sampled_from(Kind),
    st.sampled_from(Cause),
    st.sampled_from(SCOPES),
    st.sampled_from((1.0, 1.001, 1.08, 1.996, 2.0, 588.85)),
    st.floats(0, 1),
)


def is_plain(text: str) -> bool:
    """Return whether the text has no placeholder number, no empty name, and no repeated or incomplete word."""
    bad = (" -", " on :", " on ,", " of :", " of  ", "()", "( ", "  ", " on on ", ": :", " nan", " inf ")
    return not any(part in text for part in bad) and text == text.strip() and not text.endswith((" on", " of", ":"))


def state_with(one: Verdict) -> State:
    job = Job("j-000001", JobSpec("train", ("true",), 4), JobState.RUNNING, WALL, attempt=1, attempt_started_ns=WALL)
    job.ranks = [RankRecord(rank, Slot(f"node-{rank // 2}", rank % 2)) for rank in range(4)]
    nodes = {f"node-{number}": Node(f"node-{number}", 2) for number in range(4)}
    return State(jobs={job.job_id: job}, nodes=nodes, verdicts={one.verdict_id: one}, now_ns=WALL)


@pytest.mark.parametrize("slowdown", [0.0, 1.0, float("nan"), float("inf")])
def test_sentence_omits_an_unknown_slowdown(slowdown: float) -> None:
    assert sentence(verdict(slowdown=slowdown)) == (
        "j-000001 slows itself down (periodic checkpoints), confidence 0.82"
    )


@given(verdicts)
def test_sentences_name_only_existing_ranks_and_nodes(one: Verdict) -> None:
    for text in (sentence(one), short(one)):
        assert is_plain(text), text
    assert (f"confidence {one.confidence:.2f}" in sentence(one)) and sentence(one).count("confidence") == 1
    assert one.gang in sentence(one)
    if one.rank >= 0 and not one.ranks:
        assert f"rank {one.rank}" in sentence(one) and f"rank {one.rank}" in short(one)
    if one.kind is Kind.HANG:
        assert "588" not in sentence(one), "the time without a step is not a slowdown"


@given(verdicts)
def test_outputs_name_only_existing_ranks_and_nodes(one: Verdict) -> None:
    state = state_with(one)
    out = StringIO()
    with redirect_stdout(out):
        rendering.jobs(documents.jobs_document(state, active=False))
        rendering.verdicts(documents.verdicts_document(state))
    overview = views.overview(state, {}, WALL) | {"step_seconds": {}}
    shown = [line.strip() for line in out.getvalue().splitlines()]
    shown += [part["short"] for job in overview["running"] for part in job["verdicts"]]
    shown += [str(part) for part in top_screen._verdicts(overview, 200, 10)[0]]
    shown += evidence_of(one)
    state.verdicts.clear()
    outcome = run(state, (one,), WALL + 1)
    texts = [entry.text for entry in outcome.entries]
    texts += [node.reason for node in state.nodes.values() if node.reason]
    assert any(sentence(one) in text for text in texts) or one.gang == ""
    for text in (*shown, *texts):
        assert "rank -1" not in text and " on :" not in text and not text.endswith(" on "), text


@given(verdicts)
def test_metric_rank_label_is_empty_without_a_rank(one: Verdict) -> None:
    labels = [
        dict(labels) for name, labels, _ in expanded(measure(state_with(one))) if name == "gangwatch_verdict_active"
    ]
    assert [label["rank"] for label in labels] == [str(one.rank) if one.rank >= 0 else ""]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (verdict(), "j-000001 slows itself down by 8 % (periodic checkpoints), confidence 0.82"),
        (
            verdict(cause=Cause.DATA_LOADING, ranks=(1, 3)),
            "j-000001 slows itself down by 8 % (data loading), confidence 0.82",
        ),
        (
            verdict(Kind.INTERFERENCE, Cause.HOST_CONTENTION, rank=1, ranks=(1, 3), aggressor="j-000007"),
            "j-000007 disturbs ranks 1,3 of j-000001 (another job on the same host): it slows the job down by 8 %, "
            "confidence 0.82",
        ),
        (
            verdict(Kind.HEALTH, Cause.XID, rank=2, ranks=(2, 3), node="node-1", level="gpu", device=GPU),
            f"GPU {GPU} of rank 2 of j-000001 on node-1 is unhealthy (XID error): it slows the job down by 8 %, "
            "confidence 0.82",
        ),
        (
            verdict(Kind.STRAGGLER, Cause.SUSPENDED, rank=2, node="node-1", slowdown=1.8),
            "rank 2 of j-000001 on node-1 is a straggler (suspended): it slows the job down by 80 %, confidence 0.82",
        ),
        (
            verdict(Kind.STRAGGLER, Cause.COMPUTE, rank=2, node="node-1", level="node", ranks=(2, 3), slowdown=3.4),
            "ranks 2-3 of j-000001 on node-1 are stragglers (slow compute): they slow the job down by a factor of 3.4, "
            "confidence 0.82",
        ),
        (
            verdict(Kind.HANG, Cause.NEVER_ARRIVED, rank=3, node="node-0", slowdown=588.85),
            "rank 3 of j-000001 on node-0 hangs (did not enter the collective that blocks its peers), confidence 0.82",
        ),
        (
            verdict(Kind.INTERFERENCE, Cause.CONGESTION, aggressor="j-000007", resource="link:leaf-1", slowdown=1.3),
            "j-000007 disturbs j-000001 on link leaf-1 (network congestion): it slows the job down by 30 %, "
            "confidence 0.82",
        ),
        (
            verdict(Kind.HEALTH, Cause.XID, gang="", node="node-1", level="gpu", device=GPU, slowdown=1.0),
            f"GPU {GPU} on node-1 is unhealthy (XID error), confidence 0.82",
        ),
        (
            verdict(Kind.HEALTH, Cause.LOST, gang="", node="node-1", level="node", slowdown=1.0),
            "node-1 is unhealthy (not reporting), confidence 0.82",
        ),
        (
            verdict(Kind.WORKLOAD, Cause.DATA_LOADING, rank=2, node="node-1"),
            "rank 2 of j-000001 on node-1 slows j-000001 down by 8 % with its own work (data loading), confidence 0.82",
        ),
        (
            verdict(Kind.SEQUENCE_IMBALANCE, Cause.SEQUENCE_LENGTH, rank=2, node="node-1", level="node", ranks=(2, 3)),
            "ranks 2-3 of j-000001 on node-1 have more work than the other ranks (unequal sequence lengths): "
            "they slow the job down by 8 %, confidence 0.82",
        ),
    ],
)
def test_sentence_names_accused_kind_cause_cost_and_confidence(one: Verdict, expected: str) -> None:
    assert sentence(one) == expected


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (verdict(), "the whole job: workload (periodic checkpoints), 82 % sure"),
        (
            verdict(Kind.STRAGGLER, Cause.SUSPENDED, rank=2, node="node-1"),
            "rank 2 on node-1: straggler (suspended), 82 % sure",
        ),
        (verdict(Kind.HEALTH, Cause.LOST, gang="", node="node-1"), "node-1: unhealthy (not reporting), 82 % sure"),
    ],
)
def test_short_form_omits_the_job(one: Verdict, expected: str) -> None:
    assert short(one) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2,5"), ([7, 3, 4, 9, 8], "3-4,7-9"), ([1, 3, 5], "1,3,5")],
)
def test_consecutive_ranks_become_a_range(numbers: list[int], expected: str) -> None:
    assert spans_of(numbers) == expected


@pytest.mark.parametrize(
    ("rank", "ranks", "level", "expected"),
    [
        (2, (2,), "gpu", "rank 2 of j-000001 on node-1"),
        (2, (2, 5), "gpu", "rank 2 of j-000001 on node-1 and 1 other rank"),
        (2, (2, 5, 6), "gpu", "rank 2 of j-000001 on node-1 and 2 other ranks"),
        (2, (2, 5, 6), "node", "ranks 2,5-6 of j-000001 on node-1"),
        (0, tuple(range(0, 18, 2)), "node", "9 ranks of j-000001 on node-1"),
        (-1, (), "node", "j-000001 on node-1"),
    ],
)
def test_accused_lists_ranks_of_one_node_and_counts_the_others(
    rank: int, ranks: tuple[int, ...], level: str, expected: str
) -> None:
    assert accused(verdict(Kind.STRAGGLER, Cause.GPU, rank=rank, node="node-1", ranks=ranks, level=level)) == expected


@pytest.mark.parametrize(
    ("seconds", "does", "expected"),
    [
        (0.4, "", "hangs"), (47.4, "", "hangs: no step for 47 s"), (math.inf, "is stopped", "hangs: is stopped"),
        (50.0, "is stopped", "hangs: no step for 50 s, is stopped"),
    ],
)  # fmt: skip
def test_hang_states_the_time_without_a_step_and_the_process_state(seconds: float, does: str, expected: str) -> None:
    items = (Evidence("process_state", 3.0, 0.0, "state", does),) if does else ()
    one = verdict(Kind.HANG, Cause.NEVER_ARRIVED, rank=3, node="node-0")
    words = sentence(replace(one, step_seconds_now=seconds, evidence=items)).replace(
        " (did not enter the collective that blocks its peers)", ""
    )
    assert words == f"rank 3 of j-000001 on node-0 {expected}, confidence 0.82"


@pytest.mark.parametrize(
    ("slowdown", "expected"),
    [
        (1.0049, ""),
        (1.005, " by 0 %"),
        (1.524, " by 52 %"),
        (1.99, " by 99 %"),
        (2.0, " by a factor of 2"),
        (3.41, " by a factor of 3.4"),
    ],
)
def test_sentence_states_slowdowns_of_half_a_percent_or_more(slowdown: float, expected: str) -> None:
    words = sentence(verdict(slowdown=slowdown))
    assert words == f"j-000001 slows itself down{expected} (periodic checkpoints), confidence 0.82"


def test_cause_names_the_disturbing_job() -> None:
    assert cause_of(verdict(Kind.INTERFERENCE, Cause.CONGESTION)) == "network congestion"
    named = verdict(Kind.INTERFERENCE, Cause.CONGESTION, aggressor="j-000007")
    assert cause_of(named) == "network congestion, caused by j-000007"
