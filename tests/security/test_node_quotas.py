"""Quotas of tenants at a node's agent: each tenant is limited, and other tenants keep their share."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.collectors.steps import step_collector as module
from agent.collectors.steps.claimed_identity import usable_name
from agent.collectors.steps.step_collector import StepCollector
from agent.collectors.steps.step_columns import CHANGES_BURST, OWN_COUNTERS, StepColumns
from agent.rank_attribution import Attribution
from agent.schema.errors import REFUSAL_REASONS, ReporterError
from agent.schema.frame import MAX_RECORDS, Member, StepRecord
from agent.sources.proc.cgroup import user_of_cgroup
from agent.sources.steps import closers, processor_budget, rings, step_connection, step_socket, tenants
from agent.sources.steps.closers import Closer
from agent.sources.steps.step_messages import Claim, Peer, Place
from agent.sources.steps.tenants import Accounts, Allowance, Quotas, Tenant, fair_shares
from benchmarks.attack.node_attackers import answer, connect, lingering_socket, message, ring_file, send
from tests.fakes.processes import ProcTree
from tests.security.hung_fuse import HungFuse

PODS = tuple(f"{number:08x}-aaaa-bbbb-cccc-dddddddddddd" for number in range(1, 9))
GENEROUS = {"registrations_per_second": 1000.0}


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class Bench:
    """Steps collector that finds this process in a control group that the test selects."""

    def __init__(self, folder: Path, **quotas: float) -> None:
        self.path = str(folder / "run" / "n.sock")
        self.tree = ProcTree(folder / "proc")
        self.attribution = Attribution(None, str(self.tree.root))
        self.quotas = Quotas(**{**GENEROUS, **quotas})  # type: ignore[arg-type]
        self.collector = StepCollector(self.path, self.attribution, message_seconds=2.0, quotas=self.quotas)
        self.clients: list[socket.socket] = []
        self.descriptors: list[int] = []
        self.use_cgroup("/")

    def use_cgroup(self, cgroup: str) -> None:
        self.tree.add(os.getpid(), cgroup, start_time=1)

    def use_pod(self, uid: str) -> None:
        self.use_cgroup(f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-{'ab' * 32}.scope")

    def register(self, rank: int, slots: int = rings.MIN_SLOTS, **claim: object) -> str:
        """Register a rank. Return '' or the reason for the refusal. An accepted connection stays open."""
        descriptor = ring_file(slots)
        client = connect(self.path)
        send(client, message(rank=rank, **claim), [descriptor])
        response = answer(client)
        self.clients.append(client)
        self.descriptors.append(descriptor)
        return response

    def leave(self) -> None:
        """Close all connections, and wait until the agent has noticed."""
        for client in self.clients:
            client.close()
        self.clients.clear()
        wait_until(lambda: all(one.closed for one in self.collector._socket.registered()), "connections remain")

    def gangs(self) -> dict[str, int]:
        """Return {gang: number of ranks with published series}."""
        found: dict[str, int] = {}
        for column in self.collector.collect().gauge_columns:
            if column.metric == "gangwatch_rank_step":
                gang = dict(column.labels)["gang"]
                found[gang] = found.get(gang, 0) + 1
        return found

    def refused(self) -> dict[str, int]:
        """Return {reason: refusals}, without zeros."""
        block = self.collector.collect()
        return {
            dict(column.labels)["reason"]: int(value)
            for column, value in zip(block.counter_columns, block.counters, strict=True)
            if column.metric == "gangwatch_step_reporters_refused_total" and value
        }

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.collector.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**quotas: float) -> Bench:
        made.append(Bench(tmp_path, **quotas))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


# --- reporters --------------------------------------------------------------------------------------------------------


def test_a_user_without_a_job_gets_sixteen_reporters_and_an_error_with_the_limit(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    with caplog.at_level(logging.WARNING):
        responses = [bench.register(rank) for rank in range(24)]
        assert responses[:16] == [""] * 16
        for one in responses[16:]:
            assert "has 16 step reporters, the maximum (step_quotas.reporters_per_user)" in one
            assert "ask for a higher limit" in one
        assert bench.refused() == {"quota": 8}
        assert sum(bench.gangs().values()) == 16
    logged = [one.getMessage() for one in caplog.records if "step reporter refused" in one.getMessage()]
    assert len(logged) == 1 and f"tenant=user {os.getuid()} reason=quota" in logged[0]


def test_a_flood_of_unattested_ranks_leaves_slots_for_attested_ones(make: Callable[..., Bench]) -> None:
    bench = make(reporters=10, reporters_unattested=4, reporters_per_user=100, reporters_per_pod=3)
    flood = [bench.register(rank) for rank in range(12)]
    assert flood[:4] == [""] * 4
    assert all("reserved for attested ranks" in one for one in flood[4:])
    bench.use_pod(PODS[0])
    first = [bench.register(rank) for rank in range(4)]
    assert first[:3] == [""] * 3
    assert "pod 00000001-aaaa-bbbb-cccc-dddddddddddd has 3 step reporters" in first[3]
    bench.use_cgroup("/system.slice/slurmstepd.scope/job_12/step_0/user/task_0")
    assert [bench.register(rank) for rank in range(3)] == [""] * 3
    bench.use_pod(PODS[1])
    assert "10 processes report on this node" in bench.register(0)
    assert bench.refused() == {"full": 9, "quota": 1}
    # A rank that disconnects frees its place for any tenant.
    bench.leave()
    bench.collector.collect()
    assert bench.register(0) == ""


def test_steps_of_one_slurm_job_share_its_quota(make: Callable[..., Bench]) -> None:
    bench = make(reporters_per_job=2)
    for step in range(2):
        bench.use_cgroup(f"/system.slice/slurmstepd.scope/job_12/step_{step}/user/task_0")
        assert bench.register(0) == ""
    bench.use_cgroup("/system.slice/slurmstepd.scope/job_12/step_2/user/task_0")
    assert "job slurm-12 has 2 step reporters" in bench.register(0)
    bench.use_cgroup("/system.slice/slurmstepd.scope/job_13/step_0/user/task_0")
    assert bench.register(0) == ""


def test_series_of_a_tenant_are_bounded_although_its_ranks_change(make: Callable[..., Bench]) -> None:
    bench = make(reporters_per_pod=4)
    bench.use_pod(PODS[1])
    assert bench.register(0) == ""
    other = bench.clients.pop()
    bench.use_pod(PODS[0])
    for turn in range(6):
        for rank in range(4):
            assert bench.register(rank, attempt=turn) == ""
        assert bench.gangs()[f"pod-{PODS[0]}"] <= 8
        for client in bench.clients:
            client.close()
        bench.clients.clear()
        wait_until(lambda: sum(one.closed for one in bench.collector._socket.registered()) == 4, "connections remain")
        assert bench.gangs()[f"pod-{PODS[0]}"] <= 8
    assert bench.gangs()[f"pod-{PODS[1]}"] == 1
    other.close()


def test_a_tenants_column_changes_are_rate_limited(make: Callable[..., Bench]) -> None:
    """Each change makes a new layout for every subscriber, and a new exposition."""
    bench = make()
    bench.use_pod(PODS[0])
    bench.register(0)
    (client,) = bench.clients
    blocks = []
    for stage in range(15):
        body = json.dumps({"v": 1, "place": {"stage": stage}}).encode()
        client.sendall(len(body).to_bytes(4, "big") + body)
        (registered,) = bench.collector._socket.registered()
        wait_until(lambda stage=stage, one=registered: one.place.stage == stage, "place not received")  # type: ignore[misc]
        blocks.append(bench.collector.collect())
    assert len({id(block) for block in blocks}) <= CHANGES_BURST
    bench.use_pod(PODS[1])
    assert bench.register(0) == ""
    assert f"pod-{PODS[1]}" in bench.gangs(), "the other tenant is not delayed"


def test_series_over_the_rate_limit_are_published_later() -> None:
    columns, tenant, other = StepColumns(), Tenant("pod", "a"), Tenant("pod", "b")
    for number in range(CHANGES_BURST + 5):
        columns.follow({tenant: [(Member("g", number, 0), Place())]}, 10.0)
    assert columns.members == (Member("g", CHANGES_BURST - 1, 0),)
    wanted = {tenant: [(Member("g", 99, 0), Place(stage=1))], other: [(Member("h", 0, 0), Place())]}
    columns.follow(wanted, 10.0)
    assert columns.members == (Member("g", CHANGES_BURST - 1, 0), Member("h", 0, 0))
    values = (5, (1, 2, None, None, 3, 4))
    block = columns.fill(2, range(OWN_COUNTERS), {Member("h", 0, 0): values})
    assert np.isnan(block.gauges[1]) and block.gauges[2] == 5.0
    assert not block.counters_valid[OWN_COUNTERS : OWN_COUNTERS + 7].any()
    assert block.counters_valid[OWN_COUNTERS + 7 :].tolist() == [True, True, False, False, True, True, False]
    columns.follow(wanted, 15.0)
    assert columns.members == (Member("g", 99, 0), Member("h", 0, 0))
    columns.follow({}, 1000.0)
    columns.follow({}, 2000.0)
    assert columns.members == () and columns._changes == {}


def test_a_refused_reporter_is_not_recorded_as_a_rank(make: Callable[..., Bench]) -> None:
    """The refused process was recorded as the rank before the agent saw that the rank belongs to another process."""
    bench = make()
    bench.use_pod(PODS[0])
    assert bench.register(0) == ""
    before = bench.attribution.ranks()
    assert [(one.pid, one.rank) for one in before] == [(os.getpid(), 0)]
    assert "reported by process" in bench.register(0)
    bench.tree.add(4242, f"/kubepods/pod{PODS[0]}/{'f0' * 32}", start_time=1)
    bench.collector._admit(Peer(4242, os.getuid()), Claim(1, rank=0), 0.0)  # admitted first, refused afterwards
    assert bench.attribution.ranks() == before


def test_the_oldest_processes_registered_as_ranks_are_forgotten_first(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    attribution = Attribution(None, str(tree.root))
    for pid in range(1, 531):
        tree.add(pid)
        attribution.register("pod-x", 0, pid, pid)
    tree.add(9999)
    attribution.register("pod-y", 0, 0, 9999)
    assert len(attribution.ranks()) == 512 + 1


# --- names, rings, rates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "job 7 (retry)", "训练-1", "प्रशिक्षण", "a" * 128, "ns/pod:gpt@v2+x=1"])
def test_common_names_are_accepted(name: str) -> None:
    assert usable_name(name, 128) == name


@pytest.mark.parametrize(
    "name", ["a" * 129, "a\u202eb", "a\u200bb", "a\u2028b", "a\x85b", " a", "a ", 'a"b', "a\\b", "<b>", "a\u00a0b"]
)
def test_deceptive_names_are_refused_with_a_reason(
    name: str, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEST_SECONDS", 0.0)
    bench = make()
    response = bench.register(0, gang=name)
    assert "GANGWATCH_JOB" in response and response.isprintable() and response.isascii()
    assert bench.refused() == {"name": 1}


def test_the_ring_size_is_limited_by_the_tenants_quota(make: Callable[..., Bench]) -> None:
    bench = make(ring_slots_unattested=1024)
    assert "1024 (step_quotas.ring_slots_unattested): use a smaller ring" in bench.register(0, slots=2048)
    assert bench.register(0, slots=1024) == ""
    bench.use_pod(PODS[0])
    assert bench.register(0, slots=65536) == ""
    assert bench.refused() == {"ring": 1}


def test_frequent_registrations_delay_only_their_tenant(make: Callable[..., Bench]) -> None:
    bench = make(reporters_per_pod=2, registrations_per_second=0.01)
    bench.use_pod(PODS[0])
    for turn in range(4):
        assert bench.register(turn) == ""
        bench.leave()
        bench.collector.collect()
    assert "registers more than 0.01 times per second" in bench.register(9)
    assert "try again in " in bench.register(9)
    bench.use_pod(PODS[1])
    assert bench.register(0) == ""
    assert bench.refused() == {"rate": 2}


# --- connections ------------------------------------------------------------------------------------------------------


def test_idle_connections_use_only_their_tenants_share(make: Callable[..., Bench]) -> None:
    bench = make()
    silent = [connect(bench.path) for _ in range(tenants.CONNECTIONS_A_TENANT + 20)]
    assert "unregistered connections, the maximum" in answer(silent[-1])
    bench.use_pod(PODS[0])
    began = time.monotonic()
    assert bench.register(0) == ""
    assert time.monotonic() - began < 1.5, "the agent waited for connections that send nothing"
    wait_until(lambda: bench.refused().get("timeout", 0) >= tenants.CONNECTIONS_A_TENANT, "idle connections stay open")
    bench.use_cgroup("/")
    assert bench.register(0) == ""
    for client in silent:
        client.close()


def test_a_flood_of_connections_is_refused_before_anything_is_read(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "CONNECTING_BURST", 50)
    monkeypatch.setattr(tenants, "CONNECTING_PER_SECOND", 0.1)
    bench = make()
    for _ in range(60):
        connect(bench.path).close()
    client = connect(bench.path)
    assert "opens more than 0.1 connections per second" in answer(client)
    client.close()
    bench.use_pod(PODS[0])
    assert bench.register(0) == ""
    wait_until(lambda: bench.refused().get("rate", 0) >= 11, "the flood was not counted")


def test_partial_messages_with_descriptors_leave_none_open(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.collector.collect()
    before = open_descriptors()
    rings_held = [ring_file() for _ in range(3)]
    for descriptors, refusal in (
        ([rings_held[0]] * 253, "descriptor"),
        ([rings_held[1]], ""),
        (rings_held, "descriptor"),
    ):
        with connect(bench.path) as client:
            send(client, message(rank=0)[:9], descriptors)
            if refusal:
                assert refusal in answer(client)
    for descriptor in rings_held:
        os.close(descriptor)
    wait_until(lambda: open_descriptors() <= before, "descriptors stay open")
    assert bench.register(0) == ""


def test_a_reporter_refused_before_its_first_message_gets_the_reason(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    """The agent closes the connection before the reporter's first message. The reporter must still show the reason."""
    from gangwatch import steps

    bench = make(reporters=2, reporters_unattested=0)
    reporter = steps.Reporter({"GANGWATCH_SOCKET": bench.path})
    try:
        wait_until(lambda: reporter.status.startswith("refused"), reporter.status)
        assert "reserved for attested ranks" in reporter.status
    finally:
        reporter.close()


