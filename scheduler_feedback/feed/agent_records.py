"""Records of agents: each agent announces itself with a file in the state folder (``agents/NODE.json``)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

WHOLE_LOOK_NS = 10_000_000_000
"""Time after which the folder is read again even if its modification time is unchanged: a file may have been rewritten
in place."""

SAME_INSTANT_NS = 2_000_000_000
"""A folder that was modified less than this time ago is read at every refresh, in nanoseconds. File systems may store
times in whole seconds, so a second change within a second may not alter the modification time."""

_log = logging.getLogger(__name__)

_Identity = tuple[int, int, int]


class AgentRecord(msgspec.Struct, frozen=True):
    """Content of one agent's file. The pid and the start time identify the agent's process."""

    pid: int
    start_time: int
    node: str
    url: str


class Agents:
    """The agents that announce themselves in a folder, by node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, _Identity] = {}
        self._folder_ns: int | None = None
        self._looked_ns: int | None = None
        self.records: dict[str, AgentRecord] = {}

    def refresh(self, now_ns: int, wall_ns: int) -> bool:
        """Read new and changed files, and remove agents whose file is gone. Return whether anything changed.

        now_ns: monotonic time; wall_ns: wall time. A read error is logged and changes nothing.
        """
        try:
            folder_ns = self.folder.stat().st_mtime_ns
            unmoved = folder_ns == self._folder_ns and wall_ns - folder_ns > SAME_INSTANT_NS
            if unmoved and self._looked_ns is not None and now_ns - self._looked_ns < WHOLE_LOOK_NS:
                return False
            found = dict(self._scan())
        except FileNotFoundError:
            return False  # no agent was started yet
        except OSError as error:
            _log.warning("%s: %s", self.folder, error.strerror)
            return False
        self._folder_ns, self._looked_ns = folder_ns, now_ns
        changed = [name for name, identity in found.items() if self._files.get(name) != identity]
        gone = self._files.keys() - found.keys()
        for name in gone:
            self.records.pop(name.removesuffix(".json"), None)
        for name in changed:
            self._read(name)
        self._files = found
        return bool(changed or gone)

    def announced(self) -> int:
        """Return the number of files in the folder now, also of agents whose file is not read yet."""
        try:
            return sum(1 for _ in self._scan())
        except OSError:
            return 0

    def current(self, node: str) -> AgentRecord | None:
        """Return the current record of one agent."""
        name = f"{node}.json"
        try:
            identity = _identity((self.folder / name).stat())
        except OSError:
            return self.records.get(node)
        if self._files.get(name) != identity:
            self._files[name] = identity
            self._read(name)
        return self.records.get(node)

    def _scan(self) -> Iterator[tuple[str, _Identity]]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    try:
                        yield entry.name, _identity(entry.stat())
                    except FileNotFoundError:
                        continue

    def _read(self, name: str) -> None:
        node = name.removesuffix(".json")
        try:
            self.records[node] = self._record(name, node)
        except (OSError, ValueError) as error:
            self.records.pop(node, None)
            _log.warning("%s: not an agent's record: %s", self.folder / name, error)

    def _record(self, name: str, node: str) -> AgentRecord:
        try:
            record = msgspec.json.decode((self.folder / name).read_bytes(), type=AgentRecord)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        if record.node != node:
            raise ValueError(f"it names node {record.node!r}")
        address = urlsplit(record.url)
        if address.scheme not in ("http", "https") or not address.hostname or address.port == 0:
            raise ValueError(f"url {record.url!r} is not an http address")
        if not record.url.isascii() or any(character <= " " for character in record.url):
            raise ValueError(f"url {record.url!r} has characters that a request can't carry")
        return record


def _identity(status: os.stat_result) -> _Identity:
    return status.st_mtime_ns, status.st_ino, status.st_size
