"""Record of gangwatch's changes in Slurm that must be undone. The file is written before each change.

Drains by gangwatch can also be recognised by their reason; only this file has a node's original weight.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.core.formats import FORMATS, version_key


class Weighed(msgspec.Struct):
    """Weights of a node before and after a change by gangwatch."""

    own: int
    """The node's weight before our change."""

    ours: int
    """The node's weight after our change."""


class Moving(msgspec.Struct):
    """A job that is being requeued."""

    attempt: int
    """Number of the attempt that the requeue ends."""

    avoided: list[str] = []
    """Nodes to add to the job's --exclude."""

    requeued: bool = False
    kept: str = ""
    """Name of the reservation for the nodes of the job's next attempt; '' if there is none."""

    user: str = ""
    """Owner of the job, to recognise it if Slurm reuses its number; '' in a file of an older release."""

    submitted_seconds: float = 0.0


class Touched(msgspec.Struct):
    """Record of all changes in Slurm that must be undone, and of all operations in progress."""

    drained: dict[str, str] = {}
    """Drained nodes: name of the node -> id of the quarantine (``DesiredNode.episode``) for which gangwatch drained
    it."""

    weighed: dict[str, Weighed] = {}
    """Nodes whose weight gangwatch changed: name of the node -> its weights."""

    excluded: dict[str, list[str]] = {}
    """Job number -> nodes that gangwatch added to the job's --exclude."""

    moving: dict[str, Moving] = {}
    """Jobs that are being requeued, by job number."""

    reserved: dict[str, str] = {}
    """Name of a node -> name of the reservation in which a probe measures the node."""

    minimum_reader: str = ""
    """Oldest release of gangwatch that can undo every change in this record; '' means any release."""


def read(path: Path) -> Touched:
    """Return the record in the file; an empty one if there is no file.

    Raises BackendError if the file cannot be read, or if it needs a newer release.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Touched)
        is_newer = bool(found.minimum_reader) and version_key(found.minimum_reader) > version_key(FORMATS.newest)
    except FileNotFoundError:
        return Touched()
    except (OSError, ValueError) as error:
        raise BackendError(
            f"{path}: {error}; delete the file once no drain or weight by gangwatch is left in Slurm"
        ) from None
    if is_newer:
        raise BackendError(
            f"{path}: reading it needs gangwatch {found.minimum_reader} or newer: it has changes to Slurm that this "
            "release cannot undo. Nothing is changed in Slurm. Install that release and start it again"
        )
    return found


def write(path: Path, touched: Touched) -> None:
    """Save the record to the file durably. If this raises BackendError, make no change in Slurm."""
    temporary = path.with_suffix(".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(touched))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        raise BackendError(f"{path}: {error.strerror}; nothing is changed in Slurm") from error
