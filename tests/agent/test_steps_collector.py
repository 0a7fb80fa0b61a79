"""Collector of steps: identity of the reporting processes, and processing of their records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.collectors.block import Block, Collector, RecordSource
from agent.collectors.steps import step_collector as module
from agent.collectors.steps.claimed_identity import judge
from agent.collectors.steps.rank_progress import MAX_OPEN_COLLECTIVES, MAX_STEPS_IN_FLIGHT, Progress
from agent.collectors.steps.step_collector import StepCollector
from agent.rank_attribution import Attribution, Identity
from agent.schema.catalog import BY_NAME
from agent.schema.clock import SystemClock
from agent.schema.errors import ReporterError, SourceError
from agent.schema.frame import MAX_RECORDS, Column, EventRecord, Member, OpenRecord, Record, StepRecord
from agent.sources.proc.proc import read_process_stat
from agent.sources.steps import rings
from agent.sources.steps.rings import RingRecord
from agent.sources.steps.step_messages import Claim, Peer
from agent.sources.steps.tenants import Tenant
from gangwatch import steps
from tests.fakes.processes import ProcTree

SELF = Member("j-000001", 2, 3)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def write_rank_file(folder: Path, member: Member = SELF, pid: int | None = None) -> None:
    stat = read_process_stat("/proc", os.getpid() if pid is None else pid)
    assert stat is not None
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "gang": member.gang,
        "attempt": member.attempt,
        "rank": member.rank,
        "pid": stat.pid,
        "start_time": stat.start_time,
        "slot": "s0",
        "shim_pid": 1,
        "shim_start_time": 1,
    }
    (folder / f"{member.gang}.{member.attempt}.{member.rank}.json").write_text(json.dumps(content))


class OffsetClock(SystemClock):
    """System clock plus an offset that the test sets. Records written earlier keep their timestamps."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


