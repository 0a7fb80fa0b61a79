"""``python -m benchmarks.detection.findings --seed 1 --json``: every verdict of a small campaign, judged by the truth.

Runs 110 cells of the grid and 40 GPU-days of healthy jobs, first with step reports and then without, in one process.
The same seed always gives the same list. ``--before FILE`` compares the list with that of an earlier release (``-``
in the table: only there; ``+``: only here), and judges both lists by the same truth.

A finding is right, wrong or neither: an abstention and a verdict of unknown kind accuse nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.schema.verdicts.kinds import BLAMING
from benchmarks.detection import campaign, fleet, healthy, score
from benchmarks.detection.__main__ import parsed
from benchmarks.detection.claims import Claim
from benchmarks.detection.ours import Ours
from benchmarks.detection.score import Truth
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.verdict import Abstention, Cleared, Finding, Verdict
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS

CELLS, HEALTHY_DAYS, SIZES = 110, 40, "16,64,256"


@dataclass(frozen=True, slots=True)
class Row:
    """One finding, as the list contains it."""

    task: str
    """Part of the campaign: 'steps-3', 'healthy-counters-0'."""
    at_ns: int
    """Wall-clock time of the tick."""
    type: str
    """'verdict', 'cleared' or 'abstention'."""
    rest: tuple[Any, ...]
    """Of a verdict: id, kind, job, rank, node, cause, confidence, slowdown, level, device, aggressor and ranks. Of the
    others: id or job, and the reason."""

    @property
    def claim(self) -> Claim:
        """The verdict as the score reads it."""
        name, kind, job, rank, node, cause, confidence, _, level, device, aggressor, _ = self.rest
        at = (self.at_ns - WALL_START_NS) / NS
        return Claim(at, name, job, kind, rank, node, device, level, aggressor, cause, confidence)

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that the verdict names; none if it is about the whole job."""
        return frozenset((self.rest[3], *self.rest[11])) - {-1}


def row_of(task: str, at_ns: int, found: Finding) -> Row:
    """Return a finding as a row."""
    if isinstance(found, Verdict):
        rest = (found.verdict_id, str(found.kind), found.gang, found.rank, found.node, str(found.cause),
                round(found.confidence, 6), round(found.slowdown, 6), found.level, found.device, found.aggressor,
                tuple(found.ranks))  # fmt: skip
        return Row(task, at_ns, "verdict", rest)
    if isinstance(found, Cleared):
        return Row(task, at_ns, "cleared", (found.verdict_id, found.reason))
    assert isinstance(found, Abstention)
    return Row(task, at_ns, "abstention", (found.gang, found.rank, found.reason))


class Recorder(Ours):
    """Our detectors, with a list of everything that they publish."""

    def __init__(self, task: str, rows: list[Row]) -> None:
        super().__init__()
        self._task = task
        self._rows = rows

    def tick(self, telemetry: Telemetry) -> Sequence[Finding]:
        """Run the detectors, and record what they publish."""
        found = super().tick(telemetry)
        self._rows += [row_of(self._task, telemetry.now_ns, one) for one in found]
        return found


@dataclass(slots=True)
class Recording:
    """Findings of a campaign, and the truth about its jobs."""

    rows: list[Row] = field(default_factory=list)
    truths: dict[tuple[str, str], Truth] = field(default_factory=dict)
    """By task and job with a fault. All other jobs are healthy."""

    def is_right(self, row: Row) -> bool | None:
        """Return whether a verdict is right; None if it accuses nothing, or is about a healthy job's own doing, which
        the campaign does not record."""
        if row.type != "verdict" or row.claim.kind == "unknown":
            return None
        truth = self.truths.get((row.task, row.claim.job))
        if truth is not None:
            return score.is_right(row.claim, truth)
        victim = self.truths.get((row.task, row.claim.aggressor))
        if row.claim.kind == "interference" and victim is not None:
            return True  # the job with the fault disturbs its neighbour, too
        return False if row.claim.kind in BLAMING else None


def record(seed: int, cells: int = CELLS, healthy_days: float = HEALTHY_DAYS) -> Recording:
    """Run the campaign of a seed."""
    found = Recording()
    options = parsed(["--quick", "--ours", "--seed", str(seed), "--cells", str(cells), "--sizes", SIZES,
                      "--healthy-days", str(healthy_days)])  # fmt: skip
    for name, reports in (("steps", True), ("counters", False)):
        runs = [replace(cell, reports=reports) for cell in campaign.chosen(options)]
        for number, task in enumerate(fleet.compose(runs, seed, most_cells=8, baselines=False)):
            task_name = f"{name}-{number}"
            for truth, _ in fleet.followed(task, Recorder(task_name, found.rows)):
                found.truths[task_name, truth.staged.cell.name] = truth
        for number, one in enumerate(campaign.health(options)):
            part = replace(one, reports=reports, baselines=False, long=False)
            healthy.run(part, Recorder(f"healthy-{name}-{number}", found.rows))
        print(f"{name}: {len(found.rows)} findings", file=sys.stderr, flush=True)
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """A finding that only one of two lists contains."""

    sign: str
    """'-': only the earlier list; '+': only the later one."""
    row: Row
    right: bool | None
    others: str
    """What the other list says about the same ranks: see ``counterpart``."""
    seconds: float = 0.0
    """How much later the later list reports it, if both do."""


