"""`gangwatch simulate`: its output, its HTML page, and its errors."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.schema.errors import TraceError
from gangwatch.cli import cli
from scheduler_feedback.sim.engine import Span
from scheduler_feedback.sim.page import lay_out, thinned

KEYS = [
    "jobs",
    "avg_jct_seconds",
    "p50_jct_seconds",
    "p99_jct_seconds",
    "makespan_seconds",
    "avg_queue_seconds",
    "utilization",
    "fragmentation",
    "preemptions",
    "migrations",
    "failures",
    "backfilled",
    "wall_seconds",
    "jobs_per_second",
    "decisions",
    "decision_ms",
    "per_queue",
]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Write sixty jobs of two queues, whose workload name contains HTML, and one job that exceeds the cluster."""
    path = tmp_path / "jobs.jsonl"
    lines = [
        {
            "submitted_seconds": 5 * number,
            "run_seconds": 30 + 17 * number % 90,
            "ranks": 1 + number % 6,
            "queue": f"q{number % 2}",
            "workload": "</script><b>",
            "restartable": True,
            "preemptible": True,
        }
        for number in range(60)
    ]
    lines.append({"submitted_seconds": 1, "run_seconds": 1, "ranks": 100})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, arguments)])


def report(*arguments: str | Path) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_document_has_every_figure(jobs: Path) -> None:
    document = report("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", "--order", "fifo")
    assert list(document)[: len(KEYS)] == KEYS
    assert document["jobs"] == 60
    assert set(document["decision_ms"]) == {"p50", "p99"}
    assert set(document["per_queue"]) == {"q0", "q1"}
    assert sum(queue["jobs"] for queue in document["per_queue"].values()) == 60
    assert 0 < document["utilization"] <= 1 and 0 <= document["fragmentation"] <= 1
    [refused] = document["refused"]
    assert (refused["job"], refused["line"]) == ("61", 61)
    assert "can hold at most 8" in refused["reason"]
    assert "not in the order" in document["notes"][0]


@pytest.mark.parametrize("order", ["fifo", "sjf", "srtf", "srsf", "las", "themis", "fair"])
@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
def test_every_order_runs_with_every_backfill(jobs: Path, order: str, backfill: str) -> None:
    document = report(
        *("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", "--order", order, "--backfill", backfill),
        *("--preempt", "--replan", "10", "--restart-cost", "5", "--estimates", "history"),
    )
    assert (document["jobs"], document["unfinished"]) == (60, 0)