class Bench:
    """Steps collector with a folder of rank files, and step reporters in this process."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "run" / "n.sock")
        self.ranks = folder / "ranks" / "node-a"
        self.clock = OffsetClock()
        self.collector = StepCollector(self.path, Attribution(str(self.ranks)), clock=self.clock)
        self.reporters: list[steps.Reporter] = []

    def reporter(self, **environment: str) -> steps.Reporter:
        made = steps.Reporter({"GANGWATCH_SOCKET": self.path, **environment})
        self.reporters.append(made)
        wait_until(lambda: made.status == "registered" or made.status.startswith("refused"), made.status)
        return made

    def value(self, metric: str, member: Member | None = SELF) -> float | int | None:
        """Return the newest value of a series; None if it is absent."""
        return value(self.collector._columns.block, metric, member)

    def close(self) -> None:
        for reporter in self.reporters:
            reporter.close()
        self.collector.close()


def value(block: Block, metric: str, member: Member | None) -> float | int | None:
    labels = (
        () if member is None else (("attempt", str(member.attempt)), ("gang", member.gang), ("rank", str(member.rank)))
    )
    for index, column in enumerate(block.gauge_columns):
        if (column.metric, column.labels) == (metric, labels):
            return None if np.isnan(block.gauges[index]) else float(block.gauges[index])
    for index, column in enumerate(block.counter_columns):
        if (column.metric, column.labels) == (metric, labels):
            return int(block.counters[index]) if block.counters_valid[index] else None
    raise AssertionError(f"no series {metric} {labels}")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def finished(records: list[Record]) -> list[StepRecord]:
    return [record for record in records if isinstance(record, StepRecord)]


def test_it_is_a_collector_with_records(bench: Bench) -> None:
    collector: Collector = bench.collector
    assert isinstance(collector, RecordSource)
    assert (collector.name, collector.interval_seconds) == ("steps", 0.5)
    block = collector.collect()
    assert collector.collect() is block


def test_every_column_is_in_the_catalogue_with_its_labels(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    bench.reporter()
    block = bench.collector.collect()
    for kind, columns in (("gauge", block.gauge_columns), ("counter", block.counter_columns)):
        for column in columns:
            metric = BY_NAME[column.metric]
            assert metric.kind == kind
            assert metric.labels == tuple(name for name, _ in column.labels)


def test_steps_of_an_attested_rank(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter(GANGWATCH_JOB="j-000001", RANK="3", GANGWATCH_ATTEMPT="2")
    with reporter.step(tokens=5, squares=13), reporter.wait():
        pass
    reporter.report(1, 0.0005, wait_seconds=0.0001, tokens=6)
    bench.collector.collect()
    first, second = finished(bench.collector.take_records())
    assert (first.member, first.step, first.tokens, first.collectives) == (SELF, 0, 5, 1)
    assert (first.squares, second.squares) == (13, None)
    assert (second.step, second.duration_ns, second.wait_ns, second.collectives) == (1, 500_000, 100_000, 0)
    assert first.wait_ns is not None
    assert bench.value("gangwatch_rank_steps_total") == 2
    assert bench.value("gangwatch_rank_step_seconds_total") == first.duration_ns + 500_000
    assert bench.value("gangwatch_rank_wait_seconds_total") == first.wait_ns + 100_000
    assert bench.value("gangwatch_rank_tokens_total") == 11
    assert bench.value("gangwatch_rank_collectives_entered_total") == 1
    assert bench.value("gangwatch_rank_collectives_left_total") == 1
    assert bench.value("gangwatch_rank_step") == 0
    assert bench.value("gangwatch_step_reporters", None) == 1
    assert bench.collector.take_records() == []


def test_the_place_of_a_rank_is_a_series_of_that_rank_only(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter(GANGWATCH_PIPELINE_STAGE="1", GANGWATCH_DATA_RANK="4")
    own = (("attempt", "2"), ("data", "4"), ("expert", ""), ("gang", "j-000001"), ("rank", "3"), ("stage", "1"))

    def places() -> list[tuple[tuple[str, str], ...]]:
        block = bench.collector.collect()
        return [
            column.labels
            for column, value in zip(block.gauge_columns, block.gauges.tolist(), strict=True)
            if column.metric == "gangwatch_rank_place_info" and value == 1.0
        ]

    assert places() == [(*own, ("tensor", ""))]
    block = bench.collector.collect()
    assert bench.collector.collect() is block, "an unchanged place makes no new layout"
    reporter.place(data=4, stage=1, tensor=0)
    wait_until(lambda: places() == [(*own, ("tensor", "0"))], "the later place is not reported")
    assert BY_NAME["gangwatch_rank_place_info"].labels == tuple(name for name, _ in places()[0])


def test_an_unknown_wait_has_no_value(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter()
    with reporter.step():
        pass
    bench.collector.collect()
    assert bench.value("gangwatch_rank_steps_total") == 1
    assert bench.value("gangwatch_rank_wait_seconds_total") is None
    assert bench.value("gangwatch_rank_tokens_total") is None
    (record,) = finished(bench.collector.take_records())
    assert (record.wait_ns, record.tokens) == (None, None)


def test_a_hanging_rank_is_visible_during_the_hang(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter()
    with reporter.step(number=7) as step, reporter.wait():
        for _ in range(3):
            bench.collector.collect()
            bench.collector.collect()
            inside = bench.collector.take_records()
            assert [(record.what, record.number) for record in inside if isinstance(record, OpenRecord)] == [
                ("step", step.number),
                ("collective", 0),
            ]
            assert len(inside) == 2
        # A stuck collector publishes nothing, instead of repeating old values.
        assert bench.collector.take_records() == []
    bench.collector.collect()
    assert [type(record) for record in bench.collector.take_records()] == [StepRecord]


def test_a_restarted_agent_detects_a_hang_and_counts_no_step_twice(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter()
    with reporter.step():
        pass
    with reporter.step(), reporter.wait():
        bench.collector.collect()
        assert len(finished(bench.collector.take_records())) == 1
        bench.collector.close()
        bench.collector = StepCollector(bench.path, Attribution(str(bench.ranks)))
        wait_until(bench.collector._socket.registered, "the reporter does not reconnect")
        bench.collector.collect()
        records = bench.collector.take_records()
        assert [record.what for record in records if isinstance(record, OpenRecord)] == ["step", "collective"]
        assert finished(records) == []
        assert bench.value("gangwatch_rank_steps_total") == 0
    bench.collector.collect()
    (record,) = finished(bench.collector.take_records())
    assert (record.step, record.collectives) == (1, 1)


def test_the_last_steps_of_an_ended_rank_are_read_and_its_columns_removed(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter()
    begun = bench.collector.collect()
    with reporter.step():
        pass
    reporter.begin()
    reporter.close()
    (registered,) = bench.collector._socket.registered()
    wait_until(lambda: registered.closed, "the connection does not end")
    assert bench.collector.collect() is begun
    records = bench.collector.take_records()
    assert len(finished(records)) == 1
    assert len(records) == 1, "an ended rank is in no phase"
    assert bench.value("gangwatch_rank_steps_total") == 1
    assert bench.value("gangwatch_step_reporters", None) == 0
    assert bench.collector._socket.registered() == []
    bench.clock.ahead_ns += module.LINGER_NS
    assert bench.collector.collect() is not begun
    with pytest.raises(AssertionError):
        bench.value("gangwatch_rank_steps_total")


def test_a_claim_that_contradicts_the_evidence_gives_one_record(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    for _ in range(2):
        reporter = bench.reporter(GANGWATCH_JOB="j-000001", RANK="4")
        assert reporter.status == "refused: claims rank 4 of j-000001, but is rank 3"
    block = bench.collector.collect()
    (event,) = bench.collector.take_records()
    assert isinstance(event, EventRecord)
    assert (event.kind, event.entity) == ("reporter-refused", f"process {os.getpid()}")
    assert event.detail["reason"] == "claims rank 4 of j-000001, but is rank 3"
    (refused,) = (
        int(block.counters[index])
        for index, column in enumerate(block.counter_columns)
        if column == Column("gangwatch_step_reporters_refused_total", (("reason", "identity"),))
    )
    assert refused >= 2, "each attempt counts"
    assert value(block, "gangwatch_step_reporters", None) == 0


def test_a_process_of_another_node_is_rejected(bench: Bench, tmp_path: Path) -> None:
    write_rank_file(tmp_path / "ranks" / "node-b")
    reporter = bench.reporter(GANGWATCH_JOB="j-000001", RANK="3")
    assert reporter.status == f"refused: process {os.getpid()} belongs to node node-b"


def test_a_rank_that_registers_before_its_rank_file_exists_gets_its_name(bench: Bench) -> None:
    reporter = steps.Reporter({"GANGWATCH_SOCKET": bench.path, "GANGWATCH_JOB": "j-000001", "RANK": "3"})
    bench.reporters.append(reporter)
    time.sleep(0.3)
    assert bench.collector._socket.registered() == []
    write_rank_file(bench.ranks)
    wait_until(lambda: reporter.status == "registered", reporter.status)
    (registered,) = bench.collector._socket.registered()
    assert registered.member == SELF


def test_a_process_without_evidence_reports_under_a_separate_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEST_SECONDS", 0.2)
    bench.reporter(GANGWATCH_JOB="j-000001", RANK="3")
    bench.reporter()
    claimed, nameless = (registered.member for registered in bench.collector._socket.registered())
    assert claimed == Member(f"uid-{os.getuid()}/j-000001", 0, 3)
    assert nameless == Member(f"uid-{os.getuid()}/{os.getpid()}", 0, 0)


def test_a_second_agent_on_the_same_socket_fails(bench: Bench) -> None:
    with pytest.raises(SourceError, match="another agent"):
        StepCollector(bench.path, Attribution(None))


@pytest.mark.parametrize(
    ("claim", "identity", "expected"),
    [
        (Claim(1), Identity("j-1", 2, 3, "local"), Member("j-1", 2, 3)),
        (Claim(1, rank=5), Identity("j-1", 2, None, "local"), Member("j-1", 2, 5)),
        (Claim(1, gang="12", rank=5), Identity("slurm-12.0", None, None, "slurm"), Member("slurm-12.0", 0, 5)),
        (
            Claim(1, gang="x", rank=5, attempt=4),
            Identity("slurm-12.0", None, None, "slurm"),
            Member("slurm-12.0", 4, 5),
        ),
        (Claim(1, gang="x", rank=0), Identity("pod-u", None, None, "kubernetes"), Member("pod-u", 0, 0)),
        (Claim(1, gang="j-2"), Identity("j-1", 2, 3, "local"), "claims gang j-2, but belongs to j-1"),
        (Claim(1, attempt=1), Identity("j-1", 2, 3, "local"), "claims attempt 1 of j-1, but is attempt 2"),
        (Claim(1, gang="13", rank=1), Identity("slurm-12.0", None, None, "slurm"), "claims gang 13"),
        (Claim(1, gang="1", rank=1), Identity("slurm-12.0", None, None, "slurm"), "claims gang 1,"),
        (Claim(1), Identity("j-1", 2, None, "local"), "its rank is unknown"),
        (Claim(1, gang="pod-u", rank=0), Identity("pod-u", None, None, "kubernetes"), Member("pod-u", 0, 0)),
        (Claim(1, gang="pod-v", rank=0), Identity("pod-u", None, None, "kubernetes"), "claims gang pod-v"),
        (Claim(1, gang="slurm-12", rank=0), Identity("pod-u", None, None, "kubernetes"), "claims gang slurm-12"),
        (Claim(1, gang="slurm-13.0", rank=0), Identity("slurm-12.0", None, None, "slurm"), "claims gang slurm-13.0"),
        (Claim(1, gang="pod-u", rank=0), Identity("slurm-12.0", None, None, "slurm"), "claims gang pod-u"),
    ],
)
def test_evidence_overrides_claims(claim: Claim, identity: Identity, expected: Member | str) -> None:
    if isinstance(expected, Member):
        assert judge(claim, identity) == expected
    else:
        with pytest.raises(ReporterError, match=expected):
            judge(claim, identity)


# --- forging ---------------------------------------------------------------------------------------------------------

POD = "0123abcd-4567-89ef-0123-456789abcdef"
VICTIM = "0123abcd-4567-89ef-0123-000000000000"


@pytest.mark.parametrize(
    ("cgroup", "environment", "outcome"),
    [
        (f"/kubepods/pod{POD}/{'f0' * 32}", {"GANGWATCH_JOB": "mine", "RANK": "1"}, Member(f"pod-{POD}", 0, 1)),
        (f"/kubepods/pod{POD}/{'f0' * 32}", {"GANGWATCH_JOB": f"pod-{VICTIM}", "RANK": "1"}, "claims gang pod-"),
        (f"/kubepods/pod{POD}/{'f0' * 32}", {"GANGWATCH_JOB": "slurm-871.0", "RANK": "1"}, "claims gang slurm-871.0"),
        # The name of another pod or job, as a nested control group that the user made.
        (
            f"/kubepods/pod{POD}/{'f0' * 32}/kubepods/pod{VICTIM}/{'0f' * 32}",
            {"GANGWATCH_JOB": f"pod-{VICTIM}", "RANK": "1"},
            "claims gang pod-",
        ),
        (
            "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0/slurmstepd.scope/job_871/step_0",
            {"SLURM_JOB_ID": "871", "SLURM_PROCID": "0"},
            "claims gang 871",
        ),
        (
            "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
            {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"},
            Member("slurm-12.0", 1, 0),
        ),
        # Below a user's systemd manager there is no evidence: the process reports under a name that no job can have.
        (
            "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_871/step_0/user/task_0",
            {"SLURM_JOB_ID": "871", "SLURM_PROCID": "0"},
            Member(f"uid-{os.getuid()}/871", 0, 0),
        ),
    ],
)
def test_no_process_reports_as_another_pod_or_job(
    tmp_path: Path, cgroup: str, environment: dict[str, str], outcome: Member | str
) -> None:
    """A real process uses the real socket. Only its control group is simulated."""
    tree = ProcTree(tmp_path / "proc")
    tree.add(os.getpid(), cgroup, start_time=1)
    path = str(tmp_path / "run" / "n.sock")
    collector = StepCollector(path, Attribution(None, str(tree.root)))
    reporter = steps.Reporter({"GANGWATCH_SOCKET": path, **environment})
    try:
        wait_until(lambda: reporter.status == "registered" or reporter.status.startswith("refused"), "no response")
        members = [registered.member for registered in collector._socket.registered()]
        if isinstance(outcome, Member):
            assert members == [outcome]
        else:
            assert outcome in reporter.status and members == []
    finally:
        reporter.close()
        collector.close()


def test_a_reused_pid_of_a_connected_process_is_not_trusted(bench: Bench) -> None:
    """A process connects, passes the connection to its child and exits. Then another rank's process gets its pid."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        write_rank_file(bench.ranks, pid=victim.pid)
        peer, claim = Peer(victim.pid, os.getuid()), Claim(1, gang="j-000001", rank=3)
        assert bench.collector._admit(peer, claim, 0.0) == (SELF, Tenant("job", "j-000001")), (
            "the victim could have connected itself by now"
        )
        with pytest.raises(ReporterError, match="started after the connection"):
            bench.collector._admit(peer, claim, 3600.0)
        victim.communicate(b"\n")


