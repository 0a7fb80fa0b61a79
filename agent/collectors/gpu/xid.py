"""XIDs (NVIDIA's error codes) from driver events and the kernel log.

Each occurrence has a record with its own number, and counters give the totals. An occurrence that both sources
report is counted once.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agent.collectors.block import Block
from agent.schema.errors import UnsupportedError
from agent.schema.frame import Column, EventRecord, Record
from agent.schema.xid_codes import describe

Origin = Literal["nvml", "kernel_log"]

SAME_OCCURRENCE_NS = 30_000_000_000
"""Maximum time, in ns, between the report of one XID in the kernel log and the driver's report of the same XID. The log
has the exact time. The driver's event arrives when the watcher thread runs. A failing driver was seen to delay this
thread by seconds."""

MOST_RECORDS = 1024
"""Maximum number of XID records kept until the node takes them. The oldest are dropped, which leaves a gap in the
sequence numbers."""

MOST_SERIES = 512
"""Maximum number of (GPU, XID code) pairs with a counter. XIDs of further pairs are dropped and counted. A node has 8
or 16 GPUs, and rarely more than a dozen codes."""


@dataclass(slots=True)
class _Count:
    """Number of occurrences of one XID code on one GPU.

    unconfirmed: for each source (driver or kernel log), times of the occurrences that only this source has reported so
    far, oldest first.
    """

    total: int = 0
    newest_ns: int = 0
    unconfirmed: dict[Origin, deque[int]] = field(
        default_factory=lambda: {"nvml": deque(maxlen=256), "kernel_log": deque(maxlen=256)}
    )


class Snapshot(NamedTuple):
    """Totals of the XID history at one time."""

    changes: int
    """Version number of the totals. It increases when a GPU, code or event occurs for the first time, or when the UUID
    of a GPU becomes known."""
    gpus: tuple[str, ...]
    """UUIDs of all known GPUs, sorted. A GPU whose UUID is not known has its PCI address instead."""
    counts: tuple[tuple[str, int, int, int], ...]
    """XIDs as tuples (GPU, code, number of occurrences, wall time of the newest occurrence in ns), sorted."""
    events: tuple[tuple[str, str, int], ...]
    """Driver events other than XIDs as tuples (GPU, event, number of occurrences), sorted."""


def _function(pci_address: str) -> str:
    """Return the PCI address with a function number. Add '.0' if it is missing, as in the kernel log."""
    address = pci_address.lower()
    return address if "." in address else f"{address}.0"


class XidHistory:
    """All XIDs of this node since the oldest message in the kernel log. Thread-safe.

    GPUs are identified by PCI address in the kernel's form (0000:3b:00.0). The kernel log has no other identifier, and
    the UUID of a GPU that has fallen off the bus cannot be read.

    dropped: number of XIDs and events that have no counter because MOST_SERIES counters exist. news: number that
    increases whenever the result of ``newest`` changes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], _Count] = {}
        self._events: dict[tuple[str, str], int] = {}
        self._uuids: dict[str, str] = {}
        self._records: deque[Record] = deque(maxlen=MOST_RECORDS)
        self._sequence = 0
        self.dropped = 0
        self.news = 0
        self._changes = 0

    def name_gpu(self, gpu_pci_address: str, uuid: str) -> None:
        """Set the UUID of the GPU at the PCI address, for its series and for later records."""
        with self._lock:
            address = _function(gpu_pci_address)
            if self._uuids.get(address) != uuid:
                self._uuids[address] = uuid
                self._changes += 1
                self.news += 1

    def add(self, gpu_pci_address: str, code: int, time_ns: int, origin: Origin, message: str = "") -> bool:
        """Add an XID reported by one source.

        Return True if it is new, False if the other source has already reported it.

        time_ns: wall clock, nanoseconds since the epoch. message: text of the log, for the record. Two reports from the
        same source are two occurrences. Reports from different sources within SAME_OCCURRENCE_NS are one occurrence.
        """
        other: Origin = "kernel_log" if origin == "nvml" else "nvml"
        address = _function(gpu_pci_address)
        with self._lock:
            count = self._counts.get((address, code))
            if count is None:
                if len(self._counts) >= MOST_SERIES:
                    self.dropped += 1
                    return False
                count = self._counts[address, code] = _Count()
                self._changes += 1
            waiting = count.unconfirmed[other]
            while waiting and time_ns - waiting[0] > SAME_OCCURRENCE_NS:
                waiting.popleft()
            if waiting and abs(time_ns - waiting[0]) <= SAME_OCCURRENCE_NS:
                waiting.popleft()
                return False
            mine = count.unconfirmed[origin]
            while mine and time_ns - mine[0] > SAME_OCCURRENCE_NS:
                mine.popleft()  # too old to be reported by the other source
            mine.append(time_ns)
            count.total += 1
            self.news += 1
            count.newest_ns = max(count.newest_ns, time_ns)
            self._sequence += 1
            self._records.append(self._record(address, code, time_ns, origin, message))
            return True

    def note(self, gpu_pci_address: str, event: str, time_ns: int) -> None:
        """Add a driver event other than an XID."""
        address = _function(gpu_pci_address)
        with self._lock:
            if (address, event) not in self._events:
                if len(self._events) >= MOST_SERIES:
                    self.dropped += 1
                    return
                self._changes += 1
            self._events[address, event] = self._events.get((address, event), 0) + 1
            self.news += 1
            uuid = self._uuids.get(address, address)
            self._records.append(EventRecord("gpu", uuid, time_ns, {"event": event, "pci_address": address}))

    def _record(self, address: str, code: int, time_ns: int, origin: Origin, message: str) -> EventRecord:
        known = describe(code)
        detail = {
            "sequence": str(self._sequence),
            "code": str(code),
            "name": known.name,
            "meaning": known.meaning,
            "action": known.action,
            "origin": origin,
            "pci_address": address,
        }
        if message:
            detail["message"] = message
        return EventRecord("xid", self._uuids.get(address, address), time_ns, detail)

    def take_records(self) -> list[Record]:
        """Return the XID records that were added since the last call, oldest first."""
        with self._lock:
            taken = list(self._records)
            self._records.clear()
        return taken

    def newest(self) -> Snapshot:
        """Return the current totals, all from the same time."""
        with self._lock:
            addresses = {*self._uuids, *(address for address, _ in [*self._counts, *self._events])}
            return Snapshot(
                self._changes,
                tuple(sorted(self._uuids.get(address, address) for address in addresses)),
                tuple(
                    sorted(
                        (self._uuids.get(address, address), code, count.total, count.newest_ns)
                        for (address, code), count in self._counts.items()
                    )
                ),
                tuple(
                    sorted(
                        (self._uuids.get(address, address), event, total)
                        for (address, event), total in self._events.items()
                    )
                ),
            )


