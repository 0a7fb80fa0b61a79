"""Sentences for verdicts, from the templates in agent/schema/verdicts. Every log, page and report uses them."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from agent.schema.verdicts.causes import CAUSES
from agent.schema.verdicts.kinds import KINDS
from scheduler_feedback.core.verdict import Verdict

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
    what = f"{KINDS[verdict.kind].wording.label} ({cause_of(verdict)}), {100 * verdict.confidence:.0f} % sure"
    return f"{who}{where}{_others(verdict)}: {what}"


def cause_of(verdict: Verdict) -> str:
    """Return the cause in words, with the aggressor if there is one."""
    words = CAUSES[verdict.cause].words
    return f"{words}, caused by {verdict.aggressor}" if verdict.aggressor else words


def accused(verdict: Verdict) -> str:
    """Return the name of the accused: "rank 2 of j-000001 on node-1", "j-000001" or "node-1"."""
    ranks = _ranks(verdict)
    of = f"{ranks} of {verdict.gang}" if ranks and verdict.gang else ranks or verdict.gang
    if not of:
        return verdict.node or "the cluster"
    return f"{of} on {verdict.node}{_others(verdict)}" if verdict.node else of


def _claim(verdict: Verdict) -> str:
    wording = KINDS[verdict.kind].wording
    device = _device(verdict) if wording.names_device else ""
    template = wording.one if device or len(verdict.ranks) < 2 else wording.several
    if not _ranks(verdict):
        template = wording.job
    return template.format(
        who=_device_of(verdict, device) if device else accused(verdict),
        cause=CAUSES[verdict.cause].words,
        job=verdict.gang or "the job",
        aggressor=verdict.aggressor or "another job",
        shared=f" on {verdict.resource.replace(':', ' ', 1)}" if verdict.resource else "",
        slowdown=_amount(verdict.slowdown),
        it_slows=_costs(verdict, "it slows"),
        they_slow=_costs(verdict, "they slow"),
        progress=_hangs(verdict),
    )


def _hangs(verdict: Verdict) -> str:
    """Return the time without a step, the culprit's process state, and where the ranks are blocked.

    Example: ": no step for 47 s, rank 3's process is stopped (SIGSTOP); ranks 0-2 wait in allreduce number 9 of group
    0".
    """
    no_step = f": no step for {verdict.step_seconds_now:.0f} s" if 1 <= verdict.step_seconds_now < inf else ""
    found = {item.measure: item.against for item in verdict.evidence}
    words = "; ".join(found[measure] for measure in ("process_state", "blocked_at") if measure in found)
    return f"{no_step}{',' if no_step else ':'} {words}" if words else no_step


def _device_of(verdict: Verdict, device: str) -> str:
    """Return the device with its owner and node: "GPU GPU-1 of rank 2 of j-000001 on node-1"."""
    owner = " of ".join(filter(None, (device, _ranks(verdict), verdict.gang)))
    return f"{owner} on {verdict.node}" if verdict.node else owner


def _device(verdict: Verdict) -> str:
    return f"{_LEVELS.get(verdict.level, 'device')} {verdict.device}" if verdict.device else ""


def _ranks(verdict: Verdict) -> str:
    """Return the accused ranks: "rank 3", "ranks 4-7" or "16 ranks"; '' for the whole gang."""
    if verdict.rank < 0 and not KINDS[verdict.kind].wording.lists_ranks:
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


def _costs(verdict: Verdict, slows: str) -> str:
    amount = _amount(verdict.slowdown)
    return f": {slows} {'the job' if verdict.gang else 'the jobs on it'} down{amount}" if amount else ""


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
