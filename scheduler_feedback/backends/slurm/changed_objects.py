"""What of Slurm we have changed and have to put back: kept in a file that is written before anything is changed.

A drain of ours is known by its reason as well; a weight was somebody's once, and nobody but this file knows whose.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.core.formats import FORMATS, version_key


class Weighed(msgspec.Struct):
    """own: the node's weight before us. ours: what we set it to."""

    own: int
    ours: int


class Moving(msgspec.Struct):
    """A job that is being requeued. attempt: the one that it leaves. avoided: nodes for its exclusion.

    kept: the reservation that keeps its next place meanwhile, '' for none. user, submitted_seconds: who the job is; ''
    in a file of an older release.
    """

    attempt: int
    avoided: list[str] = []
    requeued: bool = False
    kept: str = ""
    user: str = ""
    submitted_seconds: float = 0.0


class Touched(msgspec.Struct):
    """drained: node -> episode for which it was drained. weighed: by node. excluded: job -> nodes that we added to its
    --exclude. moving: by job. reserved: node -> name of the reservation for its probe.
    minimum_reader: the first release that knows of everything that is to be put back; '' for any.
    """

    drained: dict[str, str] = {}
    weighed: dict[str, Weighed] = {}
    excluded: dict[str, list[str]] = {}
    moving: dict[str, Moving] = {}
    reserved: dict[str, str] = {}
    minimum_reader: str = ""


def read(path: Path) -> Touched:
    """What the file holds; nothing where there is none.

    Raises BackendError where it can't be read, or where only a newer release knows what is to be put back.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Touched)
        is_newer = bool(found.minimum_reader) and version_key(found.minimum_reader) > version_key(FORMATS.newest)
    except FileNotFoundError:
        return Touched()
    except (OSError, ValueError) as error:
        raise BackendError(f"{path}: {error}; remove it once no drain or weight of ours is left in Slurm") from None
    if is_newer:
        raise BackendError(
            f"{path}: reading it needs gangwatch {found.minimum_reader} or newer: it has changes to Slurm that this "
            "release can't put back. Nothing is changed in Slurm. Install that release and start it again"
        )
    return found


def write(path: Path, touched: Touched) -> None:
    """Replace the file, durably. Raises BackendError where that fails: then nothing may be changed."""
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
