"""The demonstration's report: what was asked, computed from what was seen. Pure.

Every figure comes from one of three places that do not know of one another: the steps in the agents' streams, the
controller's journal, and the disturbance's own record of when it began and ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gangwatch.demo.listener import SeenStep

DETECT_WITHIN_SECONDS = 15.0
RUNNING_AGAIN_WITHIN_SECONDS = 10.0
AFTER_WITHIN = 0.10
HEAD_DELAY_WITHIN_SECONDS = 0.5
"""The bounds that the demonstration promises (issue 2, 'Shown by', 1)."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What the disturbance really did: which rank of which gang, on which node, and when (wall time, ns)."""

    gang: str
    rank: int
    node: str
    began_ns: int
    ended_ns: int


def per_step(steps: Iterable[SeenStep], gang: str, begin_ns: int, end_ns: int) -> list[float]:
    """Duration of each of the gang's steps that ended in the window: the slowest rank's, in seconds, in step order."""
    slowest: dict[tuple[int, int], float] = {}
    for step in steps:
        if step.gang == gang and begin_ns <= step.ended_wall_ns < end_ns:
            key = (step.attempt, step.step)
            slowest[key] = max(slowest.get(key, 0.0), step.duration_seconds)
    return [duration for _, duration in sorted(slowest.items())]


def typical(durations: Sequence[float]) -> float | None:
    """Mean of the middle half: what a step takes, whatever else the machine did in up to a quarter of the time."""
    if not durations:
        return None
    ordered = sorted(durations)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def steps_repeated(steps: Iterable[SeenStep], gang: str) -> int:
    """How many steps were done more than once, over all attempts (by rank 0)."""
    done = [step.step for step in steps if step.gang == gang and step.rank == 0]
    return len(done) - len(set(done))


def false_verdicts(verdicts: Iterable[dict[str, Any]], truth: Truth | None) -> list[dict[str, Any]]:
    """Verdicts that name anything but the truth; all of them where nothing was disturbed."""
    return [verdict for verdict in verdicts if not is_true(verdict, truth)]


def is_true(verdict: dict[str, Any], truth: Truth | None) -> bool:
    """Whether a verdict names the gang, the rank and the node that were really disturbed, at a time it could know."""
    return (
        truth is not None
        and verdict["job"] == truth.gang
        and verdict["rank"] == truth.rank
        and verdict["node"] == truth.node
        and verdict["wall_ns"] >= truth.began_ns
    )


def failures(report: dict[str, Any]) -> list[str]:
    """What in a report of the disturbed run breaks a promise, in words; empty where all are kept."""
    broken: list[str] = []
    verdict = report["verdict"]
    if verdict is None:
        reasons = "; ".join(report["abstentions"]) or "no detector said anything"
        return [f"no verdict: unknown ({reasons})"]
    if not verdict["correct"]:
        broken.append(f"a verdict is wrong, nothing of the kind was disturbed: {verdict['sentence']}")
    if report["false_verdicts"]:
        broken.append(f"{report['false_verdicts']} false verdicts")
    broken += _over("seconds from disturbance to verdict", report["seconds_to_detect"], DETECT_WITHIN_SECONDS)
    broken += _over(
        "seconds from verdict to the first step after the restart",
        report["seconds_to_running_again"],
        RUNNING_AGAIN_WITHIN_SECONDS,
    )
    before, after = report["step_seconds"]["before"], report["step_seconds"]["after"]
    if before is None or after is None:
        broken.append("step times before and after could not be measured")
    elif abs(after / before - 1) > AFTER_WITHIN:
        broken.append(f"step time after is {after / before:.2f} of before")
    backfilled = report["backfilled"]
    if backfilled is None:
        broken.append("nothing was backfilled")
    else:
        broken += _over(
            "seconds that the head was delayed", backfilled["head_delay_seconds"], HEAD_DELAY_WITHIN_SECONDS
        )
    if report["training"]["weights_match_uninterrupted"] is not True:
        broken.append("the final weights differ from those of an uninterrupted run")
    back = report["reprobation_seconds"]
    if back is None:
        broken.append("the node did not come back through probation")
    elif back < 0:
        broken.append(f"the node was trusted again {-back:.1f} s before the disturbance had ended")
    return broken


def _over(what: str, value: float | None, bound: float) -> list[str]:
    if value is None:
        return [f"{what}: not seen"]
    return [f"{what}: {value:.1f}, at most {bound:g}"] if value > bound else []


def summary(report: dict[str, Any]) -> list[str]:
    """The report in sentences, for a person."""
    lines: list[str] = []
    if report["disturbed"] is None:
        lines.append(
            f"Nothing was disturbed: {report['verdicts']} verdicts, {report['migrations']} migrations "
            f"in {report['training']['steps']} steps."
        )
        return lines
    disturbed = report["disturbed"]
    lines.append(
        f"Rank {disturbed['rank']} of {disturbed['job']}, on {disturbed['node']}, was slowed by a process unknown "
        "to gangwatch."
    )
    verdict = report["verdict"]
    if verdict is None:
        lines.append(
            "No verdict was reached: " + "; ".join(report["abstentions"] or ["no detector said anything"]) + "."
        )
    else:
        right = "which is right" if verdict["correct"] else "which is WRONG"
        lines.append(f"After {report['seconds_to_detect']:.1f} s the verdict was: {verdict['sentence']}, {right}.")
    if report["seconds_to_running_again"] is not None:
        lines.append(f"The gang ran again, elsewhere, {report['seconds_to_running_again']:.1f} s after the verdict.")
    seconds = report["step_seconds"]
    if all(seconds[when] is not None for when in ("before", "during", "after")):
        lines.append(
            f"A step took {seconds['before'] * 1000:.0f} ms before, {seconds['during'] * 1000:.0f} ms during, "
            f"{seconds['after'] * 1000:.0f} ms after."
        )
    if report["backfilled"] is not None:
        lines.append(
            f"{report['backfilled']['job']} ran in the hole meanwhile and delayed the head of the queue by "
            f"{report['backfilled']['head_delay_seconds']:.2f} s."
        )
    training = report["training"]
    same = "equal" if training["weights_match_uninterrupted"] else "DIFFER from"
    lines.append(
        f"{training['steps']} steps, {training['steps_repeated']} of them done twice; the final weights {same} those "
        "of an uninterrupted run."
    )
    if report["reprobation_seconds"] is not None:
        lines.append(
            f"The node was trusted again {report['reprobation_seconds']:.1f} s after the disturbance ended, by way of "
            f"{' and '.join(report['trusted_by_way_of'])}."
        )
    return lines
