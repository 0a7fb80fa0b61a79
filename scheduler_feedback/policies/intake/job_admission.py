"""Admission of jobs: validity of a specification, queue limits, and the size of the cluster."""

from __future__ import annotations

import difflib
import math
import re
import signal
from collections.abc import Collection

from scheduler_feedback.core.job import JobKind, JobSpec
from scheduler_feedback.core.state import Policy, Sharing, State
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.mig import words as mig_words

# signal(7): these two signals cannot be caught or blocked.
_UNCATCHABLE = frozenset({"SIGKILL", "SIGSTOP"})
_SIGNALS = frozenset(known.name for known in signal.Signals)

DEFAULT_QUEUE = "default"
"""Queue of jobs that name none."""

MOST_NAMES = 20
"""Maximum number of queues that an error message lists."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that no command, variable or path may contain, because execve(2) cannot take them."""


_PROFILE = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(\+[a-z.]+)?")
"""Name of a MIG profile, such as '2g.20gb' or '1g.10gb+me'."""


def admit_check(state: State, spec: JobSpec) -> str | None:
    """Return why this cluster rejects the job, as a sentence for its user; None if it accepts the job."""
    if spec.kind is not JobKind.TRAINING:
        return f"users cannot submit jobs of kind {spec.kind.value}"
    names = [queue.name for queue in state.policy.queues]
    return (
        malformed(spec)
        or unknown_queue(names, spec.queue)
        or mig_words.refused(state, spec)
        or oversized(state, spec)
        or over_limit(state.policy, spec)
    )


def unknown_queue(known: Collection[str], queue: str) -> str | None:
    """Return why a job cannot be submitted to this queue, if the cluster has queues and none has this name; else None.

    Without queues, a queue's name is only a label. Jobs that name no queue are in `default`, which need not be defined.
    """
    if not known or queue in known or queue == DEFAULT_QUEUE:
        return None
    near = difflib.get_close_matches(queue, [*known, DEFAULT_QUEUE], n=1)
    names = sorted(known)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    guess = f" (did you mean {near[0]}?)" if near else ""
    plural = "" if len(names) == 1 else "s"
    return (
        f"queue {queue} does not exist{guess}; this cluster has the queue{plural} {', '.join(names[:MOST_NAMES])}{more}"
    )


def malformed(spec: JobSpec) -> str | None:
    """Return why the specification is invalid on any cluster; None if it is valid."""
    if spec.ranks < 1:
        return f"asks for {spec.ranks} ranks; at least 1 is needed"
    if not spec.command or not spec.command[0]:
        return "the command is empty"
    if spec.checkpoint_signal not in _SIGNALS:
        return f"{spec.checkpoint_signal!r} is not a signal of this system; use for example 'SIGTERM'"
    if spec.checkpoint_signal in _UNCATCHABLE:
        return f"{spec.checkpoint_signal} cannot be caught, so no job can save on it"
    if spec.time_limit_seconds is not None and not (
        math.isfinite(spec.time_limit_seconds) and spec.time_limit_seconds > 0
    ):
        return f"the time limit is {spec.time_limit_seconds:g} s; it must be more than 0"
    for name, seconds in (("grace", spec.grace_seconds), ("restart cost", spec.restart_cost_seconds)):
        if not math.isfinite(seconds) or seconds < 0:
            return f"the {name} is {seconds:g} s; it cannot be less than 0"
    if spec.checkpoint_command:
        if not spec.checkpoint_command[0]:
            return "the checkpoint command is empty"
        if not (math.isfinite(spec.checkpoint_timeout_seconds) and spec.checkpoint_timeout_seconds > 0):
            return f"the checkpoint timeout is {spec.checkpoint_timeout_seconds:g} s; it must be more than 0"
        if not spec.restartable:
            return "a checkpoint command needs restartable: it saves a job that is started again"
    if spec.max_retries < 0:
        return f"the number of retries is {spec.max_retries}; it cannot be less than 0"
    if not 0 <= spec.dataset_gib < math.inf:
        return f"its dataset has {spec.dataset_gib:g} GiB; it must be more than 0"
    if bool(spec.dataset) != bool(spec.dataset_gib):
        return "a dataset needs both its name and its size: dataset and dataset_gib"
    return _invalid_shape(spec) or _invalid_sharing(spec) or _invalid_mig(spec) or _invalid_text(spec)


