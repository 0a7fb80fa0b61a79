"""The interface between the controller and the system that runs jobs.

Every backend is a subclass of ``Backend`` and has one line in ``registry.py``. Three methods are required; the others
have defaults for a system that needs nothing special.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agent.schema.frame import AnyLayout, Frame
from agent.schema.sample import Sample
from scheduler_feedback.core.actions import Action
from scheduler_feedback.core.events import Event, NodeSeen
from scheduler_feedback.core.state import START_SECONDS, Policy, State
from scheduler_feedback.core.telemetry.placements import Placed, Refusal
from scheduler_feedback.part_failures import PartFailures

_T = TypeVar("_T")


class RunningCycle(Protocol):
    """Interface of the running cycle to a backend. Any thread may call its methods."""

    def ask(self, question: Callable[[State], _T], /) -> Future[_T]:
        """Call the function `question` with the cycle's state, between two cycles; the future returns its result.

        The function must not change the state or keep parts of it.
        """
        ...

    def request(self, make: Callable[[State], Event], /) -> Future[Event]:
        """Build an event from the cycle's state with `make`, and process it like a user request.

        The future returns the event once the journal has stored it.
        """
        ...

    def cycles(self) -> int:
        """Return the number of finished cycles."""
        ...


class Backend(ABC):
    """Base class of all backends.

    The controller calls ``start``, ``effective_policy``, ``rebuild_state``, ``resume`` and ``attach`` in this order.
    The cycle's thread then calls ``nodes``, ``apply`` and ``observe``. No call may block for long, except ``start``.
    """

    start_seconds: float = START_SECONDS
    """Time limit of a start if ``policy.start_timeout_seconds`` is not set."""

    submit_with: str = ""
    """How users submit jobs if another scheduler starts them; '' if the controller accepts jobs."""

    @classmethod
    def configured(cls, folder: Path, settings: Any) -> Backend:
        """Return the backend of a state folder. settings: the backend's section of the configuration file, or the
        settings that the backend's own command builds.
        """
        return cls(folder, settings)  # type: ignore[call-arg]

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to the system. Raises BackendError if that is not possible; then the controller does not start."""

    def effective_policy(self, configured: Policy) -> Policy:
        """Return the configured policy with the parts that the system itself defines, such as its queues."""
        return self._with_start_timeout(configured)

    def _with_start_timeout(self, configured: Policy) -> Policy:
        """Return the policy with the backend's own time limit of a start, unless the configuration sets one."""
        if configured.start_timeout_seconds is not None:
            return configured
        return replace(configured, start_timeout_seconds=self.start_seconds)

    def rebuild_state(self, policy: Policy, now_ns: int) -> State | None:
        """Return the state read from the system, if the journal may be out of date; None to continue the journal."""
        return None

    def resume(self, state: State) -> None:
        """Compare the jobs with which the cycle starts to the system's. The backend must not change or keep `state`."""

    def attach(self, cycle: RunningCycle, failures: PartFailures) -> None:
        """Begin the work that needs the running cycle. failures: where bugs of this work are reported."""

    def detach(self) -> None:
        """End the work that ``attach`` began. The cycle's thread may still call the backend until ``stop``."""

    def stop(self) -> None:
        """Disconnect, and leave running jobs and operations as they are. May be called without ``start``."""

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    @abstractmethod
    def nodes(self) -> Sequence[NodeSeen]:
        """Return the existing nodes with their slots. Raises BackendError while they are not known."""

    @abstractmethod
    def apply(self, action: Action) -> None:
        """Start an action and return; ``observe`` reports the result. Applying an action twice carries it out once.

        Raises BackendError if the action cannot be started.
        """

    @abstractmethod
    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        """Return what happened since the last call to the attempts that hold slots, given as (job id, attempt).

        The first call after a start reports everything about these attempts again, even if it was reported before the
        restart. The backend ends the processes of attempts that are not in `holding`, because the journal does not have
        them. Raises BackendError while the system does not respond.
        """

    # --- telemetry ---------------------------------------------------------------------------------------------------

    def translate_frame(self, layout: AnyLayout, frame: Frame) -> tuple[AnyLayout, Frame]:
        """Return layout and frame with the agent's names of gangs replaced by the cycle's. Called by the feed's
        thread.
        """
        return layout, frame

    def attest(self, node: str, gang: str, received_ns: int) -> Placed | Refusal | None:
        """Return whether the node may report a gang that the cycle did not place; None if the backend cannot decide.

        received_ns: monotonic time of the report; the backend's data may be older. Any thread may call it.
        """
        return None

    def attest_data(self, node: str) -> object:
        """Return an object that identifies the data on which ``attest`` decides about the node's reports: another
        object after each change.

        While it is the same object, a report that ``attest`` has accepted is accepted without another call. None: call
        ``attest`` each time. The object is kept for long, so it should be small. Any thread may call this method.
        """
        return None

    def translate_events(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return detector results with the cycle's names of gangs. Called by the detection thread."""
        return events

    def job_of(self, gang: str) -> str:
        """Return the cycle's name of the job that agents report as this gang: the data of a job's gangs is deleted when
        the job's attempt ends. Any thread may call it.
        """
        return gang

    def obstacle(self) -> str:
        """Return why the backend cannot carry out all actions, although it observes the system; '' if it can.

        The controller is then not ready. Any thread may call this method.
        """
        return ""

    def measures(self) -> Iterable[Sample]:
        """Return samples of the backend's own metrics, which the catalogue of metrics must define. Any thread may call
        it.
        """
        return ()
