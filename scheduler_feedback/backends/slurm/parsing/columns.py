"""Parser of jobs in columns of fixed width: ``squeue --Format=jobid:12,username:128,...``. No I/O.

A user's text cannot be mistaken for a value of Slurm here. squeue cuts each value at its column's width and pads
it with blanks, both counted in bytes (``_print_str`` in squeue's print.c, the same in every release from
17.11 to 26.05). So a record has a fixed length and a field a fixed offset, whatever bytes a user puts into a job's name
or comment: line ends, words that look like Slurm's own, bytes that are not UTF-8. ``scontrol show job`` has none of
these properties: it prints names, comments, folders and accounts among its own words without quoting.

Three values are not in this listing, because some releases of squeue have no column of fixed width for them. ``places``
parses nodes and excluded nodes from a second listing; parse_text.py parses GPUs from the output of scontrol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.parsing.gres import wanted
from scheduler_feedback.backends.slurm.parsing.hostlist import expand
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Jobs, Refused, SlurmJob, base_state

MOST_COMMENT_BYTES = 1024
"""slurmctld refuses longer comments (22.05: job_mgr.c, _test_job_desc_fields)."""

COLUMNS: tuple[tuple[str, int], ...] = (
    ("jobid", 12),
    ("username", 128),
    ("state", 20),
    ("restartcnt", 12),
    ("requeue", 6),
    ("batchflag", 6),
    ("prioritylong", 12),
    ("numnodes", 12),
    ("numtasks", 12),
    ("partition", 512),
    ("timelimit", 20),
    ("starttime", 24),
    ("eligibletime", 24),
    ("submittime", 24),
    ("reason", 64),
    ("tres-per-job", 160),
    ("tres-per-node", 160),
    ("tres-per-socket", 160),
    ("tres-per-task", 160),
    ("name", 256),
    ("comment", MOST_COMMENT_BYTES + 1),
    ("exit_code", 12),
)
"""Columns and their widths in bytes; longer values are cut. The exit code is last, because Slurm 26.05 prints nothing
for a job without an exit code."""

FORMAT = ",".join(f"{name}:{width}" for name, width in COLUMNS)

PLACES_FORMAT = "%A|%N|%x"
"""Columns of the listing of places: job number, nodes, excluded nodes. Slurm writes these values itself: users cannot
put other text into them."""

_PLACES = re.compile(rb"([0-9]{1,10})\|([^|\n]*)\|([^|\n]*)")
_STARTS: dict[str, tuple[int, int]] = {}
_at = 0
for _name, _width in COLUMNS:
    _STARTS[_name] = _at, _at + _width
    _at += _width
RECORD_BYTES = _at
"""Length of one record, without the line end."""

_WITHOUT_CODE = RECORD_BYTES - COLUMNS[-1][1]
_NONE = frozenset({"", "(null)", "N/A", "None", "n/a", "Unknown", "NOT_SET", "UNLIMITED", "INVALID"})
_SPAN = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{1,2})")
_CODE = re.compile(r"([0-9]{1,10})(?::([0-9]{1,3}))?")
_UNSET = 1 << 31
"""Counts of this value or more are Slurm's special values NO_VAL and INFINITE (slurm.h)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes of a job, and its excluded nodes."""

    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def records(output: bytes) -> list[bytes]:
    """Split the output into records of RECORD_BYTES. Raises BackendError if it does not consist of such records."""
    found: list[bytes] = []
    at = 0
    while at < len(output):
        # The text of the last column never begins with a line end, so this byte shows whether the column is there.
        end = at + (_WITHOUT_CODE if output[at + _WITHOUT_CODE : at + _WITHOUT_CODE + 1] == b"\n" else RECORD_BYTES)
        if output[end : end + 1] != b"\n":
            raise BackendError(
                f"squeue --Format: record {len(found) + 1} does not have {RECORD_BYTES} bytes; "
                "this release prints columns in another format: please report it"
            )
        found.append(output[at:end].ljust(RECORD_BYTES))
        at = end + 1
    return found


def places(output: bytes) -> dict[int, Place]:
    """Return the nodes and excluded nodes of each job, by job number.

    A job with a malformed line, or with two different lines, is omitted.
    """
    found: dict[int, Place] = {}
    twice: set[int] = set()
    for line in output.split(b"\n"):
        if (match := _PLACES.fullmatch(line)) is None:
            continue
        number = int(match[1])
        try:
            place = Place(expand(_text(match[2])), expand(_text(match[3])))
        except ValueError:
            twice.add(number)
            continue
        if found.setdefault(number, place) != place:
            twice.add(number)
    return {number: place for number, place in found.items() if number not in twice}