# --- descriptors whose close blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unread", [False, True], ids=["as the ring", "unread in the queue"])
def test_a_descriptor_whose_close_blocks_delays_no_tenant(unread: bool, make: Callable[..., Bench]) -> None:
    """Close of a TCP socket can block for an hour (SO_LINGER). The step socket's thread used to close it."""
    bench = make()
    own = Closer("test")  # the test's own close may be the last one and block too
    held = []
    for _ in range(5):
        descriptor, ends = lingering_socket()
        held.extend(ends)
        with connect(bench.path) as client:
            if unread:
                send(client, b"\xff\xff\xff\xff", [])
            send(client, message(rank=0), [descriptor])
            own.put(descriptor, Tenant("user", ""))
    bench.use_pod(PODS[0])
    began = time.monotonic()
    assert bench.register(0) == ""
    assert time.monotonic() - began < 2
    wait_until(lambda: not bench.collector._socket._sockets.waiting(), "connections stay open")
    wait_until(lambda: not bench.collector._socket._descriptors.waiting(), "descriptors stay open")
    own.close(30.0)
    for end in held:
        end.close()


def test_a_file_of_a_hung_fuse_server_blocks_only_its_sender(make: Callable[..., Bench], tmp_path: Path) -> None:
    """No signal ends such a close. It would block the step socket's thread until the FUSE server answers."""
    folder = tmp_path / "fuse"
    folder.mkdir()
    with HungFuse(folder) as fuse:
        descriptor = fuse.open()
        bench = make()
        with connect(bench.path) as client:
            send(client, message(rank=0), [descriptor])
            assert "not a memory file" in answer(client)
        assert fuse.flushing.wait(10), "the agent has not closed the file"
        bench.use_pod(PODS[0])
        began = time.monotonic()
        assert bench.register(0) == ""
        assert time.monotonic() - began < 2
        bench.use_cgroup("/")
        own = Tenant("user", str(os.getuid()))
        wait_until(lambda: own in bench.collector._socket._descriptors.stuck_tenants(), "the close is not reported")
        assert "stop that server, and send a memory file" in bench.register(1)
        bench.use_pod(PODS[1])
        assert bench.register(0) == ""
        assert bench.collector.collect() is not None
        fuse.answer()
        wait_until(lambda: not bench.collector._socket._descriptors.has(own), "the tenant stays blocked")
        bench.use_cgroup("/")
        assert bench.register(1) == ""
        os.close(descriptor)


