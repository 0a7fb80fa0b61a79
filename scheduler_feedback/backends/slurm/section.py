"""The section [slurm] of the configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from scheduler_feedback.backends.registry import BackendSection


class SlurmSection(BackendSection, frozen=True, forbid_unknown_fields=True):
    """Monitoring of a Slurm cluster instead of this machine."""

    mode: Literal["advise", "act"] = "advise"
    """'advise' only reports what it would do, and changes no node and no job; 'act' applies it, if controller.mode is
    also 'act'."""
    programs: str | None = None
    """Folder of squeue and the other commands, if they are not on PATH."""
    configuration: str | None = None
    """slurm.conf, if it is not at the default path."""
    agents: str | None = None
    """URL of each node's agent, '{node}' is replaced by its name. None: other means write the agents' records into the
    state folder."""
    text: bool = False
    """Parse the text output of Slurm's commands, whatever the version."""
    timeout_seconds: Annotated[float, Meta(ge=1, le=600)] = 20.0
    """Time after which a command is killed."""
    idle_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """Interval between two polls in normal state."""
    attentive_seconds: Annotated[float, Meta(ge=0.5, le=600)] = 5.0
    """Interval between two polls while there is a problem."""
    partition_share: Annotated[float, Meta(ge=0, le=1)] = 0.25
    """Maximum share of a partition's nodes that gangwatch drains, or moves jobs away from, at a time."""
    requeues_per_hour: Annotated[int, Meta(ge=0, le=100_000)] = 12
    """Maximum rate of moved jobs."""
    changes_per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 30
    """Maximum rate of changes to nodes and pending jobs."""
    comments: bool = True
    """Whether to write verdicts into the comments of nodes, unless an operator has written one."""
