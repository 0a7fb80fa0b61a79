"""Announcements: Slurm's nodes tell the feed which agents there are, by a record each, as an agent leaves one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

_log = logging.getLogger(__name__)


class Announcements:
    """Keeps a record a node in the folder. template: the agent's URL, with '{node}' for the node's name."""

    def __init__(self, folder: Path, template: str) -> None:
        self._folder, self._template = folder, template
        self._written: set[str] = set()

    def write(self, nodes: Iterable[str]) -> None:
        """A record for each node that has none yet; those of nodes that Slurm has no more are removed."""
        wanted = set(nodes)
        try:
            for name in wanted - self._written:
                self._write(name)
            for name in self._written - wanted:
                (self._folder / f"{name}.json").unlink(missing_ok=True)
        except OSError as error:
            _log.error("%s: %s; agents of new nodes are not read", self._folder, error.strerror)
            return
        self._written = wanted

    def _write(self, name: str) -> None:
        """Whole or not at all: the feed reads the folder meanwhile. No process here is the agent's: pid 0."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = {"pid": 0, "start_time": 0, "node": name, "url": self._template.replace("{node}", name)}
        path = self._folder / f"{name}.json"
        temporary = self._folder / f".{name}.new"
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.replace(path)
