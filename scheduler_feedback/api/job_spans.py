"""Traces for OpenTelemetry: each job as a tree of spans (named periods of time), built from its story.

::

    job NAME                   submission to end; its events are the story's other entries
        queued                 until a start was decided; linked to the jobs that held the slots
        placed                 until every rank ran
        running                until a stop was requested, or all ranks had ended
            straggler          a verdict: from the first evidence until it was cleared
        checkpoint             from the stop request until all processes had ended
        migration, preemption  from the decision until the next attempt ran

Exporters send the spans. Spans are emitted when they end: a job that runs for weeks has spans of past events, but no
root span yet. Ids are derived from the job and the time, so that a restarted controller continues the same trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from agent.schema.span import Attributes, Link, Span, SpanEvent
from scheduler_feedback.core.actions import Entry

MOST_EVENTS = 128
"""Maximum number of events per span: the default limit of OpenTelemetry's SDKs (EventCountLimit)."""

MOST_LINKS = 10
"""Maximum number of links from the span of a job's wait to the jobs that held the slots. The jobs that are expected to
end first get the links."""

_STARTS = frozenset({"started", "backfilled"})
_MOVES = {
    **dict.fromkeys(("migrate", "separate", "shrink", "requeue", "restart"), "migration"),
    "preempt": "preemption",
}
_SPANNED = _STARTS | {"submitted", "waits", "pending", "running", "stopping", "verdict", "cleared", "ended"}


@dataclass(frozen=True, slots=True)
class About:
    """Name, submission time and attributes of a job, for its trace."""

    name: str
    submitted_ns: int
    """Time of submission, in ns. The id of the trace depends on it."""
    attributes: Attributes = ()


@dataclass(slots=True)
class _Open:
    name: str
    start_ns: int
    parent: str = "job"
    attributes: Attributes = ()
    links: tuple[Link, ...] = ()


@dataclass(slots=True)
class _Life:
    """Spans and events of a job that were not emitted yet."""

    job_id: str
    about: About
    begun_ns: int
    opened: dict[str, _Open] = field(default_factory=dict)
    """Spans that have begun and not ended, by a key that is unique among them."""
    events: list[SpanEvent] = field(default_factory=list)
    running_id: bytes = b""


class Traces:
    """Converter of log entries into spans. It stores the open spans of each job that has not ended.

    about: returns name, submission time and attributes of a job; None if the job is no longer known. earlier: returns a
    job's entries before the entry of this number, for a job that began before this converter. held_up_by: returns the
    jobs whose slots a job waits for.
    """

    def __init__(
        self,
        about: Callable[[str], About | None],
        earlier: Callable[[str, int], Sequence[Entry]],
        held_up_by: Callable[[str], Sequence[str]],
    ) -> None:
        self._about = about
        self._earlier = earlier
        self._held_up_by = held_up_by
        self._lives: dict[str, _Life] = {}

    def __len__(self) -> int:
        return len(self._lives)

    def take(self, entry_id: int, entry: Entry) -> list[Span]:
        """Return the spans that this entry ends. Entries must come in the order of their numbers."""
        job_id = entry.subject
        if ":" in job_id or job_id == "cluster":
            return []
        life = self._lives.get(job_id) or self._begin(job_id, entry_id, entry)
        return [] if life is None else self._fold(life, entry)

    def _begin(self, job_id: str, entry_id: int, entry: Entry) -> _Life | None:
        about = self._about(job_id)
        if about is None:  # an array, whose members have stories of their own, or a forgotten job
            return None
        past = self._earlier(job_id, entry_id) if entry.kind != "submitted" else ()
        life = _Life(job_id, about, past[0].wall_ns if past else entry.wall_ns)
        self._lives[job_id] = life
        for one in past:  # its ended spans were emitted before: only open spans matter
            self._fold(life, one, recalled=True)
        return life

    def _fold(self, life: _Life, entry: Entry, recalled: bool = False) -> list[Span]:
        kind, at_ns = entry.kind, entry.wall_ns
        ended: list[Span] = []

        def close(*keys: str, failed: str = "") -> None:
            for key in keys:
                if (span := life.opened.pop(key, None)) is not None:
                    ended.append(_span(life, span, at_ns, failed))

        if kind in ("submitted", "pending"):
            close("running", "placed", "checkpoint", *_verdicts(life))
            links = () if recalled else self._links(life.job_id)
            life.opened["queued"] = _Open("queued", at_ns, links=links, attributes=(("reason", entry.text),))
        elif kind == "waits" and "queued" in life.opened:
            queued = life.opened["queued"]
            queued.attributes = (("reason", entry.text),)
            queued.links = queued.links if recalled else self._links(life.job_id) or queued.links
        elif kind in _STARTS:
            close("queued")
            life.opened["placed"] = _Open("placed", at_ns, attributes=(("how", kind), ("why", entry.text)))
        elif kind == "running":
            close("placed", *_MOVES.values())
            life.opened["running"] = _Open("running", at_ns, attributes=(("what", entry.text),))
            life.running_id = _span_id(life, "running", at_ns)
        elif kind == "stopping" and "checkpoint" not in life.opened:
            close("running", "placed", *_verdicts(life))
            life.opened["checkpoint"] = _Open("checkpoint", at_ns, attributes=(("why", entry.text),))
        elif kind in _MOVES and entry.applied:
            life.opened[_MOVES[kind]] = _Open(_MOVES[kind], at_ns, attributes=_attributes(entry))
        elif kind == "verdict":
            life.opened[f"verdict {_verdict_of(entry)}"] = _verdict(entry)
        elif kind == "cleared":
            close(*(key for key in _verdicts(life) if key.removeprefix("verdict ") in entry.text))
        elif kind == "ended":
            failed = "" if entry.text.startswith("completed") else entry.text
            close(*life.opened, failed=failed)
            ended.append(_root(life, at_ns, entry.text, failed))
            self._lives.pop(life.job_id, None)
        if kind not in _SPANNED and len(life.events) < MOST_EVENTS:
            life.events.append(SpanEvent(at_ns, kind, _attributes(entry)))
        return ended

    def _links(self, job_id: str) -> tuple[Link, ...]:
        found = []
        for other in self._held_up_by(job_id)[:MOST_LINKS]:
            if (about := self._about(other)) is not None:
                ids = trace_id(other, about.submitted_ns), root_id(other, about.submitted_ns)
                found.append(Link(*ids, (("gangwatch.job", other), ("gangwatch.name", about.name))))
        return tuple(found)


