"""The gate that every action passes last: shut while an operator has frozen all actions.

It is a file, so that a freeze holds across restarts even where the store can't be written, and a flag in memory, so
that it holds at once even where the file can't be.
"""

from __future__ import annotations

import os
from pathlib import Path

from agent.schema.errors import StoreError


class Gate:
    """Shut or open. Every method may be called from any thread."""

    __slots__ = ("_shut", "flag")

    def __init__(self, flag: Path) -> None:
        self.flag = flag
        self._shut = False

    def closed(self) -> bool:
        """Whether nothing may pass. Looks at the file each time: an operator may make it by hand."""
        return self._shut or self.flag.exists()

    def shut(self) -> None:
        """Let nothing pass from this instant on.

        Raises StoreError where the file can't be written: then it is shut until this process ends.
        """
        self._shut = True
        try:
            descriptor = os.open(self.flag, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.close(descriptor)
            folder = os.open(self.flag.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreError(f"{self.flag}: {error.strerror}; frozen, but only until the controller ends") from error

    def follow(self, frozen: bool) -> None:
        """Be what the journal says. Raises StoreError where the file can't be written or removed."""
        if frozen:
            self.shut()
            return
        try:
            self.flag.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.flag}: {error.strerror}; everything stays frozen") from error
        self._shut = False
