"""Sentences for verdicts. Every log, story, table, page and report takes its wording from this module."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from scheduler_feedback.core.verdict import Cause, Kind, Verdict

CAUSES: dict[Cause, str] = {
    Cause.SUSPENDED: "suspended",
    Cause.CPU_CONTENTION: "CPU contention",
    Cause.COMPUTE: "slow compute",
    Cause.STORAGE: "waiting for storage",
    Cause.THERMAL: "thermal throttling",
    Cause.POWER: "power throttling",
    Cause.GPU: "slow GPU",
    Cause.MEMORY: "GPU memory errors",
    Cause.NVLINK: "NVLink fault",
    Cause.PCIE: "PCIe fault",
    Cause.NIC: "NIC fault",
    Cause.LINK: "network link fault",
    Cause.CONGESTION: "network congestion",
    Cause.HOST_CONTENTION: "another job on the same host",
    Cause.LOST: "not reporting",
    Cause.XID: "XID error",
    Cause.NEVER_ARRIVED: "did not enter the collective that blocks its peers",
    Cause.DATA_LOADING: "data loading",
    Cause.CHECKPOINT: "periodic checkpoints",
    Cause.EVALUATION: "periodic evaluation",
    Cause.PAUSES: "short pauses, on a different rank each time",
    Cause.SEQUENCE_LENGTH: "unequal sequence lengths",
    Cause.STAGE_PARTITION: "unequal pipeline stages",
    Cause.STANDING_OFFSET: "constant extra work",
    Cause.WHOLE_JOB: "all ranks equally slow",
    Cause.UNKNOWN: "unknown cause",
}
"""Wording of each cause, shown in parentheses after the claim."""

KINDS: dict[Kind, str] = {
    Kind.STRAGGLER: "straggler",
    Kind.INTERFERENCE: "interference",
    Kind.HANG: "hang",
    Kind.HEALTH: "unhealthy",
    Kind.STAGE_IMBALANCE: "stage imbalance",
    Kind.SEQUENCE_IMBALANCE: "sequence imbalance",
    Kind.WORKLOAD: "workload",
    Kind.UNKNOWN: "slow",
}
"""Name of each kind, for a table cell."""

_LEVELS = {"gpu": "GPU", "nic": "NIC", "link": "link"}

_MOST_SPANS = 4
"""Maximum number of rank ranges that a sentence lists. With more, it states the number of ranks."""


def sentence(verdict: Verdict) -> str:
    """Return the verdict as one sentence without a full stop: accused, kind, cause, cost and confidence.

    The part before the first ": " or ", " names only the accused and the kind.
    """
    return f"{_claim(verdict)}, confidence {verdict.confidence:.2f}"


def short(verdict: Verdict) -> str:
    """Return the verdict without its job's name: "rank 2 on node-1: straggler (suspended), 97 % sure"."""
    who = _ranks(verdict) or _device(verdict) or ("the whole job" if verdict.gang and not verdict.node else "")
    where = f"{' on ' if who else ''}{verdict.node}" if verdict.node else ""
    what = f"{KINDS[verdict.kind]} ({cause_of(verdict)}), {100 * verdict.confidence:.0f} % sure"
    return f"{who}{where}{_others(verdict)}: {what}"


def cause_of(verdict: Verdict) -> str:
    """Return the cause in words, with the disturbing job if there is one."""
    words = CAUSES[verdict.cause]
    return f"{words}, caused by {verdict.aggressor}" if verdict.aggressor else words


def accused(verdict: Verdict) -> str:
    """Return the name of the accused: "rank 2 of j-000001 on node-1", "j-000001" or "node-1"."""
    ranks = _ranks(verdict)
    of = f"{ranks} of {verdict.gang}" if ranks and verdict.gang else ranks or verdict.gang
    if not of:
        return verdict.node or "the cluster"
    return f"{of} on {verdict.node}{_others(verdict)}" if verdict.node else of