# --- folding ---------------------------------------------------------------------------------------------------------


def record(kind: int, number: int, time_ns: int, duration_ns: int = 0, **fields: object) -> RingRecord:
    values: dict[str, object] = {"wait_ns": None, "tokens": None, "abandoned": False} | fields
    return RingRecord(kind, number, time_ns, duration_ns, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("delay_ns", "start_ns", "whole_ns", "waited_ns"), [(30, 870, 130, 50), (2000, 0, 1000, 920)])
def test_the_wait_for_a_time_shift_is_part_of_the_step_and_of_its_wait(
    delay_ns: int, start_ns: int, whole_ns: int, waited_ns: int
) -> None:
    """A step from 900 to 1000 ns, 20 of them waiting. No step begins before the boot, whatever a reporter writes."""
    progress = Progress(SELF, 0)
    progress.fold(record(rings.STEP_BEGUN, 1, 900, delay_ns))
    ended = progress.fold(record(rings.STEP_ENDED, 1, 1000, 100, wait_ns=20))
    assert ended is not None
    assert (ended.start_ns, ended.duration_ns, ended.wait_ns) == (start_ns, whole_ns, waited_ns)
    assert progress.shift_ns == whole_ns - 100


def test_a_step_reported_after_the_start_of_the_next_is_counted() -> None:
    progress = Progress(SELF, 0)
    progress.fold(record(rings.STEP_BEGUN, 1, 100))
    progress.fold(record(rings.COLLECTIVE_ENTERED, 0, 110))
    progress.fold(record(rings.STEP_BEGUN, 2, 200))
    progress.fold(record(rings.COLLECTIVE_ENTERED, 1, 210))
    step = progress.fold(record(rings.STEP_ENDED, 1, 200, 100))
    assert step is not None and (step.start_ns, step.collectives) == (100, 1)
    assert progress.inside() == [OpenRecord(SELF, "step", 2, 200), OpenRecord(SELF, "collective", 0, 110)]
    assert progress.newest_step == 2


