"""Execution backends, which carry out the actions of the cycle: local processes, Kubernetes and Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from scheduler_feedback.backends.local.local_backend import LocalBackend
from scheduler_feedback.backends.slurm import SlurmBackend
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event, NodeSeen


class Backend(Protocol):
    """Interface between the controller and an execution engine. One thread calls it, and no call may block for long."""

    def nodes(self) -> Sequence[NodeSeen]:
        """Return the existing nodes with their slots."""
        ...

    def apply(self, action: Action) -> None:
        """Start an action and return; ``observe`` reports the result. Applying an action twice carries it out once.

        Raises BackendError if the action cannot be started.
        """
        ...

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        """Return what happened since the last call to the attempts that hold slots, given as (job id, attempt).

        The first call after a start reports everything about them again, even if it was reported before the restart.
        The backend ends the processes of attempts that are not in `holding`, because the journal does not have them.
        """
        ...


BACKENDS: tuple[type[Backend], ...] = (LocalBackend, SlurmBackend)
