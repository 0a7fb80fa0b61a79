"""Lists in pages. Each page continues where the previous page ended, even if the list has changed.

A mark identifies the last item of a page, not its position: an ended or new job does not shift the other jobs. If the
last item is gone, the next page starts after its former place. An item may then appear twice, but none is left out.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.reading.encoded_parts import with_field
from scheduler_feedback.api.reading.listing import Listing
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import PastVerdict
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.feed.agent_reporting import AgentStatus

Document = dict[str, Any]

Mark = list[int | str]
"""Mark of the last item of a page. Each kind of list has its own format."""

MOST_MARK_BYTES = 1024

_mark = msgspec.json.Decoder(Mark)


class MarkError(ValueError):
    """Error: the text is not a mark of this list."""


def mark_text(mark: Mark) -> str:
    """Return the mark as text for the query of a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(mark)).decode().rstrip("=")


def read_mark(text: str) -> Mark:
    """Return the mark that ``mark_text`` has encoded. Raises MarkError for any other text."""
    if len(text) > MOST_MARK_BYTES or not text.isascii():
        raise MarkError("too long, or not ASCII")
    try:
        return _mark.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise MarkError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a list. items: documents, or documents that are encoded already. mark: identifies the last item, after
    which the next part begins; None if this is the last part."""

    items: list[Any]
    mark: Mark | None


Lister = Callable[[Listing, Mark | None, int], Slice]
"""Function that returns a number of items of a list after a mark (None: from the start). Raises MarkError."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filter of a list of jobs."""

    active: bool = False
    """Whether to omit ended jobs."""
    states: Container[str] | None = None
    """States of the listed jobs; None for any state."""
    user: str = ""
    """User of the listed jobs; '' for any."""
    queue: str = ""
    """Queue of the listed jobs; '' for any."""

    def has(self, job: Job) -> bool:
        """Return whether the job passes the filter."""
        return (
            not (self.active and job.state.ended)
            and (self.states is None or job.state.value in self.states)
            and self.user in ("", job.spec.user)
            and self.queue in ("", job.spec.queue)
        )


def jobs(wanted: Wanted) -> Lister:
    """Return a function that lists the wanted jobs and probes, in the order of submission."""

    def lister(listing: Listing, mark: Mark | None, most: int) -> Slice:
        every = listing.jobs
        found: list[Document] = []
        last: Job | None = None
        for place in range(_after_job(every, mark), len(every)):
            job = every[place]
            if not wanted.has(job):
                continue
            if len(found) == most:
                assert last is not None
                return Slice(found, [last.submitted_ns, last.job_id])
            verdicts = [listing.encoded_verdict(*one) for one in listing.verdicts_of.get(job.job_id, ())]
            ranks = listing.encoded_ranks(job)
            found.append(documents.job_document(listing.state, job, verdicts, listing.reasons_for(job), ranks))
            last = job
        return Slice(found, None)

    return lister


def _after_job(every: Sequence[Job], mark: Mark | None) -> int:
    """Return the index of the first job after the mark."""
    if mark is None:
        return 0
    submitted_ns, job_id = _fields(mark, int, str)
    first = bisect_left(every, submitted_ns, key=attrgetter("submitted_ns"))
    place = first
    while place < len(every) and every[place].submitted_ns == submitted_ns:
        if every[place].job_id == job_id:
            return place + 1
        place += 1
    return first


def nodes(statuses: Callable[[], Mapping[str, AgentStatus]]) -> Lister:
    """Return a function that lists the nodes with their jobs, by name. statuses: returns the agents' status by node."""

    def lister(listing: Listing, mark: Mark | None, most: int) -> Slice:
        names, first = listing.nodes, 0
        if mark is not None:
            (name,) = _fields(mark, str)
            first = bisect_right(names, name)
        shown = names[first : first + most]
        known = statuses()
        found = [
            with_field(listing.encoded_node(name), "agent", documents.agent_document(known.get(name))) for name in shown
        ]
        return Slice(found, [shown[-1]] if first + most < len(names) else None)

    return lister


def verdicts(listing: Listing, mark: Mark | None, most: int) -> Slice:
    """Return a part of the list of verdicts: active verdicts, then past verdicts, the newest first."""
    state = listing.state
    every: list[tuple[Mark, Verdict, PastVerdict | None]] = []
    active = sorted(state.verdicts.values(), key=lambda one: (one.first_wall_ns, one.verdict_id))
    every += [([0, one.first_wall_ns, one.verdict_id], one, None) for one in active]
    past = sorted(state.past_verdicts, key=lambda one: (-one.until_ns, one.verdict.verdict_id))
    every += [([1, -one.until_ns, one.verdict.verdict_id], one.verdict, one) for one in past]
    first = 0
    if mark is not None:
        after = [*_fields(mark, int, int, str)]
        first = bisect_right(every, after, key=lambda one: one[0])
    shown = every[first : first + most]
    found = [listing.encoded_verdict(verdict, ended) for _, verdict, ended in shown]
    return Slice(found, shown[-1][0] if first + most < len(every) else None)


def decisions(listing: Listing, mark: Mark | None, most: int) -> Slice:
    """Return a part of the list of decisions to move gangs, the oldest first."""
    every, first = listing.state.decisions, 0
    if mark is not None:
        (decision_id,) = _fields(mark, str)
        # The oldest decisions are dropped. If this one was, all remaining decisions come after it.
        first = next((place + 1 for place, one in enumerate(every) if one.decision_id == decision_id), 0)
    shown = every[first : first + most]
    return Slice(
        [documents.decision_document(one) for one in shown],
        [shown[-1].decision_id] if first + most < len(every) else None,
    )


def waiting(listing: Listing, mark: Mark | None, most: int) -> Slice:
    """Return a part of the list of pending jobs, in scheduling order.

    The mark also contains the position of the last item. If that job has started in the meantime, the list continues
    from the position.
    """
    every, first = listing.waiting, 0
    if mark is not None:
        place, job_id = _fields(mark, int, str)
        first = next((at + 1 for at, job in enumerate(every) if job.job_id == job_id), min(max(place, 0), len(every)))
    shown = every[first : first + most]
    reasons = listing.reasons if shown else listing.state
    found = [documents.waiting_document(job, reasons) for job in shown]
    return Slice(found, [first + most, shown[-1].job_id] if first + most < len(every) else None)


def _fields(mark: Mark, *kinds: type) -> Any:
    """Return the fields of the mark. Raises MarkError if they do not have the types `kinds`."""
    if len(mark) != len(kinds) or not all(isinstance(field, kind) for field, kind in zip(mark, kinds, strict=True)):
        raise MarkError("it is from another list")
    return mark
