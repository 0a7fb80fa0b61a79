"""Settings of a controller that do not depend on its backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_feedback.api.access.audit import Audit
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.subscribers import MOST_STREAMS, MOST_STREAMS_EACH
from scheduler_feedback.controller.cycle_thread import SNAPSHOT_SECONDS
from scheduler_feedback.core.fabric import Fabric
from scheduler_feedback.detectors import Detector
from scheduler_feedback.feed.credentials import Credentials
from scheduler_feedback.journal.store import Retention


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of journal, detection, feed and API."""

    snapshot_seconds: float = SNAPSHOT_SECONDS
    """Time between two snapshots of the state."""
    retention: Retention = Retention()  # noqa: RUF009
    """Age and size at which old rows of the journal are deleted."""
    detectors: Sequence[Detector] | None = None
    """Detectors to run; None for all."""
    fabric: Fabric | None = None
    """Switch of each node; None if it is not known."""
    credentials: Credentials | None = None
    """The feed's TLS credentials for agents; None for the system's authorities and no own certificate."""
    feed_processes: int | None = 0
    """Number of reader processes of the feed; None to decide by the number of agents."""
    streams: tuple[int, int] = (MOST_STREAMS, MOST_STREAMS_EACH)
    """Maximum number of the API's event streams, in total and per peer."""
    access: Authentication | None = None
    """Authentication of requests; None for the folder's tokens only."""
    audit: Audit | None = None
    """Audit log of requests; None for a file in the folder."""
