"""Labels and annotations of gangwatch that users write on gangs, and mistakes in their names. No I/O."""

from __future__ import annotations

from difflib import get_close_matches

from scheduler_feedback.backends.kubernetes.objects.annotations import DATASET, DATASET_GIB
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.elastic_gangs import LEAST_MEMBERS, MEMBERS, MOST_MEMBERS
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ARRAY,
    ARRAY_PARALLEL,
    ATTEMPT,
    BEYOND,
    CHECKPOINT_INTERVAL,
    JOB,
    NETWORK_CLASS,
    PLACEMENT,
    PREEMPTIBLE,
    PREFERRED_TOPOLOGY,
    QUEUE,
    RANK,
    REQUIRED_TOPOLOGY,
    RESTART_COST,
    RESTARTABLE,
    SLOTS,
    TIME_LIMIT,
    WORKLOAD,
    WORLD_SIZE,
)

EXPECTED_START = f"{OURS}expected-start"
"""Annotation that we write on a pending group: when it is expected to start."""

ANNOTATIONS = (
    ARRAY,
    ARRAY_PARALLEL,
    CHECKPOINT_INTERVAL,
    DATASET,
    DATASET_GIB,
    LEAST_MEMBERS,
    MOST_MEMBERS,
    PREEMPTIBLE,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    RESTARTABLE,
    RESTART_COST,
    TIME_LIMIT,
    WORKLOAD,
)
LABELS = (QUEUE,)
_WRITTEN = frozenset({ATTEMPT, BEYOND, EXPECTED_START, JOB, MEMBERS, NETWORK_CLASS, PLACEMENT, RANK, SLOTS, WORLD_SIZE})


def declared_keys(metadata: Metadata) -> list[str]:
    """Return the names of gangwatch's labels and annotations on the object, except for its own ones."""
    names = (*(metadata.labels or ()), *(metadata.annotations or ()))
    return [name for name in names if name.startswith(OURS) and name not in _WRITTEN]


def without_effect(metadata: Metadata) -> str:
    """Return which label or annotation of gangwatch on a group or pod has no effect, and why; '' if there is none."""
    for kind, names, right, other in (
        ("annotation", metadata.annotations, ANNOTATIONS, LABELS),
        ("label", metadata.labels, LABELS, ANNOTATIONS),
    ):
        for name in names or ():
            if not name.startswith(OURS) or name in right or name in _WRITTEN:
                continue
            if name in other:
                return f"{kind} {name} has no effect: write {'a label' if kind == 'annotation' else 'an annotation'}"
            near = get_close_matches(name, (*right, *other), 1, 0.8)
            advice = f"; did you mean {near[0]}?" if near else ""
            return f"{kind} {name[:80]} is unknown and has no effect{advice}"
    return ""
