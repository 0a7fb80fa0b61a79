"""Explanation of a job's state for `gangwatch explain`: why the job is in this state, until when, and what would change
it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.job import JobState, Slot


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """A job whose end frees slots for a waiting job."""

    job_id: str
    """Id of the job whose end frees the slots."""
    ranks: int
    """Number of slots that the end of that job frees."""
    until_ns: int
    """Expected time at which that job ends."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A node that the job cannot use at present, or only with limits, and the reason."""

    node: str
    """Name of the node."""
    state: str
    """State of the node, for example quarantine."""
    free: int
    """Free slots of the node."""
    reason: str
    """Why the job cannot use the node, in words."""


@dataclass(frozen=True, slots=True)
class LearntSpeed:
    """Learnt speed of one configuration of the job's class."""

    gpu_type: str
    """GPU type; '' if the nodes have none."""
    ranks: int
    """Number of ranks."""
    level: str
    """Narrowest placement that holds the gang: node, rack, spine or cluster."""
    speed: float
    """Expected speed; 1 is that of the requested ranks in the narrowest placement."""
    error: float
    """Standard deviation of the speed, as a share of it."""
    assumed: float
    """Speed that is assumed without measurements: in proportion to the ranks, times the given speed of the type."""
    measurements: float
    """Number of measurements, the older ones discounted."""


@dataclass(frozen=True, slots=True)
class LearntMemory:
    """Learnt device memory of the job's class, for one number of ranks."""

    ranks: int
    """Number of ranks."""
    largest_mib: int
    """Largest measured device memory of a rank, in MiB."""
    need_mib: int
    """Device memory that is planned for each rank, or would be with `policy.learnt_memory`, in MiB."""
    runs: int
    """Number of measured jobs."""
    out_of_memory: int
    """Number of times that a job ran out of device memory beside others."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons for a job's state, and what would change it."""

    job_id: str
    """Id of the job."""
    state: JobState
    """State of the job."""
    why: str
    """Reason for the job's state, in one sentence."""
    waits_for: tuple[WaitsFor, ...] = ()
    """Jobs that must end before this job can start, in order of their expected ends."""
    expected_start_ns: int | None = None
    """Expected start; None if unknown or if the job does not wait."""
    reservation: tuple[Slot, ...] = ()
    """Slots reserved for the job, by rank."""
    blockers: tuple[Blocker, ...] = ()
    """Nodes that the job cannot use, each with a reason."""
    what_would_change_it: tuple[str, ...] = ()
    """Changes that would help the job, as sentences, the cheapest first."""
    expected_start_range_ns: tuple[int, int] | None = None
    """Earliest and latest likely start; None if unknown."""
    binds: str = ""
    """The one constraint that prevents the start: frozen, pause, dependency, capacity (the empty cluster is too small),
    limit (of its queue), slots, level (slots are free, but not in one domain), type (slots are free, but with a slower
    GPU type), power (slots are reserved for it, but the power budget is used up) or reservation (slots are free, but
    reserved for another job); '' if the job does not wait."""
    speeds: tuple[LearntSpeed, ...] = ()
    """Learnt speeds of the job's class, by GPU type, placement and ranks; empty if none was measured."""
    memory_in_words: str = ""
    """Facts about the device memory of the job's class, as a sentence; '' if there are none."""
    memory: tuple[LearntMemory, ...] = ()
    """Learnt device memory of the job's class, by number of ranks."""
