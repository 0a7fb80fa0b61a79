"""The simple rule and published rules on invented traces, points of curves, stored rows, and the command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.crosscheck.trace import generate as generate_crosscheck
from benchmarks.crosscheck.trace import write as write_crosscheck
from benchmarks.curves import __main__ as command
from benchmarks.curves.points import Judged, by_rule, curve, first_of_each_rank, point
from benchmarks.curves.rules import BY_STEPS, Trace, published, simple
from benchmarks.curves.stored import StoredError, judged, rows, traces
from benchmarks.traces.generate import generate
from benchmarks.traces.trace_file import write
from tests import needs

Row = dict[str, Any]


def trace(*slow: tuple[int, int, float], culprits: tuple[int, ...] = (5,), onset: int = 100) -> Trace:
    """Return 200 steps of two stages of eight ranks. slow: (rank, first step, factor)."""
    own = np.exp(np.random.default_rng(3).normal(0.0, 0.01, (200, 16)))
    own[:, 8:] *= 1.5  # the second stage has more work
    for rank, first, factor in slow:
        own[first:, rank] *= factor
    stage = np.repeat([0, 1], 8)
    return Trace(own, own.max(axis=1) + 0.1, stage, np.arange(16) // 4, frozenset(culprits), onset)


def test_the_simple_rule_names_the_slow_rank_of_a_role() -> None:
    slow = trace((5, 100, 1.3))
    found = simple(slow)
    assert first_of_each_rank(slow, found, 1.2) == [True]
    assert first_of_each_rank(slow, found, 1.4) == []
    assert min(one.at for one in found if one.score >= 1.2) == 129, "three windows of ten steps after step 99"
    assert first_of_each_rank(trace((4, 100, 1.3)), simple(trace((4, 100, 1.3))), 1.2) == [False]
    early = trace((5, 60, 1.3))
    assert first_of_each_rank(early, simple(early), 1.2) == [False], "it is accused before the fault"
    assert first_of_each_rank(trace(), simple(trace()), 1.1) == []


def test_the_simple_rule_tolerates_lost_samples_and_short_traces() -> None:
    one = trace((5, 100, 1.3))
    one.own[:, 3] = np.nan
    one.own[50:60] = np.nan
    assert first_of_each_rank(one, simple(one), 1.2) == [True]
    short = Trace(one.own[:50], one.seconds[:50], one.role, one.node, one.culprits, -1)
    assert simple(short) == []


def test_published_rules_judge_the_same_trace() -> None:
    slow = trace((5, 100, 2.5))
    found = published(slow)
    assert first_of_each_rank(slow, found["sliding_window"], 1.0) == [True]
    assert first_of_each_rank(slow, found["nvrx"], 1.0).count(True) == 1
    assert len(first_of_each_rank(slow, found["nvrx"], 1.0)) > 1, "it accuses the second stage, which has more work"
    assert "pairwise_distance" not in found, "it needs counters"


def test_a_point_counts_accusations_and_faults() -> None:
    jobs = [
        Judged(True, [(0.95, True), (0.6, False)]),
        Judged(True, [(0.7, True)]),
        Judged(False, [(0.92, False)]),
    ]
    one = point(jobs, 0.9)
    assert (one.right, one.accusations, one.found, one.faults) == (1, 2, 1, 2)
    assert (one.precision, one.recall) == (0.5, 0.5)
    drawn = curve(jobs, [0.6, 0.99, 0.95, 0.7])
    assert [each.threshold for each in drawn] == [0.95, 0.7, 0.6], "nothing is accused at .99"
    assert [each.recall for each in drawn] == [0.5, 1.0, 1.0]


def test_a_rank_counts_once_per_job() -> None:
    slow = trace((5, 100, 1.5))
    assert len(simple(slow)) > 3
    assert by_rule([(slow, True, simple(slow))], 1.2).accusations == 1


def row_of_traces(seed: int, name: str, waits: str = "known", **verdict: Any) -> Row:
    job = generate(seed, name, most_ranks=16)
    truth = job.truth.as_dict() | {"waits": waits}
    found = [{"accuses": True, "confidence": 0.95, "mark": "right"} | verdict] if verdict else []
    return {
        "seed": seed, "most_ranks": 16, "waits": None, "layout": None, "truth": truth, "outcome": {"verdicts": found},
    }  # fmt: skip


def test_stored_rows_with_unknown_waits_or_cheap_faults_do_not_count() -> None:
    one = row_of_traces(3, "one-rank", mark="right")
    one["truth"]["cost"] = 1.2
    assert judged(one) == Judged(True, [(0.95, True)])
    one["truth"]["cost"] = 1.01
    assert judged(one) is None
    assert judged(row_of_traces(3, "plain", "null")) is None
    assert judged(row_of_traces(3, "plain", mark="innocent")) == Judged(False, [(0.95, False)])


@pytest.mark.parametrize("name", ["lost-samples", "restarts", "one-rank"])
def test_a_trace_is_the_same_as_in_its_file(tmp_path: Path, name: str) -> None:
    row = row_of_traces(5, name)
    made = next(traces([row]))
    job = generate(5, name, most_ranks=16)
    job.truth.waits = "known"
    write(job, tmp_path / "trace.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert made is not None
    wanted = [round(line["seconds"] - line["wait_seconds"], 4) for line in lines]
    given = [round(float(value), 4) for value in made.own.ravel() if np.isfinite(value)]
    assert given == pytest.approx(wanted, abs=2e-4)
    if name == "one-rank":
        assert lines[made.onset * job.layout.ranks]["step"] == job.truth.onset


def test_a_trace_of_the_second_generator_is_the_same_as_in_its_file(tmp_path: Path) -> None:
    needs.data("steps", "pai-job3.csv")
    row = {"seed": 140003, "layout": "tree", "fault": "several-of-node"}
    made, job = next(traces([row])), generate_crosscheck(140003, 512, 40_000)
    job.waits = "known"
    write_crosscheck(job, tmp_path / "trace.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert made is not None
    own = np.full((len(made.own), len(job.job.number)), np.nan)
    place = {int(number): at for at, number in enumerate(job.job.number)}
    for line in lines:
        own[line["step"], place[line["rank"]]] = line["seconds"] - line["wait_seconds"]
    assert np.allclose(own, made.own, atol=1e-4, equal_nan=True)


def test_the_command_draws_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = [row_of_traces(3, "one-rank", mark="right"), row_of_traces(4, "plain")]
    stored[0]["truth"]["cost"] = 1.3
    file, svg = tmp_path / "rows.jsonl.gz", tmp_path / "curves.svg"
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in stored).encode()))
    assert command.main([str(file), "--svg", str(svg)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["title"], found["ours_at_90"]["of"], found["ours_at_90"]["found"]) == (
        "step traces: 2 jobs", [1, 1], [1, 1],
    )  # fmt: skip
    assert set(found["published"]) <= {rule.name for rule in BY_STEPS}
    assert "gangwatch" in "".join(ElementTree.fromstring(svg.read_text()).itertext())


@pytest.mark.parametrize(("content", "message"), [(b"{", "Expecting"), (b"", "has no runs"), (b"[1]\n", "has no runs")])
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoredError, match="give a result file"):
        rows(path)
    assert command.main([str(path)]) == 2
    assert message in capsys.readouterr().err
    assert command.main([str(tmp_path / "absent.jsonl")]) == 2
