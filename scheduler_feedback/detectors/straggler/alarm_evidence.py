"""Evidence for or against an alarm: each measured value, with its reference and its weight."""

from __future__ import annotations

from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import CAUSE_SHARE, LEAST_FAULTS, Attribution
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.straggler.alarm_case import Case, Measured


def evidence_of(case: Case, measured: Measured) -> tuple[Evidence, ...]:
    """Return the evidence of an alarm in a form that a person can verify, whether or not the alarm becomes a
    verdict."""
    facts = (*_of_steps(case, measured), *_of_counters(measured, case.shared_machine))
    if not measured.from_start or case.baseline.role_known:
        return facts
    if measured.role_outlier:
        against = "no healthy history of this rank, but its peers have the same work, and no other rank is as slow"
        if case.shown is not Cause.UNKNOWN:
            against = f"no healthy history of this rank, but its counters differ from those of its peers: {case.shown}"
        return (*facts, Evidence("healthy_state_known", 0.0, 1.0, "", against, log_odds.ROLE_OUTLIER))
    weight = log_odds.ROLE_LAID_OUT if case.where.layout_known else log_odds.ROLE_UNKNOWN
    against = "no healthy history of this rank; its share of the work may be larger"
    return (*facts, Evidence("healthy_state_known", 0.0, 1.0, "", against, weight))


def _of_steps(case: Case, measured: Measured) -> list[Evidence]:
    """Return the evidence from step times and waits."""
    steps = case.baseline.steps
    against_own = f"its mean over {steps} warm-up steps, times {measured.drift:.3g} for the drift of its peers"
    against_peers = "its peers, which should take as long from the start"
    usual_spread = float(case.baseline.own_spread[case.rank])
    return [
        Evidence(
            "compute_seconds_a_step",
            float(measured.compute),
            float(measured.expected),
            "seconds",
            against_peers if measured.from_start else against_own,
            log_odds.of_residual(measured.sigmas),
        ),
        Evidence(
            "wait_seconds_a_step",
            float(measured.wait),
            measured.others_wait,
            "seconds",
            "median of the other ranks, which wait for the slowest rank",
            log_odds.of_waits(measured.extra_wait, measured.excess),
        ),
        Evidence(
            "step_seconds",
            measured.step_seconds,
            measured.without,
            "seconds",
            "the same steps without " + _left_out(measured),
            log_odds.of_slowdown(measured.slowdown),
        ),
        Evidence(
            "seconds_a_step_explained",
            measured.gain,
            measured.next_gain,
            "seconds",
            "seconds explained by the next best other rank",
            log_odds.of_margin(measured.gain, measured.next_gain),
        ),
        Evidence(
            "slow_windows",
            float(measured.slow_windows),
            float(measured.windows),
            "windows",
            "all windows since the alarm began",
            log_odds.of_persistence(measured.slow_windows, measured.windows, not measured.from_start),
        ),
        Evidence(
            "unrest_of_others",  # the published name of the other ranks' spread
            case.others_spread,
            usual_spread,
            "log seconds",
            "the spread during warm-up",
            log_odds.of_spread(case.others_spread, usual_spread),
        ),
    ]


def _left_out(measured: Measured) -> str:
    ranks = "the node's ranks" if measured.of_node else "this rank"
    return f"{ranks}, ignoring the other outliers" if measured.of_other_nodes and measured.few else ranks


def _of_counters(measured: Measured, shared_machine: bool) -> list[Evidence]:
    """Return the evidence from process counters: the parts of the suspect's excess time."""
    split = measured.split
    ratio = log_odds.bounded(log_odds.of_cause(split, shared_machine, measured.from_start))
    if not split.known:
        return [Evidence("process_counters", 0.0, 1.0, "", "its process counters, which are missing", ratio)]
    parts = (
        ("off_processor_seconds_a_step", split.rest),
        ("runqueue_seconds_a_step", split.queue),
        ("processor_seconds_a_step", split.processor),
        ("block_io_seconds_a_step", split.storage),
    )
    against = "its total excess over its healthy state, less the growth of its peers"
    return [
        *(Evidence(measure, part, split.excess, "seconds", against) for measure, part in parts),
        Evidence(
            "stopped_samples_share",
            split.stopped_share,
            0.0,
            "ratio",
            "processes that are not stopped",
        ),
        *_of_faults(split),
        Evidence(
            "largest_part_of_excess",
            max(split.share(part) for _, part in parts),
            CAUSE_SHARE,
            "ratio",
            f"the least share that identifies a cause: {split.cause}",
            ratio,
        ),
    ]


def _of_faults(split: Attribution) -> tuple[Evidence, ...]:
    """Return the rank's extra major page faults; nothing if they are few or unknown."""
    if not split.faults >= LEAST_FAULTS:
        return ()
    against = "the least number of extra major page faults that can be a cause"
    return (Evidence("major_page_faults_a_step", split.faults, LEAST_FAULTS, "", against),)