def test_faults_of_a_file_slow_jobs_and_feedback_moves_them(jobs: Path, tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    trace.write_text(
        '{"submitted_seconds": 0, "run_seconds": 7200, "ranks": 4, "job": "a", "restartable": true, '
        '"time_limit_seconds": 7200}\n'
    )
    faults = tmp_path / "faults.csv"
    faults.write_text("node,begin_seconds,seconds,slowdown\nn0,600,86400,2.0\n")
    base = ("--jobs", trace, "--format", "gangwatch", "--nodes", "2x4", "--order", "fifo", "--restart-cost", "60")
    assert report(*base)["avg_jct_seconds"] == 7200
    slow = report(*base, "--faults", faults)
    assert slow["avg_jct_seconds"] == 600 + 2 * 6600
    moved = report(*base, "--faults", faults, "--feedback", "on", "--seed", "3")
    assert moved["migrations"] == 1
    assert 7260 < moved["avg_jct_seconds"] < 7320
    at_once = report(*base, "--faults", faults, "--feedback", "told", "--seed", "3")
    assert 7260 <= at_once["avg_jct_seconds"] < moved["avg_jct_seconds"], "the wait begins earlier"
    assert report(*base, "--faults", faults, "--feedback", "oracle")["avg_jct_seconds"] == 7260


def test_the_same_seed_gives_the_same_faults(jobs: Path) -> None:
    base = ("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", "--faults", "transient", "--feedback", "on")
    first, again, other = (report(*base, "--seed", seed)["avg_jct_seconds"] for seed in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_page_is_self_contained(jobs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = invoke("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", "--order", "fifo", "--html", page)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert not re.search(r"https?://|src=|@import|<link", text)
    assert text.count("</script>") == 2, "no job name ends a script"
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert len(data["bars"]) >= 60 and len(data["jobs"]) == 60
    assert data["jobs"][0][2] == "</script><b>"
    assert data["waiting"][-1][1] == 0 and data["used"][-1][1] == 0
    assert max(value for _, value in data["used"]) <= 8
    for node, lane, lanes, begin, end, *_ in data["bars"]:
        assert 0 <= lane < lane + lanes <= data["nodes"][node][1] and begin <= end


def test_spans_never_share_a_lane() -> None:
    spans = [Span(str(n), n * 10, n * 10 + 10 + n % 50, {"n": 1 + n % 3}, "ended") for n in range(200)]
    spans = [span for n, span in enumerate(spans) if n % 2 == 0]
    busy: dict[int, int] = {}
    for _, lane, lanes, span in lay_out(spans, {"n": 8}):
        for used in range(lane, lane + lanes):
            assert busy.get(used, 0) <= span.began_ns
            busy[used] = span.ended_ns


def test_a_thinned_plot_keeps_its_peak() -> None:
    steps = [(float(n), 1000 if n == 77_777 else n % 7) for n in range(100_000)]
    found = thinned(steps, 500)
    assert len(found) <= 501
    assert max(value for _, value in found) == 1000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--nodes", "0x8"), "none of the numbers can be 0"),
        (("--nodes", "99999x9999"), "at most 1000000 can be simulated"),
        (("--nodes", "absent.csv"), "neither a shape like 64x8 nor a file"),
        (("--nodes", "2x4", "--faults", "absent.csv"), "neither transient nor persistent nor failures nor a file"),
    ],
)
def test_invalid_inputs_are_refused_with_a_reason(jobs: Path, arguments: tuple[str, ...], says: str) -> None:
    result = invoke("--jobs", jobs, "--format", "gangwatch", *arguments)
    assert isinstance(result.exception, TraceError)
    assert says in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--load", "0"),
        ("--load", "nan"),
        ("--replan", "-1"),
        ("--restart-cost", "-1"),
        ("--order", "best"),
        ("--html", "/"),
        ("--html", "/absent/page.html"),
        ("--journal", "/absent/journal.sqlite"),
    ],
)
def test_wrong_usage_is_refused(jobs: Path, arguments: tuple[str, ...]) -> None:
    assert invoke("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", *arguments).exit_code == 2


def test_error_in_a_fault_file_has_line_and_column(jobs: Path, tmp_path: Path) -> None:
    faults = tmp_path / "faults.csv"
    for line, says in (
        ("n9,0,1,2", "line 2, column node: 'n9' is not a node of this cluster"),
        ("n0,0,1,0.5", "line 2, column slowdown: 0.5 is less than 1"),
        ("n0,0,1e300,2", "line 2, column seconds: 1e300 is more than 1e+09"),
        ("n0,0,1,1e9", "line 2, column slowdown: 1e9 is more than 1000"),
        ("n0,0,1", "line 2, column 4: 3 cells under a header of 4"),
    ):
        faults.write_text(f"node,begin_seconds,seconds,slowdown\n{line}\n")
        result = invoke("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", "--faults", faults)
        assert isinstance(result.exception, TraceError)
        assert says in str(result.exception)


