"""PyTorch's flight recorder: dumps as torch 2.15 writes them, and their place in the report of a blocked rank."""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from gangwatch.reporting import flight_recorder

Dump = Callable[[bool, bool], bytes]


def entry(number: int, **changed: Any) -> dict[str, Any]:
    """Return an entry as _dump_fr_trace_json of torch 2.15 writes it for gloo (recorded: DDP's all_reduce)."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[20]],
        "is_p2p": False,
        "op_id": number,
        "output_dtypes": ["Float"],
        "output_sizes": [[20]],
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "record_id": number - 1,
        "retired": False,
        "state": "scheduled",
        "thread_id": "140416047758208",
        "thread_name": "python",
        "time_created_ns": 1795861137571879940,
        "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0,
        "timeout_ms": 1800000,
        **changed,
    }


def dump(*entries: dict[str, Any], **groups: str) -> dict[str, Any]:
    config = {name: {"name": name, "desc": "", "ranks": ranks} for name, ranks in groups.items()}
    return {
        "comm_lib_version": "",
        "entries": list(entries),
        "nccl_comm_state": {},
        "pg_config": config,
        "version": "2.10",
    }


def install(monkeypatch: pytest.MonkeyPatch, answer: Dump, name: str = "_dump_fr_trace_json") -> None:
    """Let a module stand in for torch's C++ module: the recorder is its lowest level."""
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", types.SimpleNamespace(**{name: answer}))  # type: ignore[arg-type]


def recording(*entries: dict[str, Any], **groups: str) -> Dump:
    return lambda _collectives, _active: json.dumps(dump(*entries, **groups)).encode()


def test_the_oldest_collective_that_has_not_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    done, waited = entry(7, retired=True), entry(9, profiling_name="nccl:all_gather", process_group=["1", "undefined"])
    install(monkeypatch, recording(waited, done, entry(8), entry(10, state="completed"), **{"0": "[0, 1, 2, 5]"}))
    found = {"operation": "all_reduce", "group": "0 (default_pg)", "ranks": "0-2,5", "sequence": 8, "bytes": 80}
    assert flight_recorder.merged(None) == found
    recorded = flight_recorder.in_progress()
    assert recorded is not None
    assert [one["group"] for one in recorded[0]] == ["0 (default_pg)", "1"]
    assert recorded[0][1] == {"operation": "all_gather", "group": "1", "ranks": "", "sequence": 9, "bytes": 80}


def test_a_wait_keeps_its_operation_and_takes_the_recorders_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that wait in Python and ranks that wait in C++ must number the collectives of a group alike."""
    waiting = {"operation": "barrier", "group": "0 (default_pg)", "ranks": "0-1", "sequence": 2}
    install(monkeypatch, recording(entry(41, retired=True), entry(42), entry(43)))
    assert flight_recorder.merged(waiting) == {**waiting, "sequence": 42}
    install(monkeypatch, recording(entry(41, retired=True)))  # it has just ended: the own number would be compared
    assert "sequence" not in (flight_recorder.merged(waiting) or {})
    assert flight_recorder.merged({**waiting, "group": "9"}) == {**waiting, "group": "9"}, "a group without records"


def test_messages_between_two_ranks_are_not_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, recording(entry(3, is_p2p=True, profiling_name="nccl:recv 0<-1")))
    found = flight_recorder.merged(None)
    assert found is not None and found["operation"] == "recv 0<-1" and "sequence" not in found


@pytest.mark.parametrize(
    "answer",
    [
        recording(),
        lambda *_: b"not JSON",
        lambda *_: json.dumps({"entries": [{"record_id": 1}]}).encode(),
        lambda *_: 1 // 0,
    ],
    ids=["off", "no JSON", "another format", "an error"],
)
def test_a_recorder_that_is_off_or_unknown_changes_nothing(answer: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, answer)
    assert flight_recorder.in_progress() is None
    assert flight_recorder.merged({"operation": "barrier"}) == {"operation": "barrier"}
    assert flight_recorder.merged(None) is None


def test_a_dump_that_blocks_does_not_delay_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "DUMP_SECONDS", 0.05)
    install(monkeypatch, lambda *_: time.sleep(0.5) or b"", "_dump_nccl_trace_json")
    assert flight_recorder.merged({"operation": "barrier"}) == {"operation": "barrier"}


def test_a_large_recorder_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, recording(entry(1)))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", str(flight_recorder.MAX_RECORDED + 1))
    assert flight_recorder.in_progress() is None


def test_without_torch_there_is_no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch._C._distributed_c10d", "torch._C"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert flight_recorder.merged(None) is None
