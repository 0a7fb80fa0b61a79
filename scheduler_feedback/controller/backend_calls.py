"""Calls of the backend by the cycle's thread; errors of the backend are counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from agent.schema.errors import BackendError
from scheduler_feedback.backends.backend import Backend
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event, NodeSeen, as_seen
from scheduler_feedback.core.state import State

_log = logging.getLogger(__name__)


class BackendCalls:
    """Caller of a backend that counts and logs the backend's errors.

    Attributes: `trouble`, why the last observation failed, or ''; `responded`, whether an observation ever succeeded;
    `failures`, number of errors so far.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.trouble = ""
        self.responded = False
        self.failures = 0

    def obstacle(self) -> str:
        """Return why the backend does not work, or not completely; '' if it works. Any thread may call it."""
        return self.trouble or self._backend.obstacle()

    def observe(self, state: State, queued: Iterable[Event], *, with_nodes: bool) -> list[Event]:
        """Return what happened to the attempts on the backend. with_nodes: also return changes of nodes.

        queued: events that no cycle has processed yet.
        """
        holding = [(job.job_id, job.attempt) for job in state.jobs.values() if job.state.holds_slots]
        events: list[Event] = []
        try:
            if with_nodes:
                events += self._node_changes(state, queued)
            events += self._backend.observe(holding)
        except BackendError as error:
            self.failures += 1
            if self.trouble != str(error):
                _log.error("backend: %s", error)
            self.trouble = str(error)
        else:
            self.trouble = ""
            self.responded = True
        return events

    def _node_changes(self, state: State, queued: Iterable[Event]) -> list[Event]:
        """Return events for the differences between the backend's nodes and the state's."""
        present = {node.node: node for node in self._backend.nodes()}
        known = state.nodes
        waiting = {event.node for event in queued if isinstance(event, NodeSeen)}
        changes: list[Event] = []
        for name, seen in present.items():
            node = known.get(name)
            if (node and as_seen(node)) != seen and name not in waiting:
                changes.append(seen)
        for name, node in known.items():
            if node.present and name not in present and name not in waiting:
                changes.append(NodeSeen(name, node.slots, node.devices, node.machine, present=False))
        return changes

    def apply(self, action: Action) -> BackendError | None:
        """Start an action; return the error if that fails, else None."""
        try:
            self._backend.apply(action)
        except BackendError as error:
            self.failures += 1
            _log.warning("%s of %s: %s", action.action_id, action.job_id, error)
            return error
        return None
