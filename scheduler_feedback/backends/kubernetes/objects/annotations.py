"""Values of annotations that users write on gangs. Each function raises BackendError for a malformed value. No I/O."""

from __future__ import annotations

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata
from scheduler_feedback.backends.kubernetes.objects.rank_order import whole
from scheduler_feedback.core.cluster import Level

DATASET = "gangwatch.io/dataset"
DATASET_GIB = "gangwatch.io/dataset-gib"


def flag_of(metadata: Metadata, key: str) -> bool:
    """Return the annotation `key`: true or false, by default false."""
    text = metadata.annotation(key, "false")
    if text not in ("true", "false"):
        raise BackendError(f"annotation {key}: {text[:40]!r} is neither 'true' nor 'false'")
    return text == "true"


def count_of(metadata: Metadata, key: str) -> int:
    """Return the annotation `key`, a number of gangs, by default 0."""
    text = metadata.annotation(key, "0")
    count = whole(text)
    if count is None:
        raise BackendError(f"annotation {key}: {text[:40]!r} is not a number of gangs")
    return count


def seconds_of(metadata: Metadata, key: str, default: float | None) -> float | None:
    """Return the annotation `key` in seconds."""
    text = metadata.annotation(key)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise BackendError(f"annotation {key}: {text[:40]!r} is not a number of seconds")
    return seconds


def dataset_of(metadata: Metadata) -> tuple[str, float]:
    """Return the name of the gang's dataset and its size in GiB; ('', 0) without one."""
    name, text = metadata.annotation(DATASET), metadata.annotation(DATASET_GIB)
    if not name and not text:
        return "", 0.0
    try:
        gib = float(text)
    except ValueError:
        gib = 0.0
    if not name or not 0 < gib < 1e9:
        raise BackendError(f"annotations {DATASET} and {DATASET_GIB}: {name[:40]!r} with {text[:40]!r} GiB; set both")
    return name, gib


def level_of(metadata: Metadata, key: str) -> Level | None:
    """Return the annotation `key`, a level of the network; None if it is missing."""
    text = metadata.annotation(key)
    if not text:
        return None
    try:
        return Level(text)
    except ValueError:
        levels = ", ".join(level.value for level in Level)
        raise BackendError(f"annotation {key}: {text[:40]!r} is not one of {levels}") from None