def test_descriptors_of_a_tenant_are_received_one_message_at_a_time(make: Callable[..., Bench], tmp_path: Path) -> None:
    """A message can carry 253 descriptors. Those that cannot be closed must not fill the agent's table."""
    folder = tmp_path / "fuse"
    folder.mkdir()
    with HungFuse(folder) as fuse:
        descriptor = fuse.open()
        bench = make()
        clients = [connect(bench.path) for _ in range(8)]
        wait_until(lambda: len(bench.collector._socket._pending) == len(clients), "connections were not accepted")
        before = open_descriptors()
        for client in clients:
            send(client, message(rank=0), [descriptor] * 200)
        assert fuse.flushing.wait(10)
        responses = [answer(client) for client in clients]
        assert open_descriptors() <= before + 200
        assert sorted("cannot be closed" in one for one in responses) == [False] + [True] * 7
        fuse.answer()
        wait_until(lambda: open_descriptors() <= before, "descriptors stay open")
        for client in clients:
            client.close()
        os.close(descriptor)


def test_an_uninterruptible_close_blocks_only_its_tenants_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a FUSE server that does not answer FLUSH: close returns only when the test allows it."""
    gate, closed = {}, []
    true_close = os.close

    def close(descriptor: int) -> None:
        if descriptor in gate:
            true_read = os.read(gate[descriptor], 1)
            assert true_read == b"x"
        closed.append(descriptor)
        true_close(descriptor)

    closer = Closer("test")
    bad, good = Tenant("user", "1"), Tenant("user", "2")
    wait, release = os.pipe()
    stuck_one, *others = (os.dup(0) for _ in range(4))
    gate[stuck_one] = wait
    monkeypatch.setattr(closers.os, "close", close)
    closer.put(stuck_one, bad)
    closer.put(others[0], bad)
    closer.put(others[1], good)
    until = time.monotonic() + 10
    while others[1] not in closed and time.monotonic() < until:
        closer.look_after()
        time.sleep(0.01)
    assert closed == [others[1]]
    assert closer.stuck_tenants() == {bad} and closer.has(bad) and not closer.has(good)
    assert closer.waiting() == 0
    os.write(release, b"x")
    wait_until(lambda: not closer.has(bad), "the tenant stays blocked")
    assert closed == [others[1], stuck_one, others[0]] and closer.stuck_tenants() == frozenset()
    closer.put(others[2], bad)
    wait_until(lambda: others[2] in closed, "no thread closes descriptors any more")
    closer.close(1.0)
    monkeypatch.undo()
    os.close(wait)
    os.close(release)


def test_a_tenant_with_an_unclosable_descriptor_may_send_no_more(make: Callable[..., Bench]) -> None:
    bench = make()
    socket_closer = bench.collector._socket._descriptors
    socket_closer._stuck_tenants = frozenset({Tenant("user", str(os.getuid()))})
    assert "has sent a descriptor that cannot be closed" in bench.register(0)
    bench.use_pod(PODS[0])
    assert bench.register(0) == ""
    socket_closer._stuck_tenants = frozenset(Tenant("user", str(uid)) for uid in range(100_000, 100_008))
    assert bench.register(1) == ""
    bench.use_cgroup("/")
    assert "try again later" in bench.register(0)
    socket_closer._stuck_tenants = frozenset()
    assert bench.register(0) == ""


# --- processor time ---------------------------------------------------------------------------------------------------


def test_the_socket_pauses_when_its_cpu_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(processor_budget.time, "monotonic", lambda: now[0])
    budget = processor_budget.ProcessorBudget()
    budget.spend(0.09)
    assert not budget.used_up and budget.rest_seconds() == 0.0
    budget.spend(0.02)
    assert budget.used_up
    rest_seconds = budget.rest_seconds()
    assert rest_seconds == pytest.approx((0.01 + processor_budget.SLICE_SECONDS) / processor_budget.BUSY_SHARE)
    now[0] += rest_seconds
    assert budget.rest_seconds() == 0.0 and not budget.used_up
    now[0] += 1000.0
    budget.spend(processor_budget.BUSY_BURST_SECONDS)
    assert budget.used_up, "unused time is saved only up to one burst"


def test_the_tenant_with_the_least_use_is_served_first(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    passes: list[list[str]] = []
    true_attend, true_refuse_late = step_socket.StepSocket._attend, step_socket.StepSocket._refuse_late

    def attend(self: step_socket.StepSocket, connection: step_connection.Connection, now: float) -> bool:
        served.append(connection.tenant.name)
        return true_attend(self, connection, now)

    def show_out(self: step_socket.StepSocket, now: float) -> None:
        passes.append(served[:])
        served.clear()
        true_refuse_late(self, now)

    monkeypatch.setattr(step_socket.StepSocket, "_attend", attend)
    monkeypatch.setattr(step_socket.StepSocket, "_refuse_late", show_out)
    monkeypatch.setattr(processor_budget.ProcessorBudget, "used_up", True)
    bench = make(reporters_per_user=100)
    socket_accounts = bench.collector._socket._accounts
    bench.register(0)
    monkeypatch.setattr(socket_accounts, "settle", lambda now: None)
    socket_accounts.spend(Tenant("user", str(os.getuid())), 100.0, time.monotonic())
    gate = threading.Event()
    monkeypatch.setattr(bench.collector._socket, "_admit", lambda *_: gate.wait(10) and None)
    busy = [connect(bench.path) for _ in range(3)]
    descriptors = [ring_file() for _ in range(4)]
    wait_until(lambda: len(bench.collector._socket._pending) == 3, "connections were not accepted")
    bench.use_pod(PODS[0])
    modest = connect(bench.path)
    wait_until(lambda: len(bench.collector._socket._pending) == 4, "the connection was not accepted")
    passes.clear()
    send(busy[0], message(rank=1), [descriptors[0]])  # occupies the thread until all others are ready
    wait_until(lambda: served, "the connection was not served")
    for client, descriptor in zip((*busy[1:], modest), descriptors[1:], strict=True):
        send(client, message(rank=1), [descriptor])
    gate.set()
    wait_until(lambda: sum(len(one) for one in passes) >= 4, "connections were not served")
    order = [one for one in passes if one][:3]
    assert all(len(one) == 1 for one in order), "one connection per pass"
    assert order[1] == [PODS[0]], "the tenant with little use comes before the busy tenant's other connections"
    for client in (*busy, modest):
        client.close()
    for descriptor in descriptors:
        os.close(descriptor)


# --- records ----------------------------------------------------------------------------------------------------------


def write_steps(descriptor: int, first: int, count: int, slots: int = 16384) -> None:
    """Write steps `first` to `first + count` into the ring, as a reporter does."""
    now_ns = time.monotonic_ns()
    for index in range(first, first + count):
        sequence = index + 1
        record = struct.pack("<QBBHIqqqqqQ", sequence, rings.STEP_ENDED, 1, 0, 0, index, now_ns, 1000, 10, 0, sequence)
        os.pwrite(descriptor, record, rings.HEADER_BYTES + index % slots * rings.SLOT_BYTES)
    os.pwrite(descriptor, struct.pack("<Q", first + count), 16)


def test_a_tenant_that_floods_its_rings_loses_only_its_own_records(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEWEST_RECORDS", 4096)
    monkeypatch.setattr(module, "MOST_RECORDS", 4096)
    bench = make()
    for rank in range(4):
        assert bench.register(rank, slots=16384) == ""
        write_steps(bench.descriptors[-1], 0, 8000)
    bench.use_pod(PODS[0])
    assert bench.register(0, slots=16384) == ""
    honest = 0
    for turn in range(3):
        write_steps(bench.descriptors[-1], 200 * turn, 200)
        bench.collector.collect()
        taken = bench.collector.take_records()
        assert len(taken) <= MAX_RECORDS - module.OTHERS_RECORDS
        honest += sum(isinstance(one, StepRecord) and one.member.gang == f"pod-{PODS[0]}" for one in taken)
    assert honest == 600
    progress = {member.gang: one.steps for member, one in bench.collector._progress.items()}
    assert progress[f"pod-{PODS[0]}"] == 600
    assert 3 * 4096 - 600 - 16 <= sum(one.steps for one in bench.collector._progress.values()) - 600 <= 3 * 4096


def test_rings_of_disconnected_ranks_are_read_once_within_the_budget(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each closed connection used to have its full ring read at once; sixteen of them cost a second of CPU time."""
    monkeypatch.setattr(module, "FEWEST_RECORDS", 2048)
    monkeypatch.setattr(module, "MOST_RECORDS", 2048)
    bench = make()
    for rank in range(3):
        assert bench.register(rank, slots=4096) == ""
        write_steps(bench.descriptors[-1], 0, 4000, slots=4096)
    bench.leave()
    runs = 0
    while bench.collector._socket.registered():
        before = sum(one.steps for one in bench.collector._progress.values())
        bench.collector.collect()
        assert sum(one.steps for one in bench.collector._progress.values()) - before <= 2048
        # The writer continues, and the agent stops reading its ring after a limit.
        for descriptor in bench.descriptors:
            write_steps(descriptor, 4000 + 500 * runs, 500, slots=4096)
        runs += 1
        assert runs < 20
    assert runs >= 5


