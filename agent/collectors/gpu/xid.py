"""XIDs, told by the driver's events and by the kernel's log: counted once, dated, and kept as records.

A gauge of the newest XID alone is sticky: it says neither when nor how often. Here each occurrence is a record with a
number of its own, and the counters say how many there were; the same occurrence told by both sources counts once.
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
"""Both sources tell of one occurrence within this time: the log's stamp is the instant itself, the event arrives when
the watching thread gets to run, which a driver under distress has been seen to put off for seconds."""

MOST_RECORDS = 1024
"""Records kept until the node takes them; a storm loses the oldest, and their sequence numbers show that."""

MOST_SERIES = 512
"""Most (GPU, code) pairs counted apart; a node has 8 or 16 GPUs and a bad day a dozen codes."""


@dataclass(slots=True)
class _Count:
    """One code on one GPU. untold: for each source the times that the other has not confirmed yet, oldest first."""

    total: int = 0
    newest_ns: int = 0
    untold: dict[Origin, deque[int]] = field(
        default_factory=lambda: {"nvml": deque(maxlen=256), "kernel_log": deque(maxlen=256)}
    )


class Snapshot(NamedTuple):
    """What a ledger holds. changes: rises whenever a GPU, a code or an event is new, or a GPU gets its UUID.

    gpus: UUIDs, addresses where none is known, of all GPUs named or told of, sorted.
    counts: (GPU, code, occurrences, newest wall time in ns), sorted. events: (GPU, event, occurrences), sorted.
    """

    changes: int
    gpus: tuple[str, ...]
    counts: tuple[tuple[str, int, int, int], ...]
    events: tuple[tuple[str, str, int], ...]


def _function(pci_address: str) -> str:
    """The address of the GPU's function 0: the kernel log leaves '.0' away."""
    address = pci_address.lower()
    return address if "." in address else f"{address}.0"


class XidLedger:
    """All XIDs of this node since the agent's start, or as far back as the kernel's log reaches.

    May be used from several threads. GPUs are known by their PCI address, as the kernel writes it (0000:3b:00.0); the
    kernel's log names no other, and a GPU that has fallen off the bus cannot be asked its UUID any more.

    dropped: XIDs and events that found no room. news: rises with everything that changes what ``newest`` gives.
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
        """Say which GPU is at the address; from then on its series and records carry the UUID."""
        with self._lock:
            address = _function(gpu_pci_address)
            if self._uuids.get(address) != uuid:
                self._uuids[address] = uuid
                self._changes += 1
                self.news += 1

    def add(self, gpu_pci_address: str, code: int, time_ns: int, origin: Origin, message: str = "") -> bool:
        """One XID as one source tells of it; True where it is new, False where the other source told of it already.

        time_ns: wall clock, nanoseconds since the epoch. message: the log's own words, for the record.
        Two of one source are always two occurrences; one of each within SAME_OCCURRENCE_NS is one.
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
            waiting = count.untold[other]
            while waiting and time_ns - waiting[0] > SAME_OCCURRENCE_NS:
                waiting.popleft()
            if waiting and abs(time_ns - waiting[0]) <= SAME_OCCURRENCE_NS:
                waiting.popleft()
                return False
            mine = count.untold[origin]
            while mine and time_ns - mine[0] > SAME_OCCURRENCE_NS:
                mine.popleft()  # the other source will not tell of it any more
            mine.append(time_ns)
            count.total += 1
            self.news += 1
            count.newest_ns = max(count.newest_ns, time_ns)
            self._sequence += 1
            self._records.append(self._record(address, code, time_ns, origin, message))
            return True

    def note(self, gpu_pci_address: str, event: str, time_ns: int) -> None:
        """Something that the driver told of a GPU and that is no XID."""
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
        """The records since the last call, oldest first."""
        with self._lock:
            taken = list(self._records)
            self._records.clear()
        return taken

    def newest(self) -> Snapshot:
        """Everything counted so far, as of one instant."""
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
    """Publishes what the ledger holds; it reads nothing itself, so that no driver can hold it up."""

    name = "xid"
    lane = "host"

    def __init__(self, ledger: XidLedger, interval_seconds: float = 1.0, *, driver_present: bool = True) -> None:
        """Raises UnsupportedError where the machine has no NVIDIA driver (driver_present is False)."""
        if not driver_present:
            raise UnsupportedError("xid: no NVIDIA driver on this machine")
        self.interval_seconds = interval_seconds
        self._ledger = ledger
        self._block = Block()
        self._laid_out = self._shown = -1

    def collect(self) -> Block:
        news = self._ledger.news
        if news == self._shown:
            return self._block
        self._shown = news
        newest = self._ledger.newest()
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
        """Gauges: newest time of each (GPU, code). Counters: those of each (GPU, code), all of each GPU, events."""
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
        return self._ledger.take_records()

    def close(self) -> None:
        """Nothing is held."""
