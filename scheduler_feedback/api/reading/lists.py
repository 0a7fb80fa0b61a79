"""Lists in pages: each continues where the one before ended, whatever has happened to the list meanwhile. Pure.

A mark says where a page ended by what the last item is, never by how many came before it: a job that ends, or is new,
moves no other job to another page. Where the last item is gone, the page begins at what follows its place; an item may
then come twice, and none is left out.
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
from scheduler_feedback.api.reading.listing import Listing
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import PastVerdict
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.feed.agent_reporting import Hearing

Document = dict[str, Any]

Mark = list[int | str]
"""Where a page ended; each list has its own."""

MOST_MARK_BYTES = 1024

_mark = msgspec.json.Decoder(Mark)


class MarkError(ValueError):
    """Text that is no mark of this list."""


def mark_text(mark: Mark) -> str:
    """The mark as it stands in a query."""
    return base64.urlsafe_b64encode(msgspec.json.encode(mark)).decode().rstrip("=")


def read_mark(text: str) -> Mark:
    """Raises MarkError for what ``mark_text`` did not write."""
    if len(text) > MOST_MARK_BYTES or not text.isascii():
        raise MarkError("too long, or not ASCII")
    try:
        return _mark.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise MarkError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a list. mark: where it ended; None at the list's end."""

    items: list[Document]
    mark: Mark | None


Lister = Callable[[Listing, Mark | None, int], Slice]
"""A list's items after a mark (None: from the beginning), at most so many. Raises MarkError for another list's mark."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs are listed. states: None for any; user, queue: '' for any."""

    active: bool = False
    states: Container[str] | None = None
    user: str = ""
    queue: str = ""

    def has(self, job: Job) -> bool:
        """Whether the job is one of them."""
        return (
            not (self.active and job.state.ended)
            and (self.states is None or job.state.value in self.states)
            and self.user in ("", job.spec.user)
            and self.queue in ("", job.spec.queue)
        )


def jobs(wanted: Wanted) -> Lister:
    """Jobs in order of submission, our own probes too."""

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
            verdicts = [
                documents.verdict_document(listing.state, verdict, past)
                for verdict, past in listing.verdicts_of.get(job.job_id, ())
            ]
            found.append(documents.job_document(listing.state, job, verdicts, listing.reasons_for(job)))
            last = job
        return Slice(found, None)

    return lister


def _after_job(every: Sequence[Job], mark: Mark | None) -> int:
    """Place of the first job after the mark."""
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


def nodes(hearing: Callable[[], Mapping[str, Hearing]]) -> Lister:
    """Nodes with who is on them, by name. hearing: how old what each agent sent is, by node."""

    def lister(listing: Listing, mark: Mark | None, most: int) -> Slice:
        names, first = listing.nodes, 0
        if mark is not None:
            (name,) = _fields(mark, str)
            first = bisect_right(names, name)
        shown = names[first : first + most]
        found = [documents.node_document(listing.state.nodes[name], listing.on_node[name]) for name in shown]
        return Slice(documents.with_hearing(found, hearing()), [shown[-1]] if first + most < len(names) else None)

    return lister


def verdicts(listing: Listing, mark: Mark | None, most: int) -> Slice:
    """Every active verdict, then those that were, the newest first."""
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
    found = [documents.verdict_document(state, verdict, ended) for _, verdict, ended in shown]
    return Slice(found, shown[-1][0] if first + most < len(every) else None)


def decisions(listing: Listing, mark: Mark | None, most: int) -> Slice:
    """Every migration that was decided, the oldest first."""
    every, first = listing.state.decisions, 0
    if mark is not None:
        (decision_id,) = _fields(mark, str)
        # The oldest are forgotten: where this one is, all that are left come after it.
        first = next((place + 1 for place, one in enumerate(every) if one.decision_id == decision_id), 0)
    shown = every[first : first + most]
    return Slice(
        [documents.decision_document(one) for one in shown],
        [shown[-1].decision_id] if first + most < len(every) else None,
    )


def waiting(listing: Listing, mark: Mark | None, most: int) -> Slice:
    """The pending jobs, first the first. The line moves: one that has started since is passed over."""
    every, first = listing.waiting, 0
    if mark is not None:
        place, job_id = _fields(mark, int, str)
        first = next((at + 1 for at, job in enumerate(every) if job.job_id == job_id), min(max(place, 0), len(every)))
    shown = every[first : first + most]
    reasons = listing.reasons if shown else listing.state
    found = [documents.waiting_document(job, reasons) for job in shown]
    return Slice(found, [first + most, shown[-1].job_id] if first + most < len(every) else None)


def _fields(mark: Mark, *kinds: type) -> Any:
    """The mark's fields. Raises MarkError where they are not of these kinds."""
    if len(mark) != len(kinds) or not all(isinstance(field, kind) for field, kind in zip(mark, kinds, strict=True)):
        raise MarkError("it is of another list")
    return mark