def _invalid_shape(spec: JobSpec) -> str | None:
    """Return why the shape of the gang or of its array is invalid; None if it is valid."""
    least, most = spec.min_ranks or spec.ranks, spec.max_ranks or spec.ranks
    if least < 1:
        return f"its minimum is {least} ranks; it must be at least 1"
    if not least <= spec.ranks <= most:
        bound = f"fewer than its minimum of {least}" if spec.ranks < least else f"more than its maximum of {most}"
        return f"asks for {spec.ranks} ranks, {bound}"
    if spec.sizes and (why := _invalid_sizes(spec, least, most)):
        return why
    if spec.groups:
        if (total := sum(group.ranks for group in spec.groups)) != spec.ranks:
            return f"its groups have {total} ranks in total, but it asks for {spec.ranks}"
        if any(group.ranks < 1 for group in spec.groups):
            return "each of its groups needs at least 1 rank"
        if least != most and (why := _fixed_groups(spec, least, most)):
            return why
    if spec.array_size < 0 or spec.array_parallel < 0:
        return "the size of an array and its number of parallel jobs cannot be less than 0"
    if spec.preemptible and not spec.restartable:
        return "preemptible needs restartable: a preempted job is started again later"
    for name, seconds in (
        ("checkpoint interval", spec.checkpoint_interval_seconds),
        ("checkpoint cost", spec.checkpoint_cost_seconds),
        ("least run time", spec.min_run_seconds),
        ("reshard cost", spec.reshard_seconds),
    ):
        if seconds is not None and (not math.isfinite(seconds) or seconds < 0):
            return f"the {name} is {seconds:g} s; it cannot be less than 0"
    for gpu_type, speed in spec.throughput.items():
        if not math.isfinite(speed) or speed <= 0:
            return f"the throughput on {gpu_type} is {speed:g}; it must be more than 0"
    return None


def _invalid_sizes(spec: JobSpec, least: int, most: int) -> str | None:
    """Return why the sizes of the elastic gang are invalid; None if they are valid."""
    names = ", ".join(map(str, spec.sizes))
    if list(spec.sizes) != sorted(set(spec.sizes)):
        return f"its sizes are {names}; they must be different numbers in ascending order"
    if spec.ranks not in spec.sizes:
        return f"asks for {spec.ranks} ranks, which is none of its sizes {names}"
    if (least, most) != (spec.sizes[0], spec.sizes[-1]):
        return f"its sizes are {names}, so its minimum is {spec.sizes[0]} and its maximum {spec.sizes[-1]} ranks"
    if spec.groups:
        return "a gang with sizes has no groups: leave out one of them"
    return None


def _invalid_sharing(spec: JobSpec) -> str | None:
    """Return why the job cannot share slots as it asks; None if it can."""
    if spec.opportunistic and not spec.shareable:
        return "opportunistic needs shareable: such a job runs on slots of other jobs"
    if spec.opportunistic and not (spec.restartable and spec.preemptible):
        return "opportunistic needs preemptible: such a job leaves when another job needs its slots"
    if not 0 <= spec.latency_objective_seconds < math.inf:
        return f"its latency objective is {spec.latency_objective_seconds:g} s; it must be 0 s (none) or more"
    if spec.opportunistic and spec.latency_objective_seconds:
        return "an opportunistic job has no latency objective: it leaves when another job needs its slots"
    if spec.shareable and (spec.min_ranks is not None or spec.max_ranks is not None):
        return "a shareable job has a fixed number of ranks: leave out min_ranks and max_ranks"
    if spec.slot_memory_mib < 0:
        return f"its memory per rank is {spec.slot_memory_mib} MiB; it cannot be less than 0"
    if not 0 <= spec.slot_share <= 1:
        return f"its share of a slot is {spec.slot_share:g}; it must be from 0 to 1"
    if any(not math.isfinite(seconds) or seconds < 0 for seconds in spec.stages) or (
        spec.stages and not any(spec.stages)
    ):
        return "the durations of its stages must be 0 s or more, and not all 0"
    return None


