"""Backend without processes. Its attempts are records that survive restarts of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agent.schema.errors import BackendError
from scheduler_feedback.backends.backend import Backend
from scheduler_feedback.core.actions import Action, StartGang
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    Event,
    NodeSeen,
    RankExit,
    RankSeen,
)


@dataclass
class Attempt:
    """Attempt. starts: how often it was really started, which must be once. exit_code: None while it runs."""

    action: StartGang
    starts: int = 1
    exit_code: int | None = None


@dataclass
class World:
    """Nodes and attempts, which exist independently of any controller or backend."""

    nodes: list[NodeSeen] = field(default_factory=lambda: [NodeSeen("n0", 2, (), "m"), NodeSeen("n1", 2, (), "m")])
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    strays: list[tuple[str, int]] = field(default_factory=list)

    def end(self, job_id: str, attempt: int = 1, exit_code: int = 0) -> None:
        self.attempts[job_id, attempt].exit_code = exit_code

    def running(self) -> set[tuple[str, int]]:
        return {key for key, attempt in self.attempts.items() if attempt.exit_code is None}


@dataclass
class MemoryBackend(Backend):
    """Backend of one controller.

    before_apply: called before each action; it may raise. trouble: message of the error that observe raises; '' for
    none.
    """

    world: World
    before_apply: Callable[[Action], None] = lambda _: None
    trouble: str = ""
    applied: list[Action] = field(default_factory=list)
    reported: dict[tuple[str, int], str] = field(default_factory=dict)

    def nodes(self) -> Sequence[NodeSeen]:
        return list(self.world.nodes)

    def apply(self, action: Action) -> None:
        self.before_apply(action)
        self.applied.append(action)
        key = action.job_id, action.attempt
        if isinstance(action, StartGang):
            self.world.attempts.setdefault(key, Attempt(action))
        elif key in self.world.attempts and self.world.attempts[key].exit_code is None:
            self.world.end(*key, exit_code=143)

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        if self.trouble:
            raise BackendError(self.trouble)
        held = set(holding)
        for key in self.world.running() - held:
            self.world.strays.append(key)
            self.world.end(*key, exit_code=137)
        return [event for key in held if (event := self._event(key)) is not None]

    def _event(self, key: tuple[str, int]) -> Event | None:
        attempt = self.world.attempts.get(key)
        news = "unknown" if attempt is None else "running" if attempt.exit_code is None else "ended"
        if self.reported.get(key) == news:
            return None
        self.reported[key] = news
        if attempt is None:
            return AttemptUnknown(*key)
        ranks = range(len(attempt.action.placement))
        if attempt.exit_code is None:
            seen = [
                RankSeen(r, attempt.action.placement[r].node, attempt.action.placement[r].slot, 100 + r, 7)
                for r in ranks
            ]
            return AttemptRunning(*key, tuple(seen))
        return AttemptEnded(*key, tuple(RankExit(rank, attempt.exit_code) for rank in ranks))
