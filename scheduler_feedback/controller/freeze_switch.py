"""The freeze switch, checked before every action: on while an operator has frozen all actions.

It is a file, so that a freeze survives restarts even if the journal is not writable, and a flag in memory, so that it
takes effect at once even if the file cannot be written.
"""

from __future__ import annotations

import os
from pathlib import Path

from agent.schema.errors import StoreError
from scheduler_feedback.core.events import FreezeSet


class FreezeSwitch:
    """A switch that blocks all actions while on. Any thread may turn it on and read it."""

    __slots__ = ("_on", "_was_flagged", "flag")

    def __init__(self, flag: Path) -> None:
        self.flag = flag
        self._on = self._was_flagged = False

    def is_on(self) -> bool:
        """Return whether actions are blocked. Checks the file each time: an operator may create it by hand."""
        return self._on or self.flag.exists()

    def turn_on(self) -> None:
        """Block all actions from now on.

        Raises StoreError if the file cannot be written: the freeze then ends with this process.
        """
        self._on = True
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
        """Turn the switch on if the journal has a freeze (`frozen`), else off. Raises StoreError if the file of the
        switch cannot be written or removed."""
        if frozen:
            self.turn_on()
            return
        try:
            self.flag.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.flag}: {error.strerror}; all actions stay frozen") from error
        self._on = False

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    def set_by_hand(self, frozen: bool) -> bool:
        """Return whether an operator has created the file, which also works while no controller runs.

        frozen: whether the journal has a freeze. The file must exist at two calls in a row, because a freeze by the API
        also creates the file before the journal has the freeze.
        """
        flagged = self.is_on() and not frozen
        by_hand = flagged and self._was_flagged
        self._was_flagged = flagged
        return by_hand

    def event(self) -> FreezeSet:
        """Return an event that informs the cycle of a freeze by the file that an operator has created."""
        return FreezeSet(True, f"the file {self.flag.name}")
