"""The section [slurm] of the configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from scheduler_feedback.backends.registry import BackendSection


class SlurmSection(BackendSection, frozen=True, forbid_unknown_fields=True):
    """Section of the configuration file for monitoring a Slurm cluster instead of this machine."""

    mode: Literal["advise", "act"] = "advise"
    """'advise' only reports what it would do, and changes no node and no job; 'act' applies it, if controller.mode is
    also 'act'."""
    programs: str | None = None
    """Folder of squeue and the other commands, if they are not on PATH."""
    configuration: str | None = None
    """Path of slurm.conf, if it is not the default path."""
    agents: str | None = None
    """URL of each node's agent, '{node}' is replaced by its name. None: other means write the agents' records into the
    state folder."""
    text: bool = False
    """Parse the text output of Slurm's commands, whatever the version."""
    timeout_seconds: Annotated[float, Meta(ge=1, le=600)] = 20.0
    """Seconds after which a command of Slurm is killed."""
    idle_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """Seconds between two scans of Slurm while all nodes are healthy."""
    attentive_seconds: Annotated[float, Meta(ge=0.5, le=600)] = 5.0
    """Seconds between two scans while a node is not healthy or a job is being moved."""
    partition_share: Annotated[float, Meta(ge=0, le=1)] = 0.25
    """Maximum share of a partition's nodes that gangwatch drains, or moves jobs away from, at a time."""
    requeues_per_hour: Annotated[int, Meta(ge=0, le=100_000)] = 12
    """Maximum number of jobs that gangwatch moves in one hour."""
    changes_per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 30
    """Maximum number of changes that gangwatch makes to nodes and pending jobs in one minute."""
    comments: bool = True
    """Whether to write verdicts into the comments of nodes, unless an operator has written one."""
