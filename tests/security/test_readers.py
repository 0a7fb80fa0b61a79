"""HTTP readers: any number gets responses from a snapshot in fair order, and none delays a scheduling cycle."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.clock import ManualClock
from scheduler_feedback.api.reading import reads as reads_module
from scheduler_feedback.api.reading.listing import Kept, Listing, Reasons
from scheduler_feedback.api.reading.lists import MarkError, Wanted, jobs, mark_text, read_mark
from scheduler_feedback.api.reading.reads import BusyError, Reads
from scheduler_feedback.api.reading.snapshot_reader import SnapshotReader
from scheduler_feedback.api.reading.state_snapshots import PAUSE, Snapshot, Snapshots
from scheduler_feedback.api.subscribers import FullError, Subscribers
from scheduler_feedback.core.events import NodeSeen, Submitted
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.core.state_copy import frozen
from scheduler_feedback.cycle import run
from scheduler_feedback.policies.index.scheduling_index import index_of
from tests.cluster.memory_backend import World
from tests.controller.site import Site, serving

SECOND = 1_000_000_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with serving(tmp_path, World()) as one:
        yield one


def state_of(count: int) -> State:
    state = State()
    run(state, [NodeSeen("n0", 8, (), "m0")], SECOND)
    for number in range(count):
        spec = JobSpec(f"train-{number}", ("true",), 4, user=f"u{number % 3}")
        run(state, [Submitted(f"j-{number:06d}", spec)], 2 * SECOND + number // 4)
    return state


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_frozen_copy_shares_nothing_that_a_cycle_changes() -> None:
    state = state_of(6)
    copy = frozen(state)
    for name in State.__struct_fields__:
        live, kept = getattr(state, name), getattr(copy, name)
        if isinstance(live, dict | list):
            assert live is not kept, name
    assert copy.jobs == state.jobs and copy.nodes == state.nodes
    before = {job_id: (job.state, list(job.ranks)) for job_id, job in copy.jobs.items()}
    for job in state.jobs.values():
        job.state = JobState.CANCELLED
        job.ranks.clear()
    state.nodes["n0"].present = False
    assert {job_id: (job.state, list(job.ranks)) for job_id, job in copy.jobs.items()} == before
    assert copy.nodes["n0"].present


def test_two_copies_share_what_has_not_changed() -> None:
    state = state_of(6)
    first = frozen(state)
    state.jobs["j-000005"].failure = "x"
    second = frozen(state, first)
    shared = [job_id for job_id in state.jobs if first.jobs[job_id] is second.jobs[job_id]]
    assert shared == [job_id for job_id in state.jobs if job_id != "j-000005"]
    assert second.jobs["j-000005"].failure == "x" and first.jobs["j-000005"].failure == ""


def test_a_reader_always_sees_acknowledged_changes() -> None:
    clock, woken = ManualClock(), []
    state = state_of(1)
    snapshots = Snapshots(state, clock, lambda: woken.append(1))
    assert snapshots.fresh().result(0).version == 0
    snapshots.changed()
    waiting = [snapshots.fresh() for _ in range(50)]
    assert not any(one.done() for one in waiting) and len(woken) == 1, "one wake-up serves all readers"
    snapshots.publish(state)
    assert {one.result(0).version for one in waiting} == {1}
    assert snapshots.fresh().result(0).version == 1


def test_until_the_next_snapshot_is_due_only_answered_requests_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    state = state_of(1)
    snapshots = Snapshots(state, clock, lambda: None)

    def slow(state: State, before: State | None = None) -> State:
        clock.advance(0.01)
        return frozen(state, before)

    monkeypatch.setattr("scheduler_feedback.api.reading.state_snapshots.frozen", slow)
    snapshots.changed()
    first = snapshots.fresh()
    snapshots.publish(state)
    assert first.result(0).version == 1
    snapshots.changed()
    assert snapshots.fresh().result(0).version == 1, "the next one is due in a fifth of a second"
    snapshots.changed(answered=True)
    after = snapshots.fresh()
    snapshots.publish(state)
    assert not after.done()
    clock.advance(0.01 * PAUSE)
    snapshots.publish(state)
    assert after.result(0).version == 3
    clock.advance(0.01 * PAUSE)
    snapshots.changed()
    assert not snapshots.fresh().done(), "a newer one may be made now"
    snapshots.close()
    assert snapshots.fresh().done()


def test_snapshots_take_a_twentieth_of_the_cycle_time_with_any_number_of_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    state = state_of(1)
    snapshots = Snapshots(state, clock, lambda: None)
    made = 0

    def slow(state: State, before: State | None = None) -> State:
        nonlocal made
        made += 1
        clock.advance(0.01)
        return frozen(state, before)

    monkeypatch.setattr("scheduler_feedback.api.reading.state_snapshots.frozen", slow)
    for _ in range(1000):
        snapshots.changed()
        snapshots.fresh()
        snapshots.publish(state)
        clock.advance(0.001)
    spent, passed = made * 0.01, clock.monotonic_ns() / 1e9
    assert spent <= passed / (PAUSE * 0.9)


def test_a_reader_gets_a_recent_snapshot_if_the_cycle_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_feedback.api.reading.snapshot_reader.SNAPSHOT_SECONDS", 1e9)
    clock = ManualClock()
    state = state_of(1)
    snapshots = Snapshots(state, clock, lambda: None)  # no snapshot is published while the cycle runs
    reader = SnapshotReader(snapshots)

    async def version() -> int:
        return await reader.ask("a", lambda listing: listing.version)

    snapshots.changed()
    snapshots.publish(state, needed=True)
    clock.advance(0.5)
    snapshots.changed()
    assert asyncio.run(version()) == 1
    clock.advance(0.6)
    assert snapshots.recent() is None, "it is too old"
    snapshots.publish(state, needed=True)
    assert snapshots.recent() is snapshots.newest
    snapshots.changed(answered=True)
    assert snapshots.recent() is None, "the next read must have what was answered"

    async def scene() -> int:
        asked = asyncio.ensure_future(version())
        await asyncio.sleep(0.2)
        assert not asked.done()
        clock.advance(1.0)
        snapshots.publish(state)
        return await asked

    assert asyncio.run(scene()) == 3
    reader.close()


def test_the_index_of_a_replaced_copy_is_freed_without_the_garbage_collector() -> None:
    """A collection of a large cluster's garbage stops all threads."""
    state, reasons = state_of(6), Reasons()
    first = reasons.exactly(frozen(state))
    index = index_of(first)
    second = frozen(state, first)
    reasons.exactly(second)
    assert index_of(first) is not index, "it is built again if a list of the older copy needs it"
    del first, index
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            second = frozen(state, second)
            reasons.exactly(second)
        assert gc.collect() == 0
    finally:
        gc.enable()