def test_nodes_may_come_from_a_topology_file(jobs: Path, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,slots,rack,spine,gpu_type\na,4,r0,s0,H100\nb,4,r0,s0,H100\nc,8,r1,s0,A100\n")
    assert report("--jobs", jobs, "--format", "gangwatch", "--nodes", nodes)["jobs"] == 60
    nodes.write_text("node,slots\na,4\na,4\n")
    result = invoke("--jobs", jobs, "--format", "gangwatch", "--nodes", nodes)
    assert "line 3, column node: 'a' is listed twice" in str(result.exception)
    nodes.write_text("node,slots\na,4\nb,999999999999\n")
    result = invoke("--jobs", jobs, "--format", "gangwatch", "--nodes", nodes)
    assert "line 3: 1000000000003 GPUs so far; at most 1000000" in str(result.exception)


def trace_of(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps({"submitted_seconds": 0, "run_seconds": 50} | line) + "\n" for line in lines))
    return path


def test_settings_that_a_preset_overrides_are_reported(jobs: Path) -> None:
    asked = ("--jobs", jobs, "--format", "gangwatch", "--nodes", "2x4", "--order", "srsf", "--preset", "muri")
    plain, found = report(*asked), report(*asked, "--restart-cost", "300", "--replan", "60")
    [note] = set(found["notes"]) - set(plain["notes"])
    assert note == "--replan and --restart-cost: ignored, --preset muri sets its own values"
    assert found["avg_jct_seconds"] == plain["avg_jct_seconds"]


def test_an_array_is_simulated_member_by_member(tmp_path: Path) -> None:
    path = trace_of(tmp_path / "array.jsonl", {"job": "a", "ranks": 2, "array_size": 3, "array_parallel": 1})
    document = report("--jobs", path, "--format", "gangwatch", "--nodes", "4x8", "--journal", tmp_path / "journal")
    assert (document["jobs"], document["makespan_seconds"], document["unfinished"]) == (3, 150.0, 0)


def test_unfinished_jobs_are_listed_with_the_reason(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path / "jobs.jsonl",
        {"job": "ok", "ranks": 2},
        {"job": "late", "ranks": 2, "after": [{"job_id": "j-none"}]},
        {"job": "wide", "ranks": 16, "required_level": "node"},
        {"job": "other", "ranks": 2, "gpu_types": ["H100"]},
    )
    document = report("--jobs", path, "--format", "gangwatch", "--nodes", "4x8")
    assert (document["jobs"], document["unfinished"]) == (1, 3)
    reasons = {one["job"]: (one["line"], one["reason"]) for one in document["refused"]}
    assert reasons.keys() == {"late", "wide", "other"}
    assert reasons["late"] == (2, "never ended: it waits for j-none, an unknown job")
    assert reasons["wide"][1].startswith("never ended: needs 16 slots within one node; ")
    assert reasons["other"][1].startswith("never ended: needs 2 slots on H100; ")


def test_simulation_beyond_the_year_2200_is_refused(tmp_path: Path) -> None:
    long = {"ranks": 32, "run_seconds": 1e9}
    path = trace_of(tmp_path / "long.jsonl", *[long] * 8)
    result = invoke("--jobs", path, "--format", "gangwatch", "--nodes", "4x8")
    assert isinstance(result.exception, TraceError)
    assert "6 of 8 jobs have ended by the year 2200" in str(result.exception)


def on_a_terminal(*arguments: str | Path, stdout_too: bool = False) -> tuple[str, str]:
    """Run the command with standard error on a terminal. Return (standard output, terminal output).

    stdout_too: connect standard output to the terminal as well.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gangwatch", "simulate", *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command, stdout=theirs if stdout_too else subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not part:
                break
            shown += part
        printed = "" if process.stdout is None else process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0, shown
    return printed, shown.decode()


def test_progress_is_shown_only_on_a_terminal(jobs: Path) -> None:
    arguments = ("--jobs", jobs, "--format", "gangwatch", "--nodes", "4x4")
    printed, shown = on_a_terminal(*arguments)
    assert "jobs ended" in shown and "reading " in shown
    assert "jobs ended" not in printed and "avg_jct_seconds" in printed
    _, shown = on_a_terminal(*arguments, "--json")
    assert shown == "", "no progress with --json"
    piped = invoke(*arguments)
    assert "jobs ended" not in piped.output and piped.exit_code == 0
