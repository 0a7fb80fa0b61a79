"""Collector of NFS mounts: operations, bytes and server latency."""

from __future__ import annotations

import os
from collections.abc import Sequence

from agent.collectors.block import Block
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Column
from agent.sources.files import KeptFile
from agent.sources.proc.mountstats import NfsMount, Operation, parse_mountstats

INTERVAL_SECONDS = 10.0

OPERATIONS = ("READ", "WRITE", "COMMIT", "OPEN", "GETATTR", "LOOKUP", "READDIR")
"""NFS operations that have their own series. The other sixty operations of the protocol are summed as 'other'."""
_OTHER = "other"

_METRICS = (
    "gangwatch_host_nfs_operations_total",
    "gangwatch_host_nfs_retransmissions_total",
    "gangwatch_host_nfs_timeouts_total",
    "gangwatch_host_nfs_queue_seconds_total",
    "gangwatch_host_nfs_response_seconds_total",
    "gangwatch_host_nfs_operation_seconds_total",
)
_NANOSECONDS = 1_000_000

_NONE = Operation(0, 0, 0, 0, 0, 0)


class NfsCollector:
    """Collector of the machine's NFS mounts. It has no series if there are no NFS mounts."""

    name = "nfs"
    worker = "sysfs"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, proc_root: str = "/proc") -> None:
        """Raise UnsupportedError if this kernel has no mount statistics."""
        # If the host's /proc is mounted into a container, process 1 has the host's mounts.
        paths = [f"{proc_root}/1/mountstats", f"{proc_root}/self/mountstats"]
        self._files = [KeptFile(path) for path in paths if os.path.exists(path)]
        if not self._files:
            raise UnsupportedError(f"{paths[0]}: no such file")
        self._mounts: list[tuple[str, str]] = []
        self._block = Block()

    def collect(self) -> Block:
        mounts = self._read()
        known = [(mount.export, mount.mount) for mount in mounts]
        if known != self._mounts:
            self._mounts = known
            self._block = self._lay_out(mounts)
        index = 0
        for mount in mounts:
            for value in (mount.read_bytes, mount.written_bytes, *self._values(mount)):
                self._block.set_counter(index, value)
                index += 1
        return self._block

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _read(self) -> list[NfsMount]:
        for position, file in enumerate(self._files):
            try:
                return parse_mountstats(file.read())
            except SourceError:
                if position == len(self._files) - 1:
                    raise
        return []

    @staticmethod
    def _values(mount: NfsMount) -> list[int]:
        """Return the counters of one mount, for each operation: operations, retransmissions, timeouts, and times in ns.

        The times are those in the queue, until the server's response, and in total.
        """
        others = [operation for name, operation in mount.operations.items() if name not in OPERATIONS]
        other = Operation(*(sum(numbers) for numbers in zip(*others, strict=True))) if others else _NONE
        values: list[int] = []
        for operation in (*(mount.operations.get(name, _NONE) for name in OPERATIONS), other):
            values += [
                operation.operations,
                # The kernel updates both when an operation ends (rpc_count_iostats_metrics): this never decreases.
                max(0, operation.transmissions - operation.operations),
                operation.timeouts,
                operation.queue_ms * _NANOSECONDS,
                operation.response_ms * _NANOSECONDS,
                operation.execute_ms * _NANOSECONDS,
            ]
        return values

    @staticmethod
    def _lay_out(mounts: Sequence[NfsMount]) -> Block:
        counters: list[Column] = []
        for mount in mounts:
            labels = (("export", mount.export), ("mount", mount.mount))
            counters.append(Column("gangwatch_host_nfs_read_bytes_total", labels))
            counters.append(Column("gangwatch_host_nfs_written_bytes_total", labels))
            counters.extend(
                Column(metric, (("mount", mount.mount), ("operation", operation)))
                for operation in (*OPERATIONS, _OTHER)
                for metric in _METRICS
            )
        return Block((), counters)
