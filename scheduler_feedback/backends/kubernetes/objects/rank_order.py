"""Order of a gang's pods by rank, from the labels of the controllers that create them. No I/O."""

from __future__ import annotations

import re

from scheduler_feedback.backends.kubernetes.objects.objects import Pod

INDEX_LABELS = (
    "leaderworkerset.sigs.k8s.io/group-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "jobset.sigs.k8s.io/job-global-index",
    "jobset.sigs.k8s.io/job-index",
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
    "training.kubeflow.org/replica-index",
    "ray.io/worker-group-replica-index",
    "ray.io/replica-host-index",
)
"""Labels that number a pod, the most significant first."""

_ROLE_LABELS = (
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/job-role",  # of mpi-operator
    "jobset.sigs.k8s.io/replicatedjob-name",
    "ray.io/node-type",
)
_GROUP_LABEL = "ray.io/group"
_GLOBAL_INDEX = "jobset.sigs.k8s.io/job-global-index"
"""Number of a JobSet's Job in the order of its specification, over all of its roles; JobSet 0.8 and later set it."""

_FIRST_ROLES = ("launcher", "master", "leader", "driver", "chief", "head")


def rank_key(pod: Pod) -> tuple[object, ...]:
    """Return the sort key that orders a gang's pods by rank: launchers first; the others by role, index and name.

    The roles of a JobSet are in the order of its specification, other roles in alphabetical order.
    """
    metadata = pod.metadata
    role = next((value for label in _ROLE_LABELS if (value := metadata.label(label))), "")
    part = "" if metadata.label(_GLOBAL_INDEX) else f"{role}/{metadata.label(_GROUP_LABEL)}"
    indices = tuple(index for label in INDEX_LABELS if (index := whole(metadata.label(label))) is not None)
    natural = tuple((whole(part) is not None, whole(part) or 0, part) for part in _split(metadata.name))
    return (role.lower() not in _FIRST_ROLES, part, indices, natural)


def _split(name: str) -> list[str]:
    return [part for part in re.split(r"([0-9]+)", name) if part]


def whole(text: str) -> int | None:
    """Parse a count below 2^31 from a label or annotation; None for any other text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    value = int(text)
    return value if value < 1 << 31 else None
