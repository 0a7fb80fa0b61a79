"""`gangwatch detect` with invalid files: a result, or one line with the error and its place in the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from agent.schema.errors import TraceError
from gangwatch.cli import cli, run
from scheduler_feedback import step_traces
from scheduler_feedback.step_traces.judging import judge
from tests.detect.traces import detect, of_kind

HEADER = "worker,gpu,time,batch_time_norm"


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    assert run(["detect", str(path), "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


CSV = {
    "a value that is none": (f"{HEADER}\n0,25,1,10\n1,25,1,nan\n", "line 3, column 'batch_time_norm': 'nan'"),
    "infinity": (f"{HEADER}\n0,25,1,inf\n", "line 2, column 'batch_time_norm': 'inf'"),
    "more than time has": (f"{HEADER}\n0,25,1,1e300\n", "line 2, column 'batch_time_norm': 1e+300 is out of range"),
    "negative": (f"{HEADER}\n0,25,1,-3\n", "line 2, column 'batch_time_norm': -3"),
    "zero": (f"{HEADER}\n0,25,1,0\n", "line 2, column 'batch_time_norm': 0 is not a valid duration"),
    "text": (f"{HEADER}\n0,25,x,1\n", "line 2, column 'time': 'x'"),
    "a short line": (f"{HEADER}\n0,25,1\n", "line 2: 3 values for 4 columns"),
    "a column that is missing": ("worker,gpu,time\n0,25,1\n", "column 'batch_time_norm' is missing"),
    "a duplicate column": ("worker,time,batch_time_norm,time\n0,1,2,1\n", "column 'time' appears 2 times"),
    "nothing but a header": (f"{HEADER}\n", "the file contains no steps"),
    "a worker beyond reason": (f"{HEADER}\n99999999,25,1,1\n", "line 2, column 'worker'"),
    "nothing": ("", "the file is empty"),
}


@pytest.mark.parametrize("what", CSV)
def test_error_names_the_place_in_a_csv_file(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = CSV[what]
    path = tmp_path / "t.csv"
    path.write_text(content)
    assert words in refused(capsys, path)


LINES = {
    "no object": ('[1]\n{"step":1}', "Expected"),
    "a key that is missing": ('{"step":1,"seconds":1}', "line 1: key 'rank' is missing"),
    "negative": ('{"step":1,"rank":0,"seconds":1}\n{"step":2,"rank":0,"seconds":-1}', "line 2, key 'seconds': -1"),
    "waiting longer than it took": ('{"step":1,"rank":0,"seconds":1,"wait_seconds":2}', "line 1, key 'wait_seconds'"),
    "a rank beyond reason": ('{"step":1,"rank":99999999,"seconds":1}', "line 1, key 'rank'"),
    "text": ('{"step":"x","rank":0,"seconds":1}', "line 1, key 'step': 'x'"),
    "a stage that changes": (
        '{"step":1,"rank":0,"seconds":1,"stage":0}\n{"step":2,"rank":0,"seconds":1,"stage":1}',
        "line 2, key 'stage'",
    ),
    "infinity": ('{"step":1,"rank":0,"seconds":1e999}', "line 1"),
}


@pytest.mark.parametrize("what", LINES)
def test_error_names_the_place_in_json_lines(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = LINES[what]
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    assert words in refused(capsys, path) or what == "no object"


def table(**changes: object) -> dict[str, object]:
    columns: dict[str, object] = {
        "dp_rank": [0, 1], "stage": [0, 0], "rank": [0, 1], "step": [1, 1],
        "optype": ["forward-compute", "forward-compute"], "start_ts": [0.0, 0.0], "duration": [1.0, 1.0],
    }  # fmt: skip
    return columns | changes


PARQUET = {
    "not a number": (table(duration=[1.0, float("nan")]), "row 2, column 'duration'"),
    "infinity": (table(start_ts=[float("inf"), 0.0]), "row 1, column 'start_ts'"),
    "negative": (table(duration=[1.0, -1.0]), "row 2, column 'duration': a negative duration"),
    "no time at all": (table(duration=[0.0, 0.0]), "column 'duration': the step has no duration"),
    "nothing in a cell": (table(rank=[0, None]), "row 2, column 'rank': the cell is empty"),
    "no whole number": (table(rank=[0.0, 0.5]), "row 2, column 'rank': not a whole number"),
    "out of range": (table(stage=[-1, 0]), "row 1, column 'stage': out of range"),
    "text": (table(step=["a", "b"]), "column 'step'"),
    "one rank in two stages": (table(rank=[0, 0], stage=[0, 1]), "differs for one rank"),
    "a column that is missing": ({"rank": [0]}, "column 'dp_rank' is missing"),
    "no rows": ({name: [] for name in table()}, "the file contains no steps"),
}


@pytest.mark.parametrize("what", PARQUET)
def test_error_names_the_place_in_parquet(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns, words = PARQUET[what]
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    assert words in refused(capsys, path)


def test_missing_files_and_unknown_formats_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(capsys, tmp_path / "absent.csv")
    path = tmp_path / "t.bin"
    for content in (b"\0\0\0\5abcde", b"PAR1 and then nothing", b"\x00" * 64):
        path.write_bytes(content)
        assert str(path) in refused(capsys, path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_random_bytes_do_not_crash(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    for name in (None, *step_traces.FORMATS):
        try:
            judge(step_traces.read(path, name))
        except TraceError as error:
            assert str(path) in str(error)


rows = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(0, 40),
        st.one_of(st.floats(1e-6, 1e6), st.sampled_from([1e-26, 1e30, 1e18])),
        st.one_of(st.none(), st.just(0.0), st.floats(0.001, 1)),
        st.one_of(st.none(), st.integers(0, 10**9)),
    ),
    min_size=1,
    max_size=120,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows)
def test_any_steps_get_a_report(tmp_path: Path, rows: list[tuple[int, int, float, float | None, int | None]]) -> None:
    """Include single ranks and steps, gaps, repeats, any order, and numbers of any size."""
    path = tmp_path / "t.jsonl"
    lines = []
    for rank, step, seconds, wait, tokens in rows:
        line: dict[str, object] = {"rank": rank, "step": step, "seconds": seconds}
        line |= {} if wait is None else {"wait_seconds": wait * seconds}
        line |= {} if tokens is None else {"tokens": tokens}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines))
    (report,) = judge(step_traces.read(path))
    assert len(report.number) == len({row[1] for row in rows})


def steps(ranks: int, count: int, seed: int = 1) -> list[dict[str, object]]:
    random = np.random.default_rng(seed)
    own = 0.3 * random.normal(1.0, 0.01, (count, ranks))
    longest = own.max(axis=1) + 0.1
    return [
        {"rank": r, "step": k, "seconds": float(longest[k]), "wait_seconds": float(longest[k] - own[k, r])}
        for k in range(count)
        for r in range(ranks)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_missing_late_or_duplicate_samples_give_no_straggler(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    lines = [line for line in steps(8, 120, seed) if random.random() > 0.1]
    lines += [lines[index] for index in random.integers(0, len(lines), 60).tolist()]
    random.shuffle(lines)
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = detect(path)
    assert not of_kind(found, "straggler")
    assert not of_kind(found, "interference")
    assert "duplicates" in found["notes"][0]


def test_page_and_terminal_map_are_written(tmp_path: Path) -> None:
    lines = steps(6, 60)
    for line in lines:
        if line["rank"] == 4 and int(str(line["step"])) >= 35:
            line["seconds"] = float(str(line["seconds"])) + 0.3
            line["wait_seconds"] = 0.0
        elif int(str(line["step"])) >= 35:
            line["seconds"] = float(str(line["seconds"])) + 0.3
            line["wait_seconds"] = float(str(line["wait_seconds"])) + 0.3
    path, page = tmp_path / "t.jsonl", tmp_path / "t.html"
    path.write_text("\n".join(map(json.dumps, lines)))
    done = CliRunner().invoke(cli, ["detect", str(path), "--html", str(page)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "straggler: rank 4" in done.stdout
    assert "rank 4 |" in done.stdout
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "<canvas" in text
    assert "Rank 4 of t is a straggler" in text
    assert "60 steps of 6 ranks." in text
    drawn = json.loads(text.partition("draw(0, ")[2].partition(");</script>")[0])
    assert drawn["names"] == [f"rank {rank}" for rank in range(6)]
    assert (drawn["steps"][0], drawn["last"], drawn["accused"]) == (0, 59, [4])
    first, behind, row = drawn["boxes"][0]
    assert (row, behind) == (4, 60)
    assert 30 <= first <= 36
