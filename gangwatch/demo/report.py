"""Functions that compute the demo's figures and checks from observations, without side effects.

Every figure comes from one of three independent sources: the steps in the agents' streams, the controller's journal,
and the times that the disturbance recorded for its begin and end.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gangwatch.demo.listener import SeenStep


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the checks. The demo fails if a figure exceeds its limit."""

    detect_seconds: float = 15.0
    """From the begin of the disturbance to the verdict."""
    running_again_seconds: float = 10.0
    """From the verdict to the first step of the moved job."""
    after_share: float = 0.10
    """Difference between the job's step time after its move and that before the disturbance (0.1 is 10 %)."""
    head_delay_seconds: float = 0.5
    """Time by which the backfilled job delays the start of the queue's head."""


LOCAL_LIMITS = Limits()
"""Limits of the demo on this machine."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Ground truth of the disturbance: rank, gang, node and time (wall time, ns)."""

    gang: str
    rank: int
    node: str
    began_ns: int
    ended_ns: int


def per_step(steps: Iterable[SeenStep], gang: str, begin_ns: int, end_ns: int) -> list[float]:
    """Return the duration in seconds of each step on its slowest rank, in step order.

    Only steps that ended between `begin_ns` and `end_ns` count.
    """
    slowest: dict[tuple[int, int], float] = {}
    for step in steps:
        if step.gang == gang and begin_ns <= step.ended_wall_ns < end_ns:
            key = (step.attempt, step.step)
            slowest[key] = max(slowest.get(key, 0.0), step.duration_seconds)
    return [duration for _, duration in sorted(slowest.items())]


def typical(durations: Sequence[float]) -> float | None:
    """Return the mean of the durations without the smallest and largest quarter; None if there are none."""
    if not durations:
        return None
    ordered = sorted(durations)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def steps_repeated(steps: Iterable[SeenStep], gang: str) -> int:
    """Return how many steps rank 0 of the gang has repeated after restarts."""
    done = [step.step for step in steps if step.gang == gang and step.rank == 0]
    return len(done) - len(set(done))


def false_verdicts(verdicts: Iterable[dict[str, Any]], truth: Truth | None) -> list[dict[str, Any]]:
    """Return the verdicts that do not match the disturbance; all verdicts if there was no disturbance."""
    return [verdict for verdict in verdicts if not is_true(verdict, truth)]


def is_true(verdict: dict[str, Any], truth: Truth | None) -> bool:
    """Return whether a verdict names the disturbed gang, rank and node, and was reported after the disturbance
    began."""
    return (
        truth is not None
        and verdict["job"] == truth.gang
        and verdict["rank"] == truth.rank
        and verdict["node"] == truth.node
        and verdict["wall_ns"] >= truth.began_ns
    )


def failures(report: dict[str, Any], limits: Limits = LOCAL_LIMITS) -> list[str]:
    """Return a sentence for each failed check of a run with a disturbance; empty if all checks passed."""
    broken: list[str] = []
    verdict = report["verdict"]
    if verdict is None:
        reasons = "; ".join(report["abstentions"]) or "no detector reported anything"
        return [f"no verdict: unknown ({reasons})"]
    if not verdict["correct"]:
        broken.append(f"wrong verdict, it does not match the disturbance: {verdict['sentence']}")
    if report["false_verdicts"]:
        broken.append(f"{report['false_verdicts']} false verdicts")
    broken += _over("seconds from disturbance to verdict", report["seconds_to_detect"], limits.detect_seconds)
    broken += _over(
        "seconds from verdict to the first step after the restart",
        report["seconds_to_running_again"],
        limits.running_again_seconds,
    )
    before, after = report["step_seconds"]["before"], report["step_seconds"]["after"]
    if before is None or after is None:
        broken.append("the step times before and after could not be measured")
    elif abs(after / before - 1) > limits.after_share:
        broken.append(f"the step time after the move is {after / before:.2f} times that before")
    backfilled = report["backfilled"]
    if backfilled is None:
        broken.append("no job was backfilled")
    else:
        broken += _over(
            "delay of the queue's head in seconds", backfilled["head_delay_seconds"], limits.head_delay_seconds
        )
    if report["training"]["weights_match_uninterrupted"] is not True:
        broken.append("the final weights differ from those of an uninterrupted run")
    back = report["reprobation_seconds"]
    if back is None:
        broken.append("the node did not become healthy through probation")
    elif back < 0:
        broken.append(f"the node was healthy again {-back:.1f} s before the disturbance ended")
    return broken


def _over(what: str, value: float | None, bound: float) -> list[str]:
    if value is None:
        return [f"{what}: not observed"]
    return [f"{what}: {value:.1f}, the limit is {bound:g}"] if value > bound else []


def summary(report: dict[str, Any]) -> list[str]:
    """Return the demo's report as text in sentences."""
    lines: list[str] = []
    if report["disturbed"] is None:
        lines.append(
            f"No disturbance: {report['verdicts']} verdicts, {report['migrations']} migrations "
            f"in {report['training']['steps']} steps."
        )
        return lines
    disturbed = report["disturbed"]
    lines.append(f"A separate process slowed rank {disturbed['rank']} of {disturbed['job']} on {disturbed['node']}.")
    verdict = report["verdict"]
    if verdict is None:
        lines.append("No verdict: " + "; ".join(report["abstentions"] or ["no detector reported anything"]) + ".")
    else:
        right = "correct" if verdict["correct"] else "WRONG"
        lines.append(f"Verdict after {report['seconds_to_detect']:.1f} s ({right}): {verdict['sentence']}.")
    if report["seconds_to_running_again"] is not None:
        lines.append(
            f"{report['seconds_to_running_again']:.1f} s after the verdict, the gang was running again on other nodes."
        )
    seconds = report["step_seconds"]
    if all(seconds[when] is not None for when in ("before", "during", "after")):
        lines.append(
            f"A step took {seconds['before'] * 1000:.0f} ms before, {seconds['during'] * 1000:.0f} ms during and "
            f"{seconds['after'] * 1000:.0f} ms after the disturbance."
        )
    if report["backfilled"] is not None:
        delay = report["backfilled"]["head_delay_seconds"]
        how = "how much it delayed the head is unknown" if delay is None else f"it delayed the head by {delay:.2f} s"
        lines.append(f"{report['backfilled']['job']} was backfilled; {how}.")
    training = report["training"]
    same = "equal" if training["weights_match_uninterrupted"] else "DIFFER from"
    lines.append(
        f"The training made {training['steps']} steps and repeated {training['steps_repeated']}; its final weights "
        f"{same} those of an uninterrupted run."
    )
    if report["reprobation_seconds"] is not None:
        lines.append(
            f"The node was healthy again {report['reprobation_seconds']:.1f} s after the disturbance ended, after "
            f"{' and '.join(report['trusted_by_way_of'])}."
        )
    return lines
