"""Record of our changes in Slurm that must be undone, in a file that is written before each change.

Our drains can also be recognised by their reason; the original weight of a node is in this file alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.core.formats import FORMATS, version_key


class Weighed(msgspec.Struct):
    """Weight of a node before our change, and after it."""

    own: int
    """The node's weight before our change."""

    ours: int
    """The weight that we set."""


class Moving(msgspec.Struct):
    """A job that is being requeued."""

    attempt: int
    """The attempt that the requeue ends."""

    avoided: list[str] = []
    """Nodes to add to the job's --exclude."""

    requeued: bool = False
    kept: str = ""
    """Name of the reservation that holds its next nodes; '' for none."""

    user: str = ""
    """Owner, which identifies the job; '' in a file of an older release."""

    submitted_seconds: float = 0.0


class Touched(msgspec.Struct):
    """All changes to undo, and all operations in progress."""

    drained: dict[str, str] = {}
    """Node -> episode for which it was drained."""

    weighed: dict[str, Weighed] = {}
    """Nodes whose weight was changed, by name."""

    excluded: dict[str, list[str]] = {}
    """Job -> nodes that we added to its --exclude."""

    moving: dict[str, Moving] = {}
    """Moves in progress, by job."""

    reserved: dict[str, str] = {}
    """Node -> name of the reservation for its probe."""

    minimum_reader: str = ""
    """First release that can undo everything recorded here; '' for any."""


def read(path: Path) -> Touched:
    """Return the record in the file; an empty one if there is no file.

    Raises BackendError if it cannot be read, or if it needs a newer release.
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
    """Replace the file durably. Raises BackendError if that fails: then nothing may be changed."""
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
