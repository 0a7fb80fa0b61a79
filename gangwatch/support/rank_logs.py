"""Reader of the output of a job's ranks from log files. It can follow the output while the job runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agent.schema.errors import GangwatchError
from gangwatch.state_folder import StateFolder

_BLOCK_BYTES = 64 * 1024


class RankLogs:
    """Reader of the logs of one attempt of a job, of one rank or of all. With all, each line begins with its rank.

    attempt: None reads the latest attempt. If a newer attempt starts, the reader continues with that one.
    """

    def __init__(self, state: StateFolder, job: str, attempt: int | None, rank: int | None) -> None:
        self._folder = state.path / "jobs" / job / "logs"
        self._job = job
        self._fixed_attempt = attempt
        self._rank = rank
        self._attempt: int | None = attempt
        self._offsets: dict[int, int] = {}
        self._partial: dict[int, bytes] = {}

    def require_any(self) -> None:
        """Raise GangwatchError if there is no log to show. The message lists the attempts and ranks that have logs."""
        attempts = self._attempts()
        if not attempts:
            raise GangwatchError(
                f"{self._job}: no output: none of its ranks has started, or no such job: `gangwatch jobs {self._job}`"
            )
        if self._fixed_attempt is not None and self._fixed_attempt not in attempts:
            raise GangwatchError(f"{self._job}: no attempt {self._fixed_attempt}; existing attempts: {attempts}")
        newest = self._fixed_attempt if self._fixed_attempt is not None else attempts[-1]
        if self._rank is not None and self._rank not in self._ranks(newest):
            raise GangwatchError(
                f"{self._job}: no rank {self._rank}; ranks of attempt {newest}: {self._all_ranks(newest)}"
            )

    def newest(self, lines: int | None, final: bool = True) -> Iterator[str]:
        """Yield the last `lines` lines of each rank; None yields all. final: also yield an incomplete last line."""
        self._take_newest_attempt()
        for rank in self._ranks(self._attempt):
            path = self._path(rank)
            with open(path, "rb") as file:
                self._offsets[rank] = 0 if lines is None else _offset_of_last(file.fileno(), lines)
        yield from self.more(final)

    def more(self, final: bool = False) -> Iterator[str]:
        """Yield the complete lines that were written since the last call. final: also yield an incomplete last line."""
        for rank in self._ranks(self._attempt):
            yield from self._read(rank, final)
        if self._take_newest_attempt():
            yield from self.more(final)

    def _read(self, rank: int, final: bool) -> Iterator[str]:
        with open(self._path(rank), "rb") as file:
            file.seek(self._offsets.get(rank, 0))
            while block := file.read(_BLOCK_BYTES):
                self._offsets[rank] = file.tell()
                *whole, rest = (self._partial.pop(rank, b"") + block).split(b"\n")
                self._partial[rank] = rest
                for line in whole:
                    yield self._shown(rank, line)
        if final and (rest := self._partial.pop(rank, b"")):
            yield self._shown(rank, rest)

    def _shown(self, rank: int, line: bytes) -> str:
        text = line.decode(errors="replace") + "\n"
        return text if self._rank is not None else f"{rank}: {text}"

    def _take_newest_attempt(self) -> bool:
        """Switch to the latest attempt; return whether it differs from the previous attempt."""
        if self._fixed_attempt is not None or not (attempts := self._attempts()) or attempts[-1] == self._attempt:
            return False
        self._attempt = attempts[-1]
        self._offsets.clear()
        self._partial.clear()
        return True

    def _attempts(self) -> list[int]:
        return sorted(int(path.name) for path in self._folder.glob("*") if path.name.isdigit())

    def _all_ranks(self, attempt: int | None) -> list[int]:
        names = (path.stem.removeprefix("rank-") for path in (self._folder / str(attempt)).glob("rank-*.log"))
        return sorted(int(name) for name in names if name.isdigit())

    def _ranks(self, attempt: int | None) -> list[int]:
        ranks = self._all_ranks(attempt)
        return ranks if self._rank is None else [rank for rank in ranks if rank == self._rank]

    def _path(self, rank: int) -> str:
        return f"{self._folder}/{self._attempt}/rank-{rank}.log"


def _offset_of_last(descriptor: int, lines: int) -> int:
    """Return the byte offset in the file at which its last `lines` lines begin."""
    size = position = os.fstat(descriptor).st_size
    found = 0
    while position > 0:
        start = max(0, position - _BLOCK_BYTES)
        block = os.pread(descriptor, position - start, start)
        for index in range(len(block) - 1, -1, -1):
            # The newline at the end of the file does not start another line.
            if block[index] == 0x0A and start + index != size - 1:
                found += 1
                if found == lines:
                    return start + index + 1
        position = start
    return size if lines == 0 else 0