# --- rotation between readers -----------------------------------------------------------------------------------------


def test_a_peer_with_large_requests_delays_another_by_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    reads = Reads("documents", rest=0.0)

    def piece(of: str) -> None:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        done.append(of)

    async def scene() -> None:
        greedy = [asyncio.ensure_future(reads.run("greedy", lambda: piece("greedy"))) for _ in range(60)]
        await asyncio.sleep(0.01)
        before = len(done)
        await reads.run("honest", lambda: piece("honest"))
        assert done.index("honest") - before <= 3
        with pytest.raises(BusyError):
            await asyncio.gather(*(reads.run("greedy", lambda: piece("greedy")) for _ in range(80)))
        await asyncio.gather(*greedy)

    asyncio.run(scene())
    reads.close()


def test_the_read_thread_pauses_as_long_as_it_works() -> None:
    reads = Reads("documents")

    def work() -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    async def scene() -> float:
        begun = time.monotonic()
        for _ in range(10):
            await reads.run("a", work)
        return time.monotonic() - begun

    assert asyncio.run(scene()) >= 0.02 * 10 + 0.02 * 9 * reads_module.REST * 0.8
    reads.close()


def test_a_cycle_does_not_wait_for_readers(site: Site) -> None:
    """An endless response may delay other readers, but no cycle and no command."""
    going, ended = threading.Event(), threading.Event()

    def endless(_: object) -> None:
        going.set()
        ended.wait(20)

    async def reader() -> None:
        await site.controller.snapshot_reader.ask("greedy", endless)

    thread = threading.Thread(target=lambda: asyncio.run(reader()))
    thread.start()
    assert going.wait(20)
    begun = time.monotonic()
    for _ in range(5):
        site.post("/api/nodes/n0/release")
    assert site.ask("GET", "/readyz").status == 200
    assert time.monotonic() - begun < 10
    ended.set()
    thread.join()


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_contain_every_item_once_despite_changes() -> None:
    state = state_of(40)
    snapshots = Snapshots(state, ManualClock(), lambda: None)
    kept = Kept()
    seen: list[str] = []
    mark = None
    lister = jobs(Wanted())
    for turn in range(40):
        part = lister(Listing(Snapshot(turn, frozen(state)), kept), mark, 3)
        seen += [one["job"] for one in part.items]
        mark = part.mark
        if mark is None:
            break
        run(state, [Submitted(f"k-{turn:06d}", JobSpec("new", ("true",), 1))], 3 * SECOND + turn)
        if turn == 4:
            del state.jobs[str(mark[1])]  # the last item of the page is deleted
    first = [one for one in seen if one.startswith("j-")]
    assert set(first) == {f"j-{number:06d}" for number in range(40)}
    assert len(first) - len(set(first)) <= 4, "items of the same time may repeat if the last one is gone"
    assert sorted(first) == sorted(first, key=lambda one: one)
    assert snapshots.newest.version == 0