def trace_id(job_id: str, submitted_ns: int) -> bytes:
    """Return the id of the job's trace, 16 bytes."""
    return blake2b(f"{job_id}/{submitted_ns}".encode(), digest_size=16).digest()


def root_id(job_id: str, submitted_ns: int) -> bytes:
    """Return the id of the job's root span, 8 bytes."""
    return blake2b(f"{job_id}/{submitted_ns}/job".encode(), digest_size=8).digest()


def _root(life: _Life, at_ns: int, text: str, failed: str) -> Span:
    about = life.about
    attributes = (("gangwatch.job", life.job_id), ("gangwatch.name", about.name), *about.attributes, ("end", text))
    return Span(
        trace_id(life.job_id, about.submitted_ns),
        root_id(life.job_id, about.submitted_ns),
        *(
            b"",
            f"job {about.name or life.job_id}",
            life.begun_ns,
            at_ns,
            attributes,
            tuple(life.events),
            (),
            failed,
        ),
    )


def _span_id(life: _Life, name: str, start_ns: int) -> bytes:
    return blake2b(f"{life.job_id}/{life.about.submitted_ns}/{name}/{start_ns}".encode(), digest_size=8).digest()


def _span(life: _Life, span: _Open, end_ns: int, failed: str) -> Span:
    root = root_id(life.job_id, life.about.submitted_ns)
    return Span(
        trace_id(life.job_id, life.about.submitted_ns),
        _span_id(life, span.name, span.start_ns),
        life.running_id if span.parent == "running" and life.running_id else root,
        span.name,
        span.start_ns,
        max(end_ns, span.start_ns),
        (("gangwatch.job", life.job_id), *span.attributes),
        (),
        span.links,
        failed,
    )


def _verdicts(life: _Life) -> list[str]:
    return [key for key in life.opened if key.startswith("verdict ")]


def _verdict_of(entry: Entry) -> str:
    return dict(entry.detail).get("verdict", entry.text)


def _verdict(entry: Entry) -> _Open:
    """Return the open span of a verdict. It starts at the first evidence, and has all evidence as attributes."""
    first, _, _ = dict(entry.detail).get("window_wall_ns", "").partition("..")
    start_ns = int(first) if first.isdecimal() else entry.wall_ns
    return _Open(
        f"verdict: {re.split('[:,] ', entry.text)[0]}", min(start_ns, entry.wall_ns), "running", _attributes(entry)
    )


def _attributes(entry: Entry) -> Attributes:
    return ("text", entry.text), ("applied", str(entry.applied).lower()), *entry.detail