# --- the accounts alone -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 100_000), max_size=40), st.integers(0, 200_000))
def test_shares_are_fair(wanted: list[int], budget: int) -> None:
    shares = fair_shares(wanted, budget)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) <= budget
    if wanted:
        assert sum(shares) > min(budget, sum(wanted)) - len(wanted)
        for share, want in zip(shares, wanted, strict=True):
            assert share == want or share >= budget // len(wanted)


def test_an_allowance_fills_up_with_time() -> None:
    allowance = Allowance()
    assert [allowance.take(0.0, 2.0, 3.0) for _ in range(3)] == [0.0] * 3
    assert allowance.take(0.0, 2.0, 3.0) == pytest.approx(0.5)
    assert allowance.take(0.5, 2.0, 3.0) == 0.0
    assert allowance.take(1000.0, 2.0, 3.0) == 0.0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["connect", "register", "close", "forget", "drop"]), st.integers(0, 5)), max_size=200
    )
)
def test_any_order_of_events_keeps_the_accounts_consistent(events: list[tuple[str, int]]) -> None:
    quotas = Quotas(reporters=6, reporters_unattested=2, reporters_per_pod=3, reporters_per_job=3, reporters_per_user=2)
    accounts = Accounts(quotas)
    known = [Tenant("pod", "a"), Tenant("pod", "b"), Tenant("job", "c"), *(Tenant("user", str(n)) for n in range(3))]
    connected, open_ones, closed = [0] * 6, [0] * 6, [0] * 6
    for now, (what, which) in enumerate(events):
        tenant = known[which]
        with contextlib.suppress(ReporterError):
            if what == "connect":
                accounts.connect(tenant, now)
                connected[which] += 1
            elif what == "drop" and connected[which]:
                accounts.disconnect(tenant)
                connected[which] -= 1
            elif what == "register":
                accounts.register(tenant, 256, now)
                open_ones[which] += 1
            elif what == "close" and open_ones[which]:
                accounts.close(tenant)
                open_ones[which] -= 1
                closed[which] += 1
            elif what == "forget" and closed[which]:
                accounts.forget(tenant)
                closed[which] -= 1
        assert sum(open_ones) <= 6 and sum(open_ones[3:]) <= 2
        assert all(count <= quotas.reporters_of(one) for one, count in zip(known, open_ones, strict=True))