def changes(before: Sequence[Row], recording: Recording) -> Iterator[Change]:
    """Yield the differences between an earlier list and a recording, in order of task and time."""
    after = recording.rows
    only_before, only_after = Counter(before) - Counter(after), Counter(after) - Counter(before)
    signed = [("-", row) for row in only_before.elements()] + [("+", row) for row in only_after.elements()]
    for sign, row in sorted(signed, key=lambda one: (one[1].task, one[1].at_ns, one[0] == "+")):
        others, seconds = counterpart(row, before if sign == "+" else after, recording)
        yield Change(sign, row, recording.is_right(row), others, -seconds if sign == "+" else seconds)


def counterpart(row: Row, other: Sequence[Row], recording: Recording) -> tuple[str, float]:
    """Return how the other list explains the same slowdown, and how many seconds later it reports it.

    'same verdict, other detail': the same id at the same time. 'same accusation, other time': the same kind, cause and
    rank. 'right verdict active': a right one on one of the ranks, reported before or in the same tick and not cleared
    yet. 'wrong verdict active': as before, but wrong. 'right verdict later'. 'none'.
    """
    if row.type == "abstention":
        return "abstention", 0.0
    same_task = [one for one in other if one.task == row.task]
    if row.type == "cleared":
        ends = [one for one in same_task if one.type == "cleared" and one.rest[0] == row.rest[0]]
        if not ends:
            return "none", 0.0
        nearest = min(ends, key=lambda one: abs(one.at_ns - row.at_ns))
        return "also cleared", (nearest.at_ns - row.at_ns) / NS
    verdicts = [one for one in same_task if one.type == "verdict" and one.claim.job == row.claim.job]
    ended = {one.rest[0]: one.at_ns for one in same_task if one.type == "cleared"}

    def rank(one: Row) -> tuple[int, float]:
        same_accusation = (one.claim.kind, one.claim.cause, one.claim.rank) == (
            row.claim.kind, row.claim.cause, row.claim.rank)  # fmt: skip
        overlaps = not one.ranks or not row.ranks or not one.ranks.isdisjoint(row.ranks)
        active = one.at_ns <= row.at_ns < ended.get(one.rest[0], sys.maxsize)
        right = recording.is_right(one)
        if one.rest[0] == row.rest[0] and one.at_ns == row.at_ns:
            place = 0
        elif overlaps and active and right and one.rest[0] != row.rest[0]:
            place = 1
        elif same_accusation:
            place = 2
        elif overlaps and active and right is False:
            place = 3
        elif overlaps and right:
            place = 4
        else:
            place = 5
        return place, abs(one.at_ns - row.at_ns)

    if not verdicts:
        return "none", 0.0
    best = min(verdicts, key=rank)
    place, _ = rank(best)
    return NAMES[place], (best.at_ns - row.at_ns) / NS if place == 2 else 0.0


NAMES = ("same verdict, other detail", "right verdict active", "same accusation, other time", "wrong verdict active",
         "right verdict at another time", "none")  # fmt: skip


def loaded(text: str) -> list[Row]:
    """Return the rows of a list in JSON."""
    return [
        Row(task, at_ns, kind, tuple(tuple(part) if isinstance(part, list) else part for part in rest))
        for task, at_ns, kind, *rest in json.loads(text)["findings"]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record a campaign, and print its findings or what changed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection.findings", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the campaign (default 1)")
    parser.add_argument("--cells", type=int, default=CELLS, help=f"runs (default {CELLS})")
    parser.add_argument("--healthy-days", type=float, default=HEALTHY_DAYS, help=f"default {HEALTHY_DAYS} GPU-days")
    parser.add_argument("--before", type=Path, help="list of an earlier release, to compare with")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    options = parser.parse_args(arguments)
    recording = record(options.seed, options.cells, options.healthy_days)
    if options.json:
        rows = [[row.task, row.at_ns, row.type, *row.rest] for row in recording.rows]
        print(json.dumps({"seed": options.seed, "findings": rows}))
    if options.before is None:
        return 0
    counts: Counter[tuple[str, str, str, str]] = Counter()
    out = sys.stderr if options.json else sys.stdout
    for one in changes(loaded(options.before.read_text()), recording):
        judged = {True: "right", False: "wrong", None: "-"}[one.right]
        about = one.row.claim.kind if one.row.type == "verdict" else one.row.type
        counts[one.sign, about, judged, one.others] += 1
        print(
            one.sign, judged, one.others, f"{one.seconds:+.0f} s", one.row.task, one.row.at_ns, *one.row.rest, file=out
        )
    for (sign, about, judged, others), number in sorted(counts.items()):
        print(f"{number:5} {sign} {about:18} {judged:6} {others}", file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