def jobs(output: bytes, where: Mapping[int, Place]) -> Jobs:
    """Return the jobs by number, still without GPUs. Raises BackendError if no record can be read.

    Slurm may print a job more than once (a job pending in several partitions): the first record counts.
    """
    found: dict[int, SlurmJob] = {}
    refused: list[Refused] = []
    for at, record in enumerate(records(output), 1):
        fields = _Fields(record, f"squeue --Format: record {at}")
        try:
            job = fields.job()
        except BackendError as error:
            number = fields.text("jobid")
            known = int(number) if number.isascii() and number.isdecimal() else None
            refused.append(Refused(fields.where, str(error).removeprefix(fields.where), "job", known))
            continue
        place = where.get(job.number)
        if place is None and (job.runs or job.waits):
            refused.append(Refused(fields.where, ": no readable line of its nodes", "job", job.number))
            continue
        nodes = place.nodes if place is not None and job.state != "PENDING" else ()
        excluded = place.excluded if place is not None else ()
        found.setdefault(job.number, replace(job, nodes=nodes, gpus=tuple(() for _ in nodes), excluded=excluded))
    if refused and not found:
        raise BackendError(f"{refused[0].where}{refused[0].why}")
    return Jobs(found, tuple(refused))


class _Fields:
    """Fields of one record. Errors are BackendErrors that name the record and the column."""

    def __init__(self, record: bytes, where: str) -> None:
        self._record, self.where = record, where

    def job(self) -> SlurmJob:
        state = self.text("state")
        if not state:
            raise self.wrong("state", "the value is missing")
        comment = self.text("comment")
        if len(self._raw("comment").rstrip(b" ")) > MOST_COMMENT_BYTES:
            raise self.wrong("comment", f"longer than {MOST_COMMENT_BYTES} bytes, which slurmctld does not allow")
        nodes = self.count("numnodes", 1)
        return SlurmJob(
            number=self.count("jobid"),
            state=base_state((state,)),
            completing=state == "COMPLETING",
            restarts=self.count("restartcnt", 0),
            comment="" if comment in ("(null)", "N/A") else comment,
            batch=self.text("batchflag") == "1",
            requeue=self.text("requeue") == "1",
            user=self.text("username"),
            name=self.text("name"),
            partition=self.text("partition"),
            time_limit_seconds=self.span("timelimit"),
            started_seconds=self.seconds("starttime") if state != "PENDING" else 0.0,
            begins_seconds=self.seconds("eligibletime"),
            submitted_seconds=self.seconds("submittime"),
            least_nodes=nodes,
            held=self.text("prioritylong") == "0" or state in ("REQUEUE_HOLD", "SPECIAL_EXIT"),
            exit_code=self.exit_code(),
            reason=self.word("reason"),
            gpus_wanted=wanted(
                self.word("tres-per-job"),
                self.word("tres-per-node"),
                self.word("tres-per-socket"),
                self.word("tres-per-task"),
                nodes,
                self.count("numtasks", 1),
            ),
        )

    def wrong(self, column: str, why: str) -> BackendError:
        return BackendError(f"{self.where}: {column}: {why}")

    def _raw(self, column: str) -> bytes:
        begin, end = _STARTS[column]
        return self._record[begin:end]

    def text(self, column: str) -> str:
        """Return the column's text without padding. Bytes that are not UTF-8 are replaced, also those of a cut
        character.
        """
        return _text(self._raw(column).rstrip(b" "))

    def word(self, column: str) -> str:
        text = self.text(column)
        return "" if text in _NONE else text

    def count(self, column: str, default: int | None = None) -> int:
        text = self.word(column)
        if not text and default is not None:
            return default
        if not (text.isascii() and text.isdecimal()):
            raise self.wrong(column, f"{text[:40]!r} is not a count")
        value = int(text)
        if value >= _UNSET:
            if default is None:
                raise self.wrong(column, f"{text[:40]!r} is not a count")
            return default
        return value

    def seconds(self, column: str) -> float:
        """Return the column's instant in seconds since the epoch; 0 for none. Slurm's commands run with TZ=UTC."""
        text = self.word(column)
        if not text:
            return 0.0
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong(column, f"{text[:40]!r} is not a date and time") from None
        return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()

    def span(self, column: str) -> float | None:
        """Return the column's time limit in seconds; None for no limit, the partition's limit, or more than a year."""
        text = self.word(column)
        if text in ("", "Partition_Limit"):
            return None
        found = _SPAN.fullmatch(text)
        if found is None:
            raise self.wrong(column, f"{text[:40]!r} is not [days-][hours:]minutes:seconds")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    def exit_code(self) -> int | None:
        """Return the job's exit code as a shell shows it, from a status of wait(2), or from 'code:signal' of later
        releases.
        """
        text = self.word("exit_code")
        if not text:
            return None
        found = _CODE.fullmatch(text)
        if found is None:
            raise self.wrong("exit_code", f"{text[:40]!r} is not an exit code")
        if found[2] is not None:
            return 128 + int(found[2]) if int(found[2]) else int(found[1])
        status = int(found[1])
        return None if status >= _UNSET else 128 + (status & 127) if status & 127 else status >> 8


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
