"""Files of JSON lines are read in blocks: the border between two blocks changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.schema.errors import TraceError
from benchmarks import offline_detection
from scheduler_feedback.step_traces import json_lines


@pytest.fixture(params=[64, 1000, 1 << 20], ids=["a line", "some lines", "the whole file"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", size)
    return size


def row(step: int, rank: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "rank": rank, "seconds": 1.0 + step + rank / 10, "node": f"n{rank}", **more}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


@pytest.mark.usefixtures("block")
def test_values_are_those_of_the_lines(tmp_path: Path) -> None:
    rows = [row(step, rank, wait_seconds=0.25) for step in range(20) for rank in (3, 1)]
    rows[5].pop("wait_seconds")
    (trace,) = json_lines.read(written(tmp_path / "a.jsonl", rows))
    assert trace.name == "a" and trace.shape.ranks.tolist() == [1, 3] and trace.shape.nodes == ("n1", "n3")
    expected = np.array([[1.1 + step, 1.3 + step] for step in range(20)])
    assert np.array_equal(trace.steps.seconds, expected)
    assert np.argwhere(np.isnan(trace.steps.wait_seconds)).tolist() == [[2, 0]]
    assert trace.steps.tokens is None


@pytest.mark.usefixtures("block")
def test_the_first_of_two_lines_of_a_cell_counts(tmp_path: Path) -> None:
    rows = [row(step, rank) for step in range(10) for rank in range(2)]
    rows += [row(3, 1, wait_seconds=0.5) | {"seconds": 99.0}, row(3, 1) | {"seconds": 98.0}]
    (trace,) = json_lines.read(written(tmp_path / "a.jsonl", rows))
    assert trace.steps.seconds.max() < 12 and np.isnan(trace.steps.wait_seconds).all()
    assert trace.notes == ("2 samples of a are duplicates; the first one counts",)


@pytest.mark.usefixtures("block")
def test_jobs_are_separated(tmp_path: Path) -> None:
    rows = [row(step, 0, job=name) for step in range(10) for name in ("b", "", "c", "a")]
    traces = json_lines.read(written(tmp_path / "a.jsonl", rows))
    assert [(one.name, len(one.steps), one.notes) for one in traces] == [
        ("b", 10, ()),
        ("a", 10, ("10 samples of a are duplicates; the first one counts",)),
        ("c", 10, ()),
    ]


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"node": "elsewhere"}, "key 'node': 'elsewhere', but rank 1 had 'n1' before"),
        ({"stage": 1}, "key 'stage': 1, but rank 1 had 0 before"),
        ({"seconds": -1.0}, "key 'seconds'"),
        ({"wait_seconds": 50.0}, "key 'wait_seconds': longer than the step"),
        ({"rank": 1 << 17}, "key 'rank'"),
        ({"step": 1 << 64}, "key 'step'"),
        ({"tokens": 1e31}, "key 'tokens'"),
        ({"tp_rank": -1}, "key 'tp_rank'"),
        ({"job": 1}, "key 'job'"),
    ],
)
def test_error_names_the_line(tmp_path: Path, wrong: dict[str, Any], text: str) -> None:
    rows = [row(step, rank, stage=0) for step in range(10) for rank in range(2)]
    rows[13] |= wrong
    with pytest.raises(TraceError) as raised:
        json_lines.read(written(tmp_path / "a.jsonl", rows))
    assert ": line 14" in str(raised.value) and text in str(raised.value)


@pytest.mark.usefixtures("block")
def test_blank_lines_and_numbers_in_quotes_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [row(step, 0) for step in range(10)])
    path.write_text("\n" + path.read_text().replace('"rank": 0', '"rank": "0"', 1) + "   \n\n" + '{"step": 1}')
    with pytest.raises(TraceError, match="line 14: key 'rank' is missing"):
        json_lines.read(path)
    path.write_text(path.read_text().removesuffix('{"step": 1}'))
    assert len(json_lines.read(path)[0].steps) == 10


def test_progress_covers_the_file(tmp_path: Path, block: int) -> None:
    path = written(tmp_path / "a.jsonl", [row(step, 0) for step in range(100)])
    counts: list[int] = []
    json_lines.read(path, counts.append)
    assert sum(counts) == path.stat().st_size and (len(counts) == 1) == (block > 10_000)


def test_the_benchmark_finds_its_straggler() -> None:
    document = offline_detection.run(ranks=64, steps=200, seed=5)
    assert document["right"] and document["ours"]["rss_mib"] > 10 and document["cpu_ratio"] > 0
