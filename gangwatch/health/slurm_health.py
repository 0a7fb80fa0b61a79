"""Check of Slurm's commands for `gangwatch check`, if this controller monitors a Slurm cluster."""

from __future__ import annotations

import asyncio

from agent.schema.errors import GangwatchError
from gangwatch.health.machine import Finding
from scheduler_feedback.backends.slurm.parsing.refusals import sentence
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Jobs, Nodes
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_commands import Commands

NAME = "slurm"

_NAMED = 5
"""Maximum number of unreadable Slurm records that a finding names."""


def findings(section: SlurmSection) -> tuple[Finding, ...]:
    """Check whether Slurm responds and its records can be parsed.

    Return the findings; empty if Slurm is not enabled.
    """
    if not section.enabled:
        return ()
    commands = Commands(section.programs, section.configuration, section.timeout_seconds, section.text)
    try:
        nodes, jobs = asyncio.run(_listings(commands))
    except GangwatchError as error:
        return (Finding(NAME, "missing", str(error), "see docs/how-to/slurm.md, When something is wrong"),)
    refused = (*nodes.refused, *jobs.refused)
    found = f"{len(nodes.records)} nodes, {len(jobs.records) + len(jobs.unread)} jobs"
    if not refused:
        return (Finding(NAME, "found", f"{found}, all records readable"),)
    remedy = (
        "rename the job, or report the record's format as a bug; gangwatch ignores the job or node of such a record"
    )
    shown = [Finding(NAME, "limited", f"{found}; {len(refused)} records can't be read", remedy)]
    shown += [Finding(f"{NAME}: {one.kind} {one.key}", "limited", sentence(one), remedy) for one in refused[:_NAMED]]
    return tuple(shown)


async def _listings(commands: Commands) -> tuple[Nodes, Jobs]:
    return await commands.nodes(), await commands.jobs()
