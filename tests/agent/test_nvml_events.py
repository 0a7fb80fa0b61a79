"""XIDs as the driver tells of them: to a thread that is blocked in the driver, into the ledger, each once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.collectors.gpu.xid import XidLedger
from agent.sources.nvml import nvml_events
from agent.sources.nvml.nvml import Library, find_devices
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
def told() -> list[GpuEvent]:
    return []


@pytest.fixture
def watcher(nvml_library: Path, nvml: FakeNvml, told: list[GpuEvent]) -> Iterator[EventWatcher]:
    library = Library(str(nvml_library))
    made = EventWatcher(library, find_devices(library), told.append, back_off_seconds=0.01)
    made.start()
    yield made
    assert made.stop()
    library.close()


def test_an_xid_reaches_a_waiter_that_is_blocked_in_the_driver(
    nvml_library: Path, nvml: FakeNvml, told: list[GpuEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_events, "WAIT_MILLISECONDS", 60_000)
    library = Library(str(nvml_library))
    watcher = EventWatcher(library, find_devices(library), told.append)
    watcher.start()
    wait_until(lambda: nvml.asked(WAIT), "the thread waits")
    began = time.monotonic()
    nvml.push_xid(3, 79)
    wait_until(lambda: told, "the XID")
    assert time.monotonic() - began < 20, "long before the wait would have ended by itself"
    assert (told[0].device.uuid, told[0].kind, told[0].code) == (uuid(1, 3), "xid", 79)
    assert told[0].gpu_instance is None
    monkeypatch.setattr(nvml_events, "WAIT_MILLISECONDS", 20)
    nvml.push_xid(3, 43)
    wait_until(lambda: len(told) == 2, "the next")
    assert watcher.stop()
    library.close()


def test_every_repeat_is_told(watcher: EventWatcher, nvml: FakeNvml, told: list[GpuEvent]) -> None:
    wait_until(lambda: nvml.asked(WAIT), "the thread waits")
    for _ in range(50):
        nvml.push_xid(0, 31)
    wait_until(lambda: len(told) == 50, "fifty of the same")


def test_a_gpu_without_an_event_is_asked_for_the_others_only(
    nvml_library: Path, nvml: FakeNvml, told: list[GpuEvent]
) -> None:
    """One bit that is not supported would refuse them all: a GeForce knows XIDs and nothing of ECC."""
    nvml.reset("geforce")
    library = Library(str(nvml_library))
    watcher = EventWatcher(library, find_devices(library), told.append)
    watcher.start()
    wait_until(lambda: nvml.asked(WAIT), "the thread waits")
    nvml.push_event(0, 0x2)
    nvml.push_xid(0, 62)
    wait_until(lambda: told, "the XID")
    assert [event.kind for event in told] == ["xid"]
    assert watcher.stop()
    library.close()


def test_a_lost_gpu_has_the_set_made_anew_and_the_others_told_of(
    watcher: EventWatcher, nvml: FakeNvml, told: list[GpuEvent]
) -> None:
    wait_until(lambda: nvml.asked(WAIT), "the thread waits")
    nvml.set_event_code(GPU_IS_LOST)
    nvml.set_gpu_code(0, GPU_IS_LOST)
    wait_until(lambda: nvml.asked("nvmlEventSetCreate") >= 3, "made anew, and again")
    nvml.set_event_code(0)
    made = nvml.asked("nvmlEventSetCreate")
    waits = nvml.asked(WAIT)
    wait_until(lambda: nvml.asked(WAIT) > waits + 1, "it waits again")
    assert nvml.asked("nvmlEventSetCreate") <= made + 1
    nvml.push_xid(5, 48)
    wait_until(lambda: told, "the XID of another GPU")
    assert told[0].device.uuid == uuid(1, 5)


def test_an_error_that_passes_is_survived(watcher: EventWatcher, nvml: FakeNvml, told: list[GpuEvent]) -> None:
    nvml.set_call("nvmlEventSetCreate", UNKNOWN, SYSTEM)
    nvml.set_event_code(UNKNOWN)
    wait_until(lambda: nvml.asked("nvmlEventSetCreate") >= 2, "tried anew")
    nvml.set_call("nvmlEventSetCreate", 0, SYSTEM)
    nvml.set_event_code(0)
    waits = nvml.asked(WAIT)
    wait_until(lambda: nvml.asked(WAIT) > waits + 1, "it waits again")
    nvml.push_xid(1, 94)
    wait_until(lambda: told, "the XID")


def test_a_dead_driver_ends_the_thread_and_marks_the_library(nvml_library: Path, nvml: FakeNvml) -> None:
    library = Library(str(nvml_library))
    watcher = EventWatcher(library, find_devices(library), lambda event: None)
    watcher.start()
    wait_until(lambda: nvml.asked(WAIT), "the thread waits")
    nvml.set_call(WAIT, DRIVER_NOT_LOADED, SYSTEM)
    wait_until(lambda: not watcher.alive, "the thread ends")
    assert library.dead
    library.close()


def test_the_parent_keeps_the_ledger_with_what_the_driver_tells(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        wait_until(lambda: nvml.asked(WAIT), "the thread waits")
        nvml.push_xid(2, 79)
        nvml.push_event(2, 0x2)
        ledger: XidLedger = one.xids
        wait_until(lambda: ledger.newest().counts and ledger.newest().events, "both")
        newest = ledger.newest()
        assert [(gpu, code, count) for gpu, code, count, _ in newest.counts] == [(uuid(1, 2), 79, 1)]
        assert newest.events == ((uuid(1, 2), "double_bit_ecc_error", 1),)
        assert not ledger.add("0000:52:00", 79, newest.counts[0][3], "kernel_log"), "the log tells of the same"


def test_another_process_puts_an_xid_into_a_live_one(nvml_library: Path, tmp_path: Path) -> None:
    """As fault tests and benchmarks do with a running agent: both map one control file."""
    file = tmp_path / "control"
    other = FakeNvml(build(tmp_path), file)
    other.reset("a100")
    program = (
        "import sys, time\n"
        "from agent.sources.nvml.nvml import Library, find_devices\n"
        "from agent.sources.nvml.nvml_events import EventWatcher\n"
        "library, told = Library(sys.argv[1]), []\n"
        "watcher = EventWatcher(library, find_devices(library), told.append)\n"
        "watcher.start()\n"
        "print('ready', flush=True)\n"
        "while not told: time.sleep(0.01)\n"
        "print(told[0].device.uuid, told[0].code, flush=True)\n"
    )
    environment = {**os.environ, "GANGWATCH_FAKE_NVML_CONTROL": str(file)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(nvml_library)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # The thread may not wait yet: it is told of what comes after it has asked.
        deadline = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < deadline
            other.push_xid(1, 48)
            time.sleep(0.05)
        assert process.stdout.readline() == f"{uuid(2, 1)} 48\n"
