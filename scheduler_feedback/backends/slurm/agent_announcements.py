"""Announcements of the agents on Slurm's nodes to the feed: one record a node, in the format that an agent writes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

_log = logging.getLogger(__name__)


class Announcements:
    """Folder with one record for each node. template: URL of an agent, with '{node}' in place of the node's name."""

    def __init__(self, folder: Path, template: str) -> None:
        self._folder, self._template = folder, template
        self._written: set[str] = set()

    def write(self, nodes: Iterable[str]) -> None:
        """Write a record for each new node and delete those of nodes that Slurm no longer has."""
        wanted = set(nodes)
        try:
            for name in wanted - self._written:
                self._write(name)
            for name in self._written - wanted:
                (self._folder / f"{name}.json").unlink(missing_ok=True)
        except OSError as error:
            _log.error("%s: %s; the feed does not read the agents of new nodes", self._folder, error.strerror)
            return
        self._written = wanted

    def _write(self, name: str) -> None:
        """Write the node's record atomically, because the feed may read it at any time.

        The pid is 0, because the agent is not a process on this machine.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = {"pid": 0, "start_time": 0, "node": name, "url": self._template.replace("{node}", name)}
        path = self._folder / f"{name}.json"
        temporary = self._folder / f".{name}.new"
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.replace(path)