def test_an_abandoned_step_has_ended_and_is_not_counted() -> None:
    progress = Progress(SELF, 0)
    progress.fold(record(rings.STEP_BEGUN, 1, 100))
    assert progress.fold(record(rings.STEP_ENDED, 1, 150, 50, abandoned=True)) is None
    assert (progress.inside(), progress.steps) == ([], 0)


def test_totals_wrap_instead_of_overflowing() -> None:
    progress = Progress(SELF, 0)
    for number in range(3):
        progress.fold(record(rings.STEP_ENDED, number, 2**63 - 1, 2**63 - 1, wait_ns=2**63 - 1))
    assert progress.totals()[:3] == (3, (3 * (2**63 - 1)) % 2**64, (3 * (2**63 - 1)) % 2**64)


def test_the_number_of_unfinished_steps_is_limited() -> None:
    progress = Progress(SELF, 0)
    for number in range(1000):
        progress.fold(record(rings.STEP_BEGUN, number, 100 + number))
        progress.fold(record(rings.COLLECTIVE_ENTERED, number, 100 + number))
    assert len(progress._open_collectives) == MAX_OPEN_COLLECTIVES
    assert len(progress._entered_in) == MAX_STEPS_IN_FLIGHT


def test_unread_records_are_limited_and_counted_as_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter()
    most = MAX_RECORDS - module.OTHERS_RECORDS
    for _ in range(3):
        for number in range(4000):
            reporter.report(number, 1e-6)
        bench.collector.collect()
    bench.collector.collect()
    assert bench.value("gangwatch_step_records_lost_total", None) == 3 * 4000 - most
    assert bench.value("gangwatch_rank_steps_total") == 12000
    assert len(bench.collector.take_records()) == most


def test_garbage_in_a_ring_is_counted_and_later_steps_are_read(bench: Bench) -> None:
    write_rank_file(bench.ranks)
    reporter = bench.reporter()
    assert reporter._ring is not None
    reporter.report(1, 0.001)
    for at in range(100):
        reporter._write(at, 255, -at, 2**62, -1, -1, -1)
    reporter.report(2, 0.001)
    bench.collector.collect()
    assert [step.step for step in finished(bench.collector.take_records())] == [1, 2]
    assert bench.value("gangwatch_step_records_malformed_total", None) == 100
    reporter._ring[64:] = os.urandom(len(reporter._ring) - 64)
    bench.collector.collect()
    reporter.report(3, 0.001)
    bench.collector.collect()
    assert [step.step for step in finished(bench.collector.take_records())] == [3]
