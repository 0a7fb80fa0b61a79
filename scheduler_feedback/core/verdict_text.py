"""A verdict as one sentence: every log, story, table, page and report takes its words from here."""

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
    Cause.NEVER_ARRIVED: "not in the collective that its peers wait in",
    Cause.DATA_LOADING: "data loading",
    Cause.CHECKPOINT: "periodic checkpoints",
    Cause.EVALUATION: "periodic evaluation",
    Cause.PAUSES: "pauses of changing ranks",
    Cause.SEQUENCE_LENGTH: "unequal sequence lengths",
    Cause.STAGE_PARTITION: "unequal pipeline stages",
    Cause.STANDING_OFFSET: "constant extra work",
    Cause.WHOLE_JOB: "all ranks alike",
    Cause.UNKNOWN: "unknown cause",
}
"""Each cause as a noun phrase."""

KINDS: dict[Kind, str] = {
    Kind.STRAGGLER: "straggler",
    Kind.INTERFERENCE: "interference",
    Kind.HANG: "hang",
    Kind.HEALTH: "bad health",
    Kind.STAGE_IMBALANCE: "stage imbalance",
    Kind.SEQUENCE_IMBALANCE: "sequence imbalance",
    Kind.WORKLOAD: "workload",
    Kind.UNKNOWN: "slow",
}
"""Each kind as a table's cell names it."""

_LEVELS = {"gpu": "GPU", "nic": "NIC", "link": "link"}

_MOST_SPANS = 4
"""Spans of ranks that a sentence lists; more are counted."""


def sentence(verdict: Verdict) -> str:
    """Return the whole verdict in one sentence without a full stop: who, what, why, what it costs, how sure.

    The part before the first ": " or ", " names the accused and the kind alone.
    """
    return f"{_claim(verdict)}, confidence {verdict.confidence:.2f}"


def short(verdict: Verdict) -> str:
    """Return the verdict for a line that names its job: "rank 2 on node-1: straggler (suspended), 97 % sure"."""
    who = _ranks(verdict) or _device(verdict) or ("the whole job" if verdict.gang and not verdict.node else "")
    where = f"{' on ' if who else ''}{verdict.node}" if verdict.node else ""
    what = f"{KINDS[verdict.kind]} ({cause_of(verdict)}), {100 * verdict.confidence:.0f} % sure"
    return f"{who}{where}{_others(verdict)}: {what}"


def cause_of(verdict: Verdict) -> str:
    """Return the cause as a noun phrase, with the disturbing job where there is one."""
    words = CAUSES[verdict.cause]
    return f"{words}, disturbed by {verdict.aggressor}" if verdict.aggressor else words


def accused(verdict: Verdict) -> str:
    """Return the accused: "rank 2 of j-000001 on node-1", "j-000001" or "node-1"."""
    ranks = _ranks(verdict)
    of = f"{ranks} of {verdict.gang}" if ranks and verdict.gang else ranks or verdict.gang
    if not of:
        return verdict.node or "the cluster"
    return f"{of} on {verdict.node}{_others(verdict)}" if verdict.node else of


def _claim(verdict: Verdict) -> str:
    who, cause, kind = accused(verdict), CAUSES[verdict.cause], verdict.kind
    several = len(verdict.ranks) > 1
    whole = not _ranks(verdict)
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
        more = "has unequal pipeline stages" if whole else "must do more than the other pipeline stages"
        return f"{who} {more} ({cause}){costs}"
    if kind is Kind.SEQUENCE_IMBALANCE:
        more = "gives its ranks unequal work" if whole else "must do more work than the other ranks"
        return f"{who} {more} ({cause}){costs}"
    if kind is Kind.WORKLOAD:
        amount = _amount(verdict.slowdown)
        itself = "itself" if whole else f"{verdict.gang or 'the job'} by {'their' if several else 'its'} own work"
        return f"{who} {'slow' if several else 'slows'} {itself}{' down' if whole else ''}{amount} ({cause})"
    return f"{who} {'are' if several else 'is'} slow ({cause}){costs}"


def _hangs(verdict: Verdict) -> str:
    """How long the job has made no step, and what the culprit's process does: ": no step for 47 s, rank 3's process is
    stopped (SIGSTOP)"."""
    silent = f": no step for {verdict.step_seconds_now:.0f} s" if 1 <= verdict.step_seconds_now < inf else ""
    process = next((item.against for item in verdict.evidence if item.measure == "process_state"), "")
    return f"{silent}{',' if silent else ':'} {process}" if process else silent


def _health(verdict: Verdict) -> str:
    device = _device(verdict)
    if not device:
        return f"{accused(verdict)} {'are' if len(verdict.ranks) > 1 else 'is'} in bad health"
    on = f" on {verdict.node}" if verdict.node else ""
    owner = " of ".join(filter(None, (device, _ranks(verdict), verdict.gang)))
    return f"{owner}{on} is in bad health"


def _device(verdict: Verdict) -> str:
    return f"{_LEVELS.get(verdict.level, 'device')} {verdict.device}" if verdict.device else ""


def _ranks(verdict: Verdict) -> str:
    """The accused ranks: "rank 3", "ranks 4-7", "16 ranks"; '' for the whole gang."""
    if verdict.rank < 0 and verdict.kind not in (Kind.STAGE_IMBALANCE, Kind.STRAGGLER, Kind.HEALTH):
        return ""
    # On one node they are listed; else the node is the first one's alone.
    listed = verdict.ranks if not _others(verdict) else ()
    numbers = sorted({number for number in (verdict.rank, *listed) if number >= 0})
    if not numbers:
        return ""
    spans = spans_of(numbers)
    if len(numbers) > 1 and spans.count(",") >= _MOST_SPANS:
        return f"{len(numbers)} ranks"
    return f"rank{'s' if len(numbers) > 1 else ''} {spans}"


def _others(verdict: Verdict) -> str:
    """Members on other nodes than the one named, which is the first's: " and 2 other ranks"."""
    number = len({*verdict.ranks} - {verdict.rank})
    if not verdict.node or verdict.level == "node" or not number:
        return ""
    return f" and {number} other rank{'s' if number > 1 else ''}"


def _costs(verdict: Verdict, whom: str) -> str:
    amount = _amount(verdict.slowdown)
    return f": {'they slow' if len(verdict.ranks) > 1 else 'it slows'} {whom} down{amount}" if amount else ""


def _amount(slowdown: float) -> str:
    """ " by 52 %", " 3.4 times", or '' where the slowdown is not known or below half a per cent."""
    if not 1.005 <= slowdown < inf:
        return ""
    return f" by {100 * (slowdown - 1):.0f} %" if slowdown < 2 else f" {slowdown:.2g} times"


def spans_of(numbers: Iterable[int]) -> str:
    """Return 0, 1, 2, 5 as "0-2,5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
