"""XIDs from driver events: a thread that blocks in the driver receives them, and each is counted once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.collectors.gpu.xid import XidHistory
from agent.sources.nvml import nvml_events
from agent.sources.nvml.nvml import Library
from agent.sources.nvml.nvml_enumeration import find_devices
from agent.sources.nvml.nvml_events import EventWatcher, GpuEvent
from tests.agent.gpus import machine, uuid
from tests.fakes.nvml.build import build
from tests.fakes.nvml.control import DRIVER_NOT_LOADED, GPU_IS_LOST, SYSTEM, UNKNOWN, FakeNvml

WAIT = "nvmlEventSetWait_v2"


def wait_until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@pytest.fixture
def events() -> list[GpuEvent]:
    return []


@pytest.fixture
def watcher(nvml_library: Path, nvml: FakeNvml, events: list[GpuEvent]) -> Iterator[EventWatcher]:
    library = Library(str(nvml_library))
    made = EventWatcher(library, find_devices(library), events.append, back_off_seconds=0.01)
    made.start()
    yield made
    assert made.stop()
    library.close()


def test_an_xid_wakes_a_thread_that_blocks_in_the_driver(
    nvml_library: Path, nvml: FakeNvml, events: list[GpuEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_events, "WAIT_MILLISECONDS", 60_000)
    library = Library(str(nvml_library))
    watcher = EventWatcher(library, find_devices(library), events.append)
    watcher.start()
    wait_until(lambda: nvml.call_count(WAIT), "the thread waits")
    began = time.monotonic()
    nvml.push_xid(3, 79)
    wait_until(lambda: events, "the XID")
    assert time.monotonic() - began < 20, "long before the wait would have timed out"
    assert (events[0].device.uuid, events[0].kind, events[0].code) == (uuid(1, 3), "xid", 79)
    assert events[0].gpu_instance is None
    monkeypatch.setattr(nvml_events, "WAIT_MILLISECONDS", 20)
    nvml.push_xid(3, 43)
    wait_until(lambda: len(events) == 2, "the next XID")
    assert watcher.stop()
    library.close()


def test_every_repeated_xid_is_reported(watcher: EventWatcher, nvml: FakeNvml, events: list[GpuEvent]) -> None:
    wait_until(lambda: nvml.call_count(WAIT), "the thread waits")
    for _ in range(50):
        nvml.push_xid(0, 31)
    wait_until(lambda: len(events) == 50, "fifty equal XIDs")


def test_a_gpu_registers_only_the_events_that_it_supports(
    nvml_library: Path, nvml: FakeNvml, events: list[GpuEvent]
) -> None:
    """An unsupported bit makes the driver reject all events. A GeForce supports XIDs but no ECC events."""
    nvml.reset("geforce")
    library = Library(str(nvml_library))
    watcher = EventWatcher(library, find_devices(library), events.append)
    watcher.start()
    wait_until(lambda: nvml.call_count(WAIT), "the thread waits")
    nvml.push_event(0, 0x2)
    nvml.push_xid(0, 62)
    wait_until(lambda: events, "the XID")
    assert [event.kind for event in events] == ["xid"]
    assert watcher.stop()
    library.close()


def test_the_event_set_is_recreated_without_a_lost_gpu(
    watcher: EventWatcher, nvml: FakeNvml, events: list[GpuEvent]
) -> None:
    wait_until(lambda: nvml.call_count(WAIT), "the thread waits")
    nvml.set_event_code(GPU_IS_LOST)
    nvml.set_gpu_code(0, GPU_IS_LOST)
    wait_until(lambda: nvml.call_count("nvmlEventSetCreate") >= 3, "the event set is created again, repeatedly")
    nvml.set_event_code(0)
    made = nvml.call_count("nvmlEventSetCreate")
    waits = nvml.call_count(WAIT)
    wait_until(lambda: nvml.call_count(WAIT) > waits + 1, "it waits again")
    assert nvml.call_count("nvmlEventSetCreate") <= made + 1
    nvml.push_xid(5, 48)
    wait_until(lambda: events, "the XID of another GPU")
    assert events[0].device.uuid == uuid(1, 5)


def test_the_watcher_survives_a_temporary_error(watcher: EventWatcher, nvml: FakeNvml, events: list[GpuEvent]) -> None:
    nvml.set_call("nvmlEventSetCreate", UNKNOWN, SYSTEM)
    nvml.set_event_code(UNKNOWN)
    wait_until(lambda: nvml.call_count("nvmlEventSetCreate") >= 2, "the event set is created again")
    nvml.set_call("nvmlEventSetCreate", 0, SYSTEM)
    nvml.set_event_code(0)
    waits = nvml.call_count(WAIT)
    wait_until(lambda: nvml.call_count(WAIT) > waits + 1, "it waits again")
    nvml.push_xid(1, 94)
    wait_until(lambda: events, "the XID")


def test_a_dead_driver_ends_the_thread_and_marks_the_library(nvml_library: Path, nvml: FakeNvml) -> None:
    library = Library(str(nvml_library))
    watcher = EventWatcher(library, find_devices(library), lambda event: None)
    watcher.start()
    wait_until(lambda: nvml.call_count(WAIT), "the thread waits")
    nvml.set_call(WAIT, DRIVER_NOT_LOADED, SYSTEM)
    wait_until(lambda: not watcher.alive, "the thread ends")
    assert library.dead
    library.close()


def test_the_parent_adds_driver_events_to_the_history(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        wait_until(lambda: nvml.call_count(WAIT), "the thread waits")
        nvml.push_xid(2, 79)
        nvml.push_event(2, 0x2)
        xids: XidHistory = one.xids
        wait_until(lambda: xids.newest().counts and xids.newest().events, "the XID and the event are counted")
        newest = xids.newest()
        assert [(gpu, code, count) for gpu, code, count, _ in newest.counts] == [(uuid(1, 2), 79, 1)]
        assert newest.events == ((uuid(1, 2), "double_bit_ecc_error", 1),)
        assert not xids.add("0000:52:00", 79, newest.counts[0][3], "kernel_log"), "the log reports the same XID"


def test_another_process_can_inject_an_xid_into_a_running_one(nvml_library: Path, tmp_path: Path) -> None:
    """Fault tests and benchmarks inject XIDs while an agent runs: both processes map one control file."""
    file = tmp_path / "control"
    other = FakeNvml(build(tmp_path), file)
    other.reset("a100")
    program = (
        "import sys, time\n"
        "from agent.sources.nvml.nvml import Library\n"
        "from agent.sources.nvml.nvml_enumeration import find_devices\n"
        "from agent.sources.nvml.nvml_events import EventWatcher\n"
        "library, events = Library(sys.argv[1]), []\n"
        "watcher = EventWatcher(library, find_devices(library), events.append)\n"
        "watcher.start()\n"
        "print('ready', flush=True)\n"
        "while not events: time.sleep(0.01)\n"
        "print(events[0].device.uuid, events[0].code, flush=True)\n"
    )
    environment = {**os.environ, "GANGWATCH_FAKE_NVML_CONTROL": str(file)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(nvml_library)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # The thread may not wait yet; it receives only events that occur after its call began.
        deadline = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < deadline
            other.push_xid(1, 48)
            time.sleep(0.05)
        assert process.stdout.readline() == f"{uuid(2, 1)} 48\n"
