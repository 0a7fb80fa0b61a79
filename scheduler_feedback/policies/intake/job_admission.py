"""Admission: what can be accepted as a job at all, and what the cluster could ever hold."""

from __future__ import annotations

import math
import re
import signal

from scheduler_feedback.core.job import JobKind, JobSpec
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.index.queue_shares import Shares

# signal(7): these two can be neither caught nor blocked, so no job can save on them.
_UNCATCHABLE = frozenset({"SIGKILL", "SIGSTOP"})
_SIGNALS = frozenset(known.name for known in signal.Signals)

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What no string that execve(2) is given may have: its end, and what is no character."""


def admit_check(state: State, spec: JobSpec) -> str | None:
    """Why the job cannot be accepted on this cluster, in words for its user; None where it can."""
    if spec.kind is not JobKind.TRAINING:
        return f"a job of kind {spec.kind.value} is not for users to submit"
    return malformed(spec) or oversized(state, spec) or over_limit(state.policy, spec)


def malformed(spec: JobSpec) -> str | None:
    """What is wrong with the specification on any cluster, or None."""
    if spec.ranks < 1:
        return f"asks for {spec.ranks} ranks; at least 1 is needed"
    if not spec.command or not spec.command[0]:
        return "the command is empty"
    if spec.checkpoint_signal not in _SIGNALS:
        return f"{spec.checkpoint_signal!r} is no signal of this system; an example is 'SIGTERM'"
    if spec.checkpoint_signal in _UNCATCHABLE:
        return f"{spec.checkpoint_signal} cannot be caught, so no job can save on it"
    if spec.time_limit_seconds is not None and not (
        math.isfinite(spec.time_limit_seconds) and spec.time_limit_seconds > 0
    ):
        return f"a time limit of {spec.time_limit_seconds:g} s; it must be more than 0"
    for name, seconds in (("grace", spec.grace_seconds), ("restart cost", spec.restart_cost_seconds)):
        if not math.isfinite(seconds) or seconds < 0:
            return f"a {name} of {seconds:g} s; it cannot be less than 0"
    if spec.checkpoint_command:
        if not spec.checkpoint_command[0]:
            return "the checkpoint command is empty"
        if not (math.isfinite(spec.checkpoint_timeout_seconds) and spec.checkpoint_timeout_seconds > 0):
            return f"{spec.checkpoint_timeout_seconds:g} s for the checkpoint command; it must be more than 0"
        if not spec.restartable:
            return "it is saved in order to be started again: a checkpoint command needs restartable"
    if spec.max_retries < 0:
        return f"{spec.max_retries} retries; there cannot be fewer than 0"
    return _misshapen(spec) or _unspeakable(spec)


def _misshapen(spec: JobSpec) -> str | None:
    """What can't be in the shape of the gang or of its array, or None."""
    least, most = spec.min_ranks or spec.ranks, spec.max_ranks or spec.ranks
    if not 1 <= least <= spec.ranks <= most:
        return f"asks for {spec.ranks} ranks, at least {least} and at most {most}; that is no range around it"
    if spec.groups:
        if (together := sum(group.ranks for group in spec.groups)) != spec.ranks:
            return f"its groups have {together} ranks together, and it asks for {spec.ranks}"
        if any(group.ranks < 1 for group in spec.groups):
            return "each of its groups needs at least 1 rank"
        if least != most:
            return "a gang with groups has a fixed size"
    if spec.array_size < 0 or spec.array_parallel < 0:
        return "an array cannot have fewer than 0 members"
    if spec.preemptible and not spec.restartable:
        return "it can be stopped for others only if it can be started again: preemptible needs restartable"
    for name, seconds in (
        ("checkpoint interval", spec.checkpoint_interval_seconds),
        ("checkpoint cost", spec.checkpoint_cost_seconds),
        ("least run time", spec.min_run_seconds),
    ):
        if seconds is not None and (not math.isfinite(seconds) or seconds < 0):
            return f"a {name} of {seconds:g} s; it cannot be less than 0"
    for gpu_type, speed in spec.throughput.items():
        if not math.isfinite(speed) or speed <= 0:
            return f"a throughput of {speed:g} on {gpu_type}; it must be more than 0"
    return None


def _unspeakable(spec: JobSpec) -> str | None:
    """What execve(2) cannot be given, or None: NUL ends a string there, '=' ends the name of a variable."""
    if (
        not spec.environment
        and not spec.checkpoint_command
        and _NO_TEXT.search("".join((*spec.command, spec.working_directory, spec.name))) is None
    ):
        return None  # as nearly always
    for what, text in (
        *((f"argument {index} of the command", argument) for index, argument in enumerate(spec.command)),
        *((f"argument {index} of the checkpoint command", text) for index, text in enumerate(spec.checkpoint_command)),
        *((f"the value of the variable {name}", value) for name, value in spec.environment.items()),
        ("the working directory", spec.working_directory),
        ("the name", spec.name),
    ):
        if "\0" in text:
            return f"{what} contains a NUL character"
        if any("\ud800" <= character <= "\udfff" for character in text):
            return f"{what} is no valid text"
    for name in spec.environment:
        if not name or "=" in name or "\0" in name:
            return f"{name!r} is no name for an environment variable"
    return None


def over_limit(policy: Policy, spec: JobSpec) -> str | None:
    """Why the job would not fit into its queue even while the queue holds nothing, and what to do; or None."""
    least = spec.min_ranks or spec.ranks
    found = Shares(policy).never(spec.queue, least) if policy.queues else None
    if found is None:
        return None
    name, most = found
    inside = "" if name == spec.queue else f", and queue {spec.queue} is part of it"
    smaller = f"ask for at most {most} rank{'' if most == 1 else 's'}, or " if most else ""
    return (
        f"asks for {least} rank{'' if least == 1 else 's'}; queue {name} may hold at most {most} "
        f"slot{'' if most == 1 else 's'}{inside}: {smaller}use another queue, or have the limit of {name} raised"
    )


def oversized(state: State, spec: JobSpec) -> str | None:
    """Why the job would not fit even if every node that is present were free and healthy, or None."""
    sizes = {node.name: node.slots for node in state.nodes.values() if node.present}
    ranks = f"asks for {spec.ranks} rank{'' if spec.ranks == 1 else 's'}"
    if spec.pinned_node is not None:
        if spec.pinned_node not in sizes:
            return f"{ranks} on node {spec.pinned_node}, which this cluster does not have"
        most = sizes[spec.pinned_node]
        return f"{ranks}; node {spec.pinned_node} can hold at most {most}" if spec.ranks > most else None
    most = sum(sizes.values())
    if (spec.min_ranks or spec.ranks) <= most:
        return None
    if not sizes:
        return f"{ranks}; this cluster has no nodes"
    per_node = set(sizes.values())
    shape = f"{len(sizes)} nodes x {per_node.pop()} slots" if len(per_node) == 1 else f"{len(sizes)} nodes"
    return f"{ranks}; this cluster can hold at most {most} ({shape})"
