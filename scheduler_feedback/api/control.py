"""Interface through which the API uses the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from scheduler_feedback.api.access.audit import Audit
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.reading.snapshot_reader import SnapshotReader
from scheduler_feedback.api.subscribers import Subscribers
from scheduler_feedback.controller.cycle_thread import CycleThread
from scheduler_feedback.controller.hang_files import HangFile
from scheduler_feedback.core.telemetry.steps.pace import MOST_ROWS, Pace, Speed
from scheduler_feedback.feed.agent_reporting import AgentStatuses
from scheduler_feedback.journal.store import Reader
from scheduler_feedback.part_failures import PartFailures


class Control(Protocol):
    """Methods and attributes of a controller that the API uses."""

    access: Authentication
    audit: Audit
    folder: Path
    cycle: CycleThread
    snapshot_reader: SnapshotReader
    subscribers: Subscribers
    failures: PartFailures
    submit_with: str

    @property
    def store(self) -> Reader: ...

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None: ...
    def hang_of(self, job_id: str, attempt: int) -> HangFile | None: ...
    async def shared_speeds(self) -> Mapping[str, Speed]: ...
    def agent_statuses(self) -> AgentStatuses: ...
    def troubles(self) -> list[str]: ...
    def alive(self) -> tuple[bool, str]: ...
    def scheduling(self) -> tuple[bool, str]: ...
    def ready(self) -> tuple[bool, str]: ...
    async def freeze(self, by: str) -> str: ...
    async def thaw(self, by: str) -> None: ...
    async def reload(self, by: str) -> None: ...