def _invalid_mig(spec: JobSpec) -> str | None:
    """Return why the job cannot run in MIG instances as it asks; None if it can, or asks for none."""
    if not spec.mig_profile:
        return None
    asks = f"a job in MIG instances ({spec.mig_profile})"
    if not _PROFILE.fullmatch(spec.mig_profile):
        return f"{spec.mig_profile!r} is not the name of a MIG profile; one is, for example, '2g.20gb'"
    if spec.shareable or spec.slot_share or spec.slot_memory_mib:
        return f"{asks} shares no slots: leave out shareable, slot_share and slot_memory_mib"
    if spec.min_ranks is not None or spec.max_ranks is not None or spec.groups:
        return f"{asks} has a fixed number of ranks that are all alike: leave out min_ranks, max_ranks and groups"
    if spec.required_level is not None or spec.preferred_level is not None or spec.pinned_node is not None:
        return f"{asks} may run on any node: leave out the level and the node"
    return None


def _fixed_groups(spec: JobSpec, least: int, most: int) -> str | None:
    """Return why the gang's groups do not allow another number of ranks; None if they do."""
    first = spec.groups[0]
    if any((one.ranks, one.command, one.same_node) != (first.ranks, first.command, True) for one in spec.groups):
        return "a gang with groups has a fixed size, unless all groups are alike and each is on one node"
    if least % first.ranks or most % first.ranks:
        return f"its minimum of {least} and maximum of {most} ranks must be multiples of the {first.ranks} of a group"
    return None


def _invalid_text(spec: JobSpec) -> str | None:
    """Return which text of the job cannot be passed to a program, with the reason; None if all can."""
    if (
        not spec.environment
        and not spec.checkpoint_command
        and _NO_TEXT.search("".join((*spec.command, spec.working_directory, spec.name))) is None
    ):
        return None
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
            return f"{what} is not valid text"
    for name in spec.environment:
        if not name or "=" in name or "\0" in name:
            return f"{name!r} is not a valid name for an environment variable"
    return None


def over_limit(policy: Policy, spec: JobSpec) -> str | None:
    """Return why the job exceeds the limits of its queue even if that is empty, and what to do; None if it does not."""
    if spec.opportunistic and not policy.sharing.opportunistic:
        return (
            f"is opportunistic, but the rule for shared slots is {policy.sharing.value}: submit it without "
            f"opportunistic, or have the operator set sharing to {Sharing.ANTMAN.value} or {Sharing.MUXFLOW.value}"
        )
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
    """Return why the job would not fit even if all present nodes were free and healthy; None if it would fit."""
    sizes = {node.name: node.slots for node in state.nodes.values() if node.present}
    ranks = f"asks for {spec.ranks} rank{'' if spec.ranks == 1 else 's'}"
    if spec.pinned_node is not None:
        if spec.pinned_node not in sizes:
            return f"{ranks} on node {spec.pinned_node}, which this cluster does not have"
        most = sizes[spec.pinned_node]
        return f"{ranks}; node {spec.pinned_node} can hold at most {most}" if spec.ranks > most else None
    if spec.mig_profile:  # several instances fit on a GPU (``mig.words.refused``)
        return None
    most = sum(sizes.values())
    if (spec.min_ranks or spec.ranks) <= most:
        return None
    if not sizes:
        return f"{ranks}; this cluster has no nodes"
    per_node = set(sizes.values())
    shape = f"{len(sizes)} nodes x {per_node.pop()} slots" if len(per_node) == 1 else f"{len(sizes)} nodes"
    return f"{ranks}; this cluster can hold at most {most} ({shape})"