class XidCollector:
    """Collector that publishes the XID history. It calls no driver, so no driver can block it."""

    name = "xid"
    worker = "host"

    def __init__(self, xids: XidHistory, interval_seconds: float = 1.0, *, driver_present: bool = True) -> None:
        """Raise UnsupportedError if the machine has no NVIDIA driver (driver_present is False)."""
        if not driver_present:
            raise UnsupportedError("xid: no NVIDIA driver on this machine")
        self.interval_seconds = interval_seconds
        self._xids = xids
        self._block = Block()
        self._laid_out = self._shown = -1

    def collect(self) -> Block:
        news = self._xids.news
        if news == self._shown:
            return self._block
        self._shown = news
        newest = self._xids.newest()
        if newest.changes != self._laid_out:
            self._laid_out = newest.changes
            self._block = self._lay_out(newest)
        block = self._block
        totals = dict.fromkeys(newest.gpus, 0)
        for index, (uuid, _, total, newest_ns) in enumerate(newest.counts):
            block.set_gauge(index, newest_ns / 1e9)
            block.set_counter(index, total)
            totals[uuid] += total
        for index, total in enumerate(totals.values(), len(newest.counts)):
            block.set_counter(index, total)
        for index, (_, _, total) in enumerate(newest.events, len(newest.counts) + len(newest.gpus)):
            block.set_counter(index, total)
        return block

    @staticmethod
    def _lay_out(newest: Snapshot) -> Block:
        """Make the block of series that publishes the totals in `newest`.

        Gauges: time of the newest XID by (GPU, code). Counters: XIDs by (GPU, code), XIDs by GPU, driver events by
        (GPU, event).
        """
        labels = [(("code", str(code)), ("gpu", uuid)) for uuid, code, _, _ in newest.counts]
        return Block(
            [Column("gangwatch_gpu_xid_newest_timestamp_seconds", pair) for pair in labels],
            [
                *(Column("gangwatch_gpu_xid_total", pair) for pair in labels),
                *(Column("gangwatch_gpu_xid_events_total", (("gpu", uuid),)) for uuid in newest.gpus),
                *(
                    Column("gangwatch_gpu_driver_events_total", (("event", event), ("gpu", uuid)))
                    for uuid, event, _ in newest.events
                ),
            ],
        )

    def take_records(self) -> list[Record]:
        return self._xids.take_records()

    def close(self) -> None:
        """Do nothing: the collector holds no resources."""
