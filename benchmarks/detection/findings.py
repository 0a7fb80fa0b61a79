"""``python -m benchmarks.detection.findings --seed 1 --json``: every verdict of some simulated runs, right or wrong.

Simulates 110 runs with faults and 40 GPU-days of healthy jobs, first with step reports and then without. The same seed
always gives the same list. ``--before FILE`` compares the list with that of an earlier release (in the table, ``-``
marks entries of the earlier list only, ``+`` of the new list only).

Abstentions and verdicts of unknown kind accuse nothing and are neither right nor wrong.
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
    """One entry of the list: a verdict, a cleared verdict or an abstention."""

    task: str
    """Part of the campaign: 'steps-3', 'healthy-counters-0'."""
    at_ns: int
    """Wall-clock time of the entry in nanoseconds."""
    type: str
    """'verdict', 'cleared' or 'abstention'."""
    rest: tuple[Any, ...]
    """Details of the entry. For a verdict: id, kind, job, rank, node, cause, confidence, slowdown, level, device,
    aggressor and ranks. Otherwise: the id or job, and the reason."""

    @property
    def claim(self) -> Claim:
        """Verdict as a claim that can be scored."""
        name, kind, job, rank, node, cause, confidence, _, level, device, aggressor, _ = self.rest
        at = (self.at_ns - WALL_START_NS) / NS
        return Claim(at, name, job, kind, rank, node, device, level, aggressor, cause, confidence)

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that the verdict names; empty if it is about the whole job."""
        return frozenset((self.rest[3], *self.rest[11])) - {-1}


def row_of(task: str, at_ns: int, found: Finding) -> Row:
    """Return a detector result as an entry of the list."""
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
    """Our detectors, which also record every result that they publish."""

    def __init__(self, task: str, rows: list[Row]) -> None:
        super().__init__()
        self._task = task
        self._rows = rows

    def tick(self, telemetry: Telemetry) -> Sequence[Finding]:
        """Run the detectors once, and record their results."""
        found = super().tick(telemetry)
        self._rows += [row_of(self._task, telemetry.now_ns, one) for one in found]
        return found


@dataclass(slots=True)
class Recording:
    """Detector results of simulated runs, and the true faults of the jobs."""

    rows: list[Row] = field(default_factory=list)
    truths: dict[tuple[str, str], Truth] = field(default_factory=dict)
    """Truth by (task, job), for jobs with a fault. All other jobs are healthy."""

    def is_right(self, row: Row) -> bool | None:
        """Return whether a verdict is right; None if this cannot be decided.

        It cannot be decided if the verdict accuses nothing, or is about a healthy job's own behaviour, which is not
        recorded.
        """
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
    """Simulate runs with faults and healthy jobs with this seed, and return the results."""
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
    """An entry that is in only one of two compared lists."""

    sign: str
    """'-': only the earlier list contains the entry. '+': only the later list contains it."""
    row: Row
    right: bool | None
    others: str
    """Relation of the other list to this entry: one of the results of ``counterpart``."""
    seconds: float = 0.0
    """Seconds by which the later list reports the slowdown later, if both lists report it."""


def changes(before: Sequence[Row], recording: Recording) -> Iterator[Change]:
    """Yield the entries that are only in the earlier list `before` or only in the new recording, by task and time."""
    after = recording.rows
    only_before, only_after = Counter(before) - Counter(after), Counter(after) - Counter(before)
    signed = [("-", row) for row in only_before.elements()] + [("+", row) for row in only_after.elements()]
    for sign, row in sorted(signed, key=lambda one: (one[1].task, one[1].at_ns, one[0] == "+")):
        others, seconds = counterpart(row, before if sign == "+" else after, recording)
        yield Change(sign, row, recording.is_right(row), others, -seconds if sign == "+" else seconds)


def counterpart(row: Row, other: Sequence[Row], recording: Recording) -> tuple[str, float]:
    """Return how the other list reports the slowdown of this entry, and how many seconds later.

    'same verdict, other detail': the same id at the same time. 'same accusation, other time': the same kind, cause
    and rank. 'right verdict active': a right verdict on one of the ranks, reported before or in the same tick and
    not cleared yet. 'wrong verdict active': as before, but wrong. 'right verdict at another time': a right verdict
    on one of the ranks that was not active then. 'none': none of these.
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
    """Return the entries of a list that is stored as JSON."""
    return [
        Row(task, at_ns, kind, tuple(tuple(part) if isinstance(part, list) else part for part in rest))
        for task, at_ns, kind, *rest in json.loads(text)["findings"]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the verdicts of the runs, and print them or the differences from an earlier list."""
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
