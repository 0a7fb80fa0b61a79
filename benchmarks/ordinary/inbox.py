"""Inbox of users' actions: the users' threads add actions, and the thread that runs the checks removes them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from benchmarks.ordinary.oracle.facts import Command, Disturbance, Facts, Failure, Outage, Statement, Submission


class Inbox:
    """Queue of users' actions for the checks.

    Any thread may add; only one may call `take`. complaints: failures seen by users.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[Facts], None]] = queue.SimpleQueue()
        self.complaints: list[tuple[str, str, str]] = []

    def take(self, facts: Facts, wall: float) -> list[Failure]:
        """Move all queued actions to the facts. Return the failures that users have seen."""
        while not self._queue.empty():
            self._queue.get()(facts)
        met, self.complaints = self.complaints, []
        return [Failure(check, subject, text, wall) for check, subject, text in met]

    def complaint(self, check: str, subject: str, text: str) -> None:
        self.complaints.append((check, subject, text))

    def submitted(self, submission: Submission) -> None:
        self._queue.put(lambda facts: facts.submitted(submission))

    def asked(self, command: Command) -> None:
        self._queue.put(lambda facts: facts.commands.append(command))

    def accepted(self, command: Command, wall: float) -> None:
        def take(_facts: Facts) -> None:
            command.accepted = wall

        self._queue.put(take)

    def withdrawn(self, command: Command) -> None:
        self._queue.put(lambda facts: facts.commands.remove(command))

    def stated(self, statement: Statement) -> None:
        self._queue.put(lambda facts: facts.statements.append(statement))

    def disturbed(self, disturbance: Disturbance) -> None:
        self._queue.put(lambda facts: facts.disturbances.append(disturbance))

    def silenced(self, outage: Outage) -> None:
        self._queue.put(lambda facts: facts.outages.append(outage))

    def policy_changes(self) -> None:
        def take(facts: Facts) -> None:
            facts.policy_settled = False

        self._queue.put(take)

    def policy_changed(self, policy: dict[str, Any]) -> None:
        def take(facts: Facts) -> None:
            facts.policy = policy
            facts.queues = {queue["name"]: queue for queue in policy.get("queues", ())}
            facts.policy_settled = True

        self._queue.put(take)
