"""Reader of the jobs' own records: the lines that job programs have appended since the last read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from benchmarks.ordinary.oracle.facts import RankLife


class Witnesses:
    """Reader of the file to which the day's job programs append.

    counts: numbers of events that concern no single rank.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "evidence.jsonl"
        self._offset = 0
        self.counts: Counter[str] = Counter()

    def read(self, lives: dict[tuple[str, int, int], RankLife]) -> None:
        """Read new lines and update the records in `lives`."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line), lives)

    def _take(self, line: dict[str, object], lives: dict[tuple[str, int, int], RankLife]) -> None:
        event = str(line["event"])
        self.counts[event] += 1
        key = (str(line["job"]), int(str(line["attempt"])), int(str(line["rank"])))
        wall = float(str(line["wall"]))
        life = lives.get(key)
        if event == "start":
            if life is not None:
                life.starts += 1
                return
            pid, size = int(str(line["pid"])), int(str(line["size"]))
            lives[key] = RankLife(*key, size, str(line["node"]), pid, wall, parent=int(str(line["parent"])))
        elif life is not None and event == "end" and life.pid == line["pid"]:
            life.ended, life.code = wall, int(str(line["code"]))
        elif life is not None and event == "terminated":
            life.terminated = wall
