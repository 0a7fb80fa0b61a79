"""Class of users who submit jobs or operate the cluster on a test day."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from benchmarks.ordinary.cluster import AbsentError, Cluster, RefusedError, Said
from benchmarks.ordinary.inbox import Inbox
from benchmarks.ordinary.oracle.facts import FOREVER, Command, Facts

Activity = Callable[[], object]


class Person:
    """A user of the cluster, simulated in one thread. Its actions are sent to the inbox.

    torch: interpreter with PyTorch; None if there is none. only: names of the activities to draw from; empty for
    all. done: number of activities of each kind. latest: descriptions of the newest activities.
    """

    def __init__(
        self,
        cluster: Cluster,
        facts: Facts,
        inbox: Inbox,
        seed: int,
        torch: str | None,
        only: frozenset[str] = frozenset(),
    ) -> None:
        self.random = random.Random(seed)
        self.cluster, self.facts, self.inbox, self.torch, self.only = cluster, facts, inbox, torch, only
        self.done: Counter[str] = Counter()
        self.latest: deque[str] = deque(maxlen=25)
        self._later: list[tuple[float, int, Activity]] = []
        self._count = 0
        self.stopped = False
        self._began = time.monotonic()
        self.errors: list[str] = []

    def attempt(self, name: str, activity: Activity) -> None:
        """Do an activity. Repeat it later if the controller does not respond; drop it if the controller refuses it."""
        for _ in range(3):
            try:
                activity()
                return
            except AbsentError:
                # The harness keeps it down, or the day's checks will find it down.
                time.sleep(1.0)
            except RefusedError as error:
                if error.status not in (404, 409, 422):
                    self.inbox.complaint("refused", name, str(error))
                return

    def later(self, seconds: float, activity: Activity) -> None:
        """Schedule the activity to be done after this many seconds."""
        self._count += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._count, activity))

    def say(self, kind: str, text: str) -> None:
        self.done[kind] += 1
        self.latest.append(f"{time.strftime('%H:%M:%S')} {kind}: {text}")

    def _jobs(self) -> dict[str, dict[str, Any]]:
        return self.facts.reading.jobs if self.facts.reading is not None else {}

    def mine(self, *states: str) -> list[str]:
        owned = self.facts.owner_of
        return [name for name, job in list(self._jobs().items()) if job["state"] in states and name in owned]

    def _total(self) -> int:
        return self.cluster.nodes * self.cluster.slots

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self.cluster.ask("POST", path, body)

    def command(self, word: str, target: str, ask: Activity) -> bool:
        """Send a request and return whether the controller accepted it.

        It is recorded for the checks before it is sent. word: kind of the request.
        """
        command = Command(word, target, time.time(), FOREVER)
        self.inbox.asked(command)
        try:
            ask()
        except RefusedError:
            self.inbox.withdrawn(command)
            return False
        self.inbox.accepted(command, time.time())
        self.say(word, target)
        return True


def check_said(said: Said) -> None:
    """Raise AbsentError if no daemon responded to a command, and RefusedError if it was refused."""
    if said.code == 3:
        raise AbsentError(said.err.strip()[-300:])
    if said.code != 0:
        status = 500 if said.code not in (1, 2) or "Traceback" in said.err else 422
        raise RefusedError(status, f"gangwatch {said.arguments[0]} exited with {said.code}: {said.err.strip()[-600:]}")