def connect_all(accounts: Accounts, tenant: Tenant, count: int) -> int:
    """Open `count` connections of the tenant. Return how many are accepted."""
    accepted = 0
    for _ in range(count):
        with contextlib.suppress(ReporterError):
            accounts.connect(tenant, 0.0)
            accepted += 1
    return accepted


def test_waiting_connections_are_bounded_per_tenant_for_unattested_and_in_total() -> None:
    accounts = Accounts(Quotas())
    users = [connect_all(accounts, Tenant("user", str(uid)), 200) for uid in range(5)]
    assert users == [128, 128, 0, 0, 0]
    pods = [connect_all(accounts, Tenant("pod", str(number)), 200) for number in range(5)]
    assert pods == [128, 128, 0, 0, 0] and sum(users + pods) == tenants.CONNECTIONS
    accounts.disconnect(Tenant("pod", "0"))
    with pytest.raises(ReporterError, match=r"unattested processes have .* unregistered"):
        accounts.connect(Tenant("user", "7"), 0.0)
    accounts.connect(Tenant("job", "a"), 0.0)


def test_unread_rings_count_toward_their_tenants_quota() -> None:
    """Otherwise a tenant that registers and disconnects repeatedly could fill the agent's table of files."""
    accounts, tenant = Accounts(Quotas(reporters_per_pod=3, registrations_per_second=1000)), Tenant("pod", "a")
    for _ in range(3):
        accounts.register(tenant, 256, 0.0)
        accounts.close(tenant)
    with pytest.raises(ReporterError, match="the maximum"):
        accounts.register(tenant, 256, 1.0)
    accounts.forget(tenant)
    accounts.register(tenant, 256, 2.0)


