"""Backends: what carries the cycle's actions out. One file a backend, one line in BACKENDS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from scheduler_feedback.backends.local.local_backend import LocalBackend
from scheduler_feedback.backends.slurm import SlurmBackend
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event, NodeSeen


class Backend(Protocol):
    """What the controller's shell needs of an execution engine. Called from one thread; no call may block for long."""

    def nodes(self) -> Sequence[NodeSeen]:
        """The nodes that exist, with their slots."""
        ...

    def apply(self, action: Action) -> None:
        """Set an action going and return; what came of it is seen by ``observe``. Applying one twice does it once.

        Raises BackendError where it cannot even be set going.
        """
        ...

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        """What really happened since the last call to the attempts (job id, attempt) that are believed to hold slots.

        The first call after a start reports everything it finds of them, whether or not it was reported before the
        restart. Processes of attempts that are not in `holding` are ended: nothing runs that the journal does not know.
        """
        ...


BACKENDS: tuple[type[Backend], ...] = (LocalBackend, SlurmBackend)