def test_lists_of_the_api_link_to_the_next_page(site: Site) -> None:
    submitted = [site.submit(ranks=2, user=f"u{number % 2}") for number in range(7)]
    for path, key in (("/api/jobs", "job"), ("/api/jobs?user=u1", "job")):
        whole = [one[key] for one in site.get(path)]
        found, following = [], f"{path}{'&' if '?' in path else '?'}limit=2"
        while following:
            answer = site.ask("GET", following)
            assert len(answer.document) <= 2
            found += [one[key] for one in answer.document]
            link = answer.headers.get("link", "")
            following = link.partition("<")[2].partition(">")[0]
        assert found == whole and whole
    assert submitted == [one["job"] for one in site.get("/api/jobs")]
    queue = site.ask("GET", "/api/queue?limit=1").document
    assert len(queue["waiting"]) == 1 and queue["frozen"] is False


@pytest.mark.parametrize("path", ["/api/jobs", "/api/nodes", "/api/verdicts", "/api/queue", "/api/decisions"])
@pytest.mark.parametrize("mark", ["!", "AAAA", "x" * 2000, mark_text(["a", "b", 3, 4]), mark_text([]), "%00", "é"])
def test_an_invalid_page_mark_is_refused_with_its_name(site: Site, path: str, mark: str) -> None:
    from urllib.parse import quote

    answer = site.ask("GET", f"{path}?limit=5&continue={quote(mark)}")
    assert answer.status == 400 and "continue" in answer.error


def test_a_page_mark_is_read_back_unchanged() -> None:
    for mark in ([5], ["a"], [1 << 62, "j-000001.5"], []):
        assert read_mark(mark_text(mark)) == mark
    for wrong in ("W3sif", mark_text([1]) + "=", "[1]"):
        try:
            read_mark(wrong)
        except MarkError:
            pass


def test_a_whole_list_is_built_in_slices_of_one_snapshot(site: Site) -> None:
    for _ in range(3):
        site.submit(array_size=90, ranks=1)
    whole = site.get("/api/jobs")
    assert len(whole) == 270 and len({one["job"] for one in whole}) == 270
    assert len(site.get("/api/queue")["waiting"]) > 200


def test_an_unchanged_response_is_not_sent_again(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    site.world.end(job_id)
    site.wait(job_id, "completed")
    first = site.ask("GET", f"/api/jobs/{job_id}")
    again = site.ask("GET", f"/api/jobs/{job_id}", If_None_Match=first.headers["etag"])
    assert (again.status, again.content) == (304, b"")
    assert site.ask("GET", f"/api/jobs/{job_id}", If_None_Match='"other"').status == 200


# --- streams ----------------------------------------------------------------------------------------------------------


def test_idle_streams_of_one_peer_do_not_lock_others_out() -> None:
    now_s = 0.0
    subscribers = Subscribers(64, 16, clock=lambda: now_s)

    async def scene() -> None:
        nonlocal now_s
        hostile = []
        for _ in range(64):
            try:
                hostile.append(subscribers.open("tenant"))
            except FullError:
                pass
        assert len(hostile) == 16
        honest = [subscribers.open(f"user {number}") for number in range(48)]
        with pytest.raises(FullError):
            subscribers.open("late")
        now_s = 11.0
        late = subscribers.open("late")  # the oldest stream of the peer with the most is closed
        assert hostile[0].ended and not any(one.ended for one in (*hostile[1:], *honest))
        again = subscribers.open("tenant")
        assert hostile[1].ended and not late.ended and not again.ended

    asyncio.run(scene())


def test_recent_entries_are_kept_for_streams(site: Site) -> None:
    subscribers = site.controller.subscribers
    job_id = site.submit()
    site.wait(job_id, "running")
    newest = subscribers.newest
    assert newest == site.controller.store.newest_entry_id()
    recent = subscribers.after(newest - 2)
    assert recent is not None and [one.numbered.entry_id for one in recent] == [newest - 1, newest]
    assert subscribers.after(newest) == []