def test_tenants_without_connections_are_forgotten() -> None:
    accounts = Accounts(Quotas())
    for uid in range(1000):
        accounts.connect(Tenant("user", str(uid)), 0.0)
        accounts.disconnect(Tenant("user", str(uid)))
    accounts.register(Tenant("pod", "a"), 256, 0.0)
    accounts.settle(100.0)
    assert len(accounts) == 1


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n", 1000),
        ("0::/../../user.slice/user-7.slice/session-2.scope\n", 7),
        ("8:pids:/user.slice\n1:name=systemd:/user.slice/user-5.slice/session-1.scope\n", 5),
        ("0::/system.slice/sshd.service/user.slice/user-5.slice\n", None),
        ("0::/user.slice/user-5.slicex/y\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_subordinate_ids_count_as_the_owner_of_the_session(text: str, user: int | None, tmp_path: Path) -> None:
    assert user_of_cgroup(text) == user


def test_every_refusal_reason_has_a_series_from_the_start(make: Callable[..., Bench]) -> None:
    block = make().collector.collect()
    reasons = [
        dict(column.labels)["reason"]
        for index, column in enumerate(block.counter_columns)
        if column.metric == "gangwatch_step_reporters_refused_total" and np.all(block.counters_valid[index])
    ]
    assert tuple(reasons) == REFUSAL_REASONS


def test_refusals_of_a_tenant_do_not_displace_another_tenants(make: Callable[..., Bench]) -> None:
    bench = make()
    for _ in range(40):
        bench.use_cgroup("/")
        with connect(bench.path) as client:
            send(client, b"\xff\xff\xff\xff", [])
            answer(client)
    bench.use_pod(PODS[0])
    with connect(bench.path) as client:
        body = json.dumps({"v": 1, "gang": f"pod-{PODS[1]}", "rank": 0}).encode()
        send(
            client, len(body).to_bytes(4, "big") + body, [bench.descriptors[0]] if bench.descriptors else [ring_file()]
        )
        assert "claims gang pod-" in answer(client)
    reported = list(bench.collector._socket.refusals)
    assert len(reported) == 8 + 1 and reported[-1].label == "identity"
    assert bench.refused() == {"malformed": 40, "identity": 1}