def _claim(verdict: Verdict) -> str:
    who, cause, kind = accused(verdict), CAUSES[verdict.cause], verdict.kind
    several = len(verdict.ranks) > 1
    whole_gang = not _ranks(verdict)
    costs = _costs(verdict, "the job" if verdict.gang else "the jobs on it")
    if kind is Kind.STRAGGLER:
        return f"{who} {'are stragglers' if several else 'is a straggler'} ({cause}){costs}"
    if kind is Kind.HANG:
        return f"{who} {'hang' if several else 'hangs'} ({cause}){_hangs(verdict)}"
    if kind is Kind.HEALTH:
        return f"{_health(verdict)} ({cause}){costs}"
    if kind is Kind.INTERFERENCE:
        shared = f" on {verdict.resource.replace(':', ' ', 1)}" if verdict.resource else ""
        return f"{verdict.aggressor or 'another job'} disturbs {who}{shared} ({cause}){costs}"
    if kind is Kind.STAGE_IMBALANCE:
        have = "have" if several else "has"
        problem = "has unequal pipeline stages" if whole_gang else f"{have} more work than the other pipeline stages"
        return f"{who} {problem} ({cause}){costs}"
    if kind is Kind.SEQUENCE_IMBALANCE:
        have = "have" if several else "has"
        problem = "gives its ranks unequal work" if whole_gang else f"{have} more work than the other ranks"
        return f"{who} {problem} ({cause}){costs}"
    if kind is Kind.WORKLOAD:
        amount = _amount(verdict.slowdown)
        if whole_gang:
            return f"{who} {'slow' if several else 'slows'} itself down{amount} ({cause})"
        slows, own = ("slow", "their") if several else ("slows", "its")
        return f"{who} {slows} {verdict.gang or 'the job'} down{amount} with {own} own work ({cause})"
    return f"{who} {'are' if several else 'is'} slow ({cause}){costs}"


def _hangs(verdict: Verdict) -> str:
    """Return the time without a step and the culprit's process state.

    Example: ": no step for 47 s, rank 3's process is stopped (SIGSTOP)".
    """
    no_step = f": no step for {verdict.step_seconds_now:.0f} s" if 1 <= verdict.step_seconds_now < inf else ""
    process = next((item.against for item in verdict.evidence if item.measure == "process_state"), "")
    return f"{no_step}{',' if no_step else ':'} {process}" if process else no_step


def _health(verdict: Verdict) -> str:
    device = _device(verdict)
    if not device:
        return f"{accused(verdict)} {'are' if len(verdict.ranks) > 1 else 'is'} unhealthy"
    on = f" on {verdict.node}" if verdict.node else ""
    owner = " of ".join(filter(None, (device, _ranks(verdict), verdict.gang)))
    return f"{owner}{on} is unhealthy"


def _device(verdict: Verdict) -> str:
    return f"{_LEVELS.get(verdict.level, 'device')} {verdict.device}" if verdict.device else ""


def _ranks(verdict: Verdict) -> str:
    """Return the accused ranks: "rank 3", "ranks 4-7" or "16 ranks"; '' for the whole gang."""
    if verdict.rank < 0 and verdict.kind not in (Kind.STAGE_IMBALANCE, Kind.STRAGGLER, Kind.HEALTH):
        return ""
    # The named node is the first rank's. _others counts the ranks on other nodes.
    listed = verdict.ranks if not _others(verdict) else ()
    numbers = sorted({number for number in (verdict.rank, *listed) if number >= 0})
    if not numbers:
        return ""
    spans = spans_of(numbers)
    if len(numbers) > 1 and spans.count(",") >= _MOST_SPANS:
        return f"{len(numbers)} ranks"
    return f"rank{'s' if len(numbers) > 1 else ''} {spans}"


def _others(verdict: Verdict) -> str:
    """Return the number of accused ranks that are not on the named node: " and 2 other ranks"."""
    number = len({*verdict.ranks} - {verdict.rank})
    if not verdict.node or verdict.level == "node" or not number:
        return ""
    return f" and {number} other rank{'s' if number > 1 else ''}"


def _costs(verdict: Verdict, whom: str) -> str:
    amount = _amount(verdict.slowdown)
    return f": {'they slow' if len(verdict.ranks) > 1 else 'it slows'} {whom} down{amount}" if amount else ""


def _amount(slowdown: float) -> str:
    """Return " by 52 %" or " by a factor of 3.4"; '' if the slowdown is unknown or below half a percent."""
    if not 1.005 <= slowdown < inf:
        return ""
    return f" by {100 * (slowdown - 1):.0f} %" if slowdown < 2 else f" by a factor of {slowdown:.2g}"


def spans_of(numbers: Iterable[int]) -> str:
    """Return the numbers as ranges: 0, 1, 2, 5 become "0-2,5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
