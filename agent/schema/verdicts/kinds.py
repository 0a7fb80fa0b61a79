"""Table of verdict kinds. A new kind is a new row in this table; the tests name the texts that the row does not have.

The row of a kind decides how policies, alert rules, the page, the commands and the benchmarks treat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from agent.schema.verdicts.causes import Cause

Severity = Literal["critical", "warning", "info"]

Tone = Literal["bad", "doubtful", "quiet"]
"""Colour of a verdict on the page and in the terminal: red, yellow, or none."""


class Kind(StrEnum):
    """Type of problem that a verdict reports. The texts are metric labels and journal values."""

    STRAGGLER = "straggler"
    INTERFERENCE = "interference"
    HANG = "hang"
    HEALTH = "health"
    STAGE_IMBALANCE = "stage_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    WORKLOAD = "workload"
    UNKNOWN = "unknown"


class Accused(StrEnum):
    """What a verdict accuses: hardware (a node or device), another job, the job itself, or nothing."""

    HARDWARE = "a node or device"  # the node becomes suspect or is quarantined
    OTHER_JOB = "another job"
    OWN_JOB = "the job itself"
    NOTHING = "nothing"  # the verdict has no confidence


class Response(StrEnum):
    """Strongest action of the controller on the running job after a verdict. Costs, policy and mode may forbid it."""

    MOVE = "move it off the node"
    SEPARATE = "move it, or the other job, away"
    RESTART = "restart it"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Wording:
    """Sentences for verdicts of a kind.

    Templates use {who} (the accused), {cause}, {job}, {aggressor}, {shared} (" on uplink leaf-1"), {slowdown}
    (" by 8 %"), {it_slows} and {they_slow} (": it slows the job down by 8 %"), and {progress} (": no step for 47 s").
    """

    label: str
    """Name of the kind of verdict, for a table cell."""
    one: str
    """Sentence about a verdict that accuses one rank, device or node."""
    several: str
    """Sentence about a verdict that accuses several ranks."""
    job: str
    """Sentence about a verdict that accuses the whole job, or a node without naming a rank."""
    lists_ranks: bool
    """Whether a verdict that accuses no single rank lists its `ranks`. If False, the sentence is about
    the whole job."""
    names_device: bool
    """Whether the sentence names the accused device, if the verdict has one."""

    @property
    def states_slowdown(self) -> bool:
        """Return whether the sentence in ``one`` contains the slowdown of the job.

        In a verdict of a hang, the slowdown is the hang's duration divided by a step time.
        """
        return "{slowdown}" in self.one or "{it_slows}" in self.one


@dataclass(frozen=True, slots=True)
class VerdictAlert:
    """An alert about verdicts of a kind. dashboards/rules/alerts.py defines its texts."""

    name: str
    """Name of the alert and of its runbook."""
    only: Cause | None = None
    """The only cause of verdicts that this alert covers; None: the alert covers all causes."""
    without: Cause | None = None
    """A cause of verdicts that this alert does not cover; None: no cause is excluded."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """Properties of one kind of verdict."""

    meaning: str
    """Sentence that says what a verdict of this kind means."""
    accused: Accused
    """What a verdict of this kind accuses: hardware, another job, the job itself, or nothing."""
    response: Response
    """Strongest response to a verdict of this kind, for the running job."""
    severity: Severity
    """Severity of the alerts about verdicts of this kind."""
    alerts: tuple[VerdictAlert, ...]
    """Alerts about verdicts of this kind. It is empty only if the kind accuses neither a node nor another job."""
    runbooks: tuple[str, ...]
    """Pages in docs/runbooks: the pages of the alerts, or a page for this kind."""
    operator: str
    """Sentence that says what an operator should do."""
    wording: Wording
    """Sentences about a verdict of this kind, on the page and in the CLI."""
    tone: Tone
    """Colour in which an active verdict of this kind is shown."""


KINDS: dict[Kind, KindRow] = {
    Kind.STRAGGLER: KindRow(
        meaning="A rank is slower than its peers for its own reason, and delays the job.",
        accused=Accused.HARDWARE,
        response=Response.MOVE,
        severity="warning",
        alerts=(VerdictAlert("GangwatchStraggler"),),
        runbooks=("GangwatchStraggler",),
        operator="Repair the cause on the node. If the job was not moved, `gangwatch node quarantine NODE` keeps new "
        "jobs off it.",
        wording=Wording(
            label="straggler",
            one="{who} is a straggler ({cause}){it_slows}",
            several="{who} are stragglers ({cause}){they_slow}",
            job="{who} is a straggler ({cause}){it_slows}",
            lists_ranks=True,
            names_device=False,
        ),
        tone="bad",
    ),
    Kind.INTERFERENCE: KindRow(
        meaning="Another job, which the verdict names, slows the job down through a shared resource.",
        accused=Accused.OTHER_JOB,
        response=Response.SEPARATE,
        severity="warning",
        alerts=(
            VerdictAlert("GangwatchInterference", without=Cause.CONGESTION),
            VerdictAlert("GangwatchCongestion", only=Cause.CONGESTION),
        ),
        runbooks=("GangwatchInterference", "GangwatchCongestion"),
        operator="If neither job was moved, cancel or move the less important one. No device is broken.",
        wording=Wording(
            label="interference",
            one="{aggressor} disturbs {who}{shared} ({cause}){it_slows}",
            several="{aggressor} disturbs {who}{shared} ({cause}){it_slows}",
            job="{aggressor} disturbs {who}{shared} ({cause}){it_slows}",
            lists_ranks=False,
            names_device=False,
        ),
        tone="bad",
    ),
    Kind.HANG: KindRow(
        meaning="The job makes no steps: a rank does not enter a step or collective, or the transport does not "
        "deliver.",
        accused=Accused.HARDWARE,
        response=Response.RESTART,
        severity="critical",
        alerts=(VerdictAlert("GangwatchHang"),),
        runbooks=("GangwatchHang",),
        operator="Save the stack of the accused rank. If the job was not restarted, requeue it, or restart it with "
        "`gangwatch verdict confirm VERDICT`.",
        wording=Wording(
            label="hang",
            one="{who} hangs ({cause}){progress}",
            several="{who} hang ({cause}){progress}",
            job="{who} hangs ({cause}){progress}",
            lists_ranks=False,
            names_device=False,
        ),
        tone="bad",
    ),
    Kind.HEALTH: KindRow(
        meaning="A device's own counters or events report a fault. The job may not be slow yet.",
        accused=Accused.HARDWARE,
        response=Response.NONE,
        severity="warning",
        alerts=(VerdictAlert("GangwatchDeviceAccused"),),
        runbooks=("GangwatchDeviceAccused",),
        operator="Repair or reset the device when its jobs have ended. `gangwatch node quarantine NODE` keeps new jobs "
        "off the node.",
        wording=Wording(
            label="unhealthy",
            one="{who} is unhealthy ({cause}){it_slows}",
            several="{who} are unhealthy ({cause}){they_slow}",
            job="{who} is unhealthy ({cause}){it_slows}",
            lists_ranks=True,
            names_device=True,
        ),
        tone="bad",
    ),
    Kind.STAGE_IMBALANCE: KindRow(
        meaning="A pipeline stage of the job has more work than the others.",
        accused=Accused.OWN_JOB,
        response=Response.NONE,
        severity="info",
        alerts=(),
        runbooks=("SlowJob",),
        operator="Report it to the job's user, who distributes the layers over the stages by their time.",
        wording=Wording(
            label="stage imbalance",
            one="{who} has more work than the other pipeline stages ({cause}){it_slows}",
            several="{who} have more work than the other pipeline stages ({cause}){they_slow}",
            job="{who} has unequal pipeline stages ({cause}){it_slows}",
            lists_ranks=True,
            names_device=False,
        ),
        tone="doubtful",
    ),
    Kind.SEQUENCE_IMBALANCE: KindRow(
        meaning="The ranks have unequal work, and another rank has the most in each step.",
        accused=Accused.OWN_JOB,
        response=Response.NONE,
        severity="info",
        alerts=(),
        runbooks=("SlowJob",),
        operator="Report it to the job's user, who balances the batches by number of tokens.",
        wording=Wording(
            label="sequence imbalance",
            one="{who} has more work than the other ranks ({cause}){it_slows}",
            several="{who} have more work than the other ranks ({cause}){they_slow}",
            job="{who} gives its ranks unequal work ({cause}){it_slows}",
            lists_ranks=False,
            names_device=False,
        ),
        tone="doubtful",
    ),
    Kind.WORKLOAD: KindRow(
        meaning="The job slows itself down, for example with checkpoints. No hardware is at fault.",
        accused=Accused.OWN_JOB,
        response=Response.NONE,
        severity="info",
        alerts=(),
        runbooks=("SlowJob",),
        operator="Report it to the job's user, with the cause.",
        wording=Wording(
            label="workload",
            one="{who} slows {job} down{slowdown} with its own work ({cause})",
            several="{who} slow {job} down{slowdown} with their own work ({cause})",
            job="{who} slows itself down{slowdown} ({cause})",
            lists_ranks=False,
            names_device=False,
        ),
        tone="doubtful",
    ),
    Kind.UNKNOWN: KindRow(
        meaning="The job or a rank is slow, and the detectors could not determine the cause, or not yet.",
        accused=Accused.NOTHING,
        response=Response.NONE,
        severity="info",
        alerts=(),
        runbooks=("SlowJob",),
        operator="Read the evidence, and compare the ranks on the dashboard *Straggler forensics*.",
        wording=Wording(
            label="slow",
            one="{who} is slow ({cause}){it_slows}",
            several="{who} are slow ({cause}){they_slow}",
            job="{who} is slow ({cause}){it_slows}",
            lists_ranks=False,
            names_device=False,
        ),
        tone="quiet",
    ),
}
"""Properties of each kind of verdict."""


def row_of(kind: str) -> KindRow:
    """Return the properties of the kind with this name. A kind of a newer release gets the properties of `unknown`."""
    return KINDS[Kind(kind)] if kind in tuple(Kind) else KINDS[Kind.UNKNOWN]


def _kinds(value: Accused | Response) -> frozenset[Kind]:
    return frozenset(kind for kind, row in KINDS.items() if value in (row.accused, row.response))


ACCUSING = _kinds(Accused.HARDWARE)
"""Kinds of verdicts that accuse a node or device. No other kind leads to a quarantine."""

OF_OWN_JOB = _kinds(Accused.OWN_JOB)
"""Kinds of verdicts that accuse the job itself. They lead to no action."""

BLAMING = ACCUSING | _kinds(Accused.OTHER_JOB)
"""Kinds of verdicts that accuse a node, a device or another job."""

SEPARATING = _kinds(Response.SEPARATE)
"""Kinds of verdicts for which a running job may be moved away from another job."""

MOVING = SEPARATING | _kinds(Response.MOVE)
"""Kinds of verdicts for which a running job may be moved."""

RESTARTING = _kinds(Response.RESTART)
"""Kinds of verdicts for which a running job may be restarted, on the same slots if no others are free."""
