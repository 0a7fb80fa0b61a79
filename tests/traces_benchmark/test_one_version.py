"""Verdicts of all generators together: which ones count, and which count as wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.one_version import figures, main, of_crosscheck, of_traces


def of_rank(rank: int, mark: str, confidence: float = 0.95, kind: str = "straggler") -> dict[str, Any]:
    accuses = kind in ("straggler", "hang", "health")
    return {
        "kind": kind, "cause": "unknown", "ranks": [rank], "confidence": confidence, "mark": mark, "accuses": accuses
    }  # fmt: skip


def row(seed: int, *verdicts: dict[str, Any], name: str = "one-rank") -> dict[str, Any]:
    return {"seed": seed, "truth": {"name": name}, "outcome": {"verdicts": list(verdicts)}}


ROWS = [
    row(1, of_rank(3, "right"), of_rank(3, "right", 0.99), of_rank(4, "right", 0.85)),
    row(2, of_rank(3, "innocent")),
    row(3, of_rank(5, "wrong_kind"), of_rank(5, "right", kind="workload")),
]


def test_repeated_and_uncertain_verdicts_do_not_count_twice() -> None:
    found = figures(list(of_traces(ROWS)))
    assert (found["verdicts"], found["with_repetitions"]) == (4, 5)
    assert found["wrong_rank"]["of"] == "1 of 3"
    assert found["wrong_own_work"]["of"] == "0 of 1"
    assert found["kind_confusion"]["of"] == "1 of 4"
    assert [one[1] for one in found["wrong"]] == [2]
    assert found["classes_with_fewer"] == {"one-rank": 4}


def test_results_of_crosscheck_count_by_the_same_rules() -> None:
    verdict = {"kind": "hang", "cause": "c", "confidence": 0.97, "rank": 2, "ranks": [], "node": "n", "right": False}
    unknown = verdict | {"kind": "unknown", "confidence": 0.0, "right": None}
    rows = [{"seed": 7, "fault": None, "effects": ["mixed", "lost"], "verdicts": [verdict, verdict, unknown]}]
    found = figures(list(of_crosscheck(rows)))
    assert (found["verdicts"], found["wrong_rank"]["of"]) == (1, "1 of 1")
    assert found["classes_with_fewer"] == {"mixed+lost": 1}


def test_a_class_beyond_the_calibration_error_is_listed() -> None:
    rows = [row(seed, of_rank(3, "right" if seed else "innocent", 0.93)) for seed in range(25)]
    rows += [row(seed, of_rank(3, "innocent", 0.93), name="bad") for seed in range(100, 125)]
    found = figures(list(of_traces(rows)))
    assert set(found["classes"]) == {"one-rank", "bad"}
    assert set(found["classes_beyond"]) == {"bad"}


def test_files_may_be_compressed_and_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "r.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in ROWS).encode() + b'{"seed": 4, "tru'))
    assert main(["--traces", str(packed)]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == 4


@pytest.mark.parametrize("arguments", [[], ["--crosscheck", "nowhere.jsonl"]])
def test_missing_files_are_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert ("nowhere.jsonl" if arguments else "at least one") in capsys.readouterr().err
