"""Files of an attempt, the only communication between the controller and the shims.

::

    STATE/jobs/JOB/ATTEMPT/          created atomically (by rename) with attempt.json in it
        attempt.json                 input of the shims
        decision                     'go' or 'abort', the reason on the next line; the first writer decides
        stop.json                    {signal, grace_seconds, why, reason}; the first writer decides; has
                                     {command, timeout_seconds} under checkpoint if the job is saved first
        saved.json                   {exit_code, seconds, reason} of that command
        shim-NODE.log                messages of the shim: empty unless something is wrong
        NODE/                        created atomically with shim.json in it: only this shim serves the node
            shim.json                {pid, start_time, boot_id, cgroup}
            ready.json | refused.json    it can start its ranks | {reason}
            start-RANK.json          {rank, pid, start_time, slot, wall_ns}
            exit-RANK.json           {rank, exit_code, wall_ns}; exit_code null if unknown
            ended.json               {wall_ns, started, signalled, reason}; no process is left here; written last
    STATE/jobs/JOB/logs/ATTEMPT/rank-RANK.log, checkpoint.log
    STATE/ranks/NODE/JOB.ATTEMPT.RANK.json   the process of each rank, for the node's agent; until the attempt ends

Every file is written atomically, once, and never changed. Standard library only: see local_processes.py.
"""

from __future__ import annotations

import errno
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ATTEMPT = "attempt.json"
DECISION = "decision"
STOP = "stop.json"
SAVED = "saved.json"
SHIM = "shim.json"
READY = "ready.json"
REFUSED = "refused.json"
ENDED = "ended.json"

GO = "go"
ABORT = "abort"
_MODE = 0o600  # an attempt's environment may contain the submitter's secrets


def _temporary(folder: str) -> str:
    """Return a random path for a temporary file in the folder, different from files that remain after a crash."""
    return f"{folder}/.{os.urandom(8).hex()}.new"


def _write(path: str, content: bytes, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


def write(path: str, value: dict[str, Any], durable: bool = False) -> None:
    """Write the record atomically. durable: sync it to disk before this returns. Raises OSError."""
    folder = os.path.dirname(path)
    temporary = _temporary(folder)
    try:
        _write(temporary, encode(value), durable)
        os.rename(temporary, path)
    except OSError:
        _discard(temporary)
        raise
    if durable:
        _sync_folder(folder)


def claim(path: str, content: bytes) -> bool:
    """Create the file if it does not exist. Of several concurrent calls, only one returns True. Raises OSError."""
    folder = os.path.dirname(path)
    temporary = _temporary(folder)
    try:
        _write(temporary, content, durable=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        _discard(temporary)
    _sync_folder(folder)
    return True


def create_folder(path: str, files: dict[str, bytes], durable: bool = False) -> bool:
    """Create a folder with these files (at least one) atomically; False if it exists. Raises OSError.

    It uses rename(2), which replaces an empty folder and fails for a folder with files. These folders are never empty.
    """
    parent = os.path.dirname(path)
    temporary = _temporary(parent)
    os.mkdir(temporary, 0o700)
    try:
        for name, content in files.items():
            _write(f"{temporary}/{name}", content, durable)
        if durable:
            _sync_folder(temporary)
        os.rename(temporary, path)
    except OSError as error:
        for name in files:
            _discard(f"{temporary}/{name}")
        os.rmdir(temporary)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # rename(2) may return either
            return False
        raise
    if durable:
        _sync_folder(parent)
    return True


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def read(path: str) -> dict[str, Any] | None:
    """Return the record in the file; None if there is no file, or if its content is incomplete after a crash."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def decide(folder: str, decision: str, reason: str) -> bool:
    """Write the decision 'go' or 'abort', unless there already is one. Return whether this call wrote it."""
    return claim(f"{folder}/{DECISION}", decision_text(decision, reason))


def decision_text(decision: str, reason: str) -> bytes:
    return f"{decision}\n{reason}\n".encode(errors="replace")


def decision(folder: str) -> tuple[str, str] | None:
    """Return ('go' or 'abort', reason); None if nothing is decided yet. Unknown content means 'abort'."""
    try:
        with open(f"{folder}/{DECISION}", encoding="utf-8", errors="replace") as file:
            word, _, reason = file.read().partition("\n")
    except FileNotFoundError:
        return None
    return (GO if word == GO else ABORT), reason.strip()


def start_record(rank: int) -> str:
    return f"start-{rank}.json"


def exit_record(rank: int) -> str:
    return f"exit-{rank}.json"


def shim_log(folder: str, node: str) -> str:
    return f"{folder}/shim-{node}.log"


def rank_file(state_folder: str, node: str, job_id: str, attempt: int, rank: int) -> str:
    return f"{state_folder}/ranks/{node}/{job_id}.{attempt}.{rank}.json"


def log_file(state_folder: str, job_id: str, attempt: int, rank: int) -> str:
    return f"{state_folder}/jobs/{job_id}/logs/{attempt}/rank-{rank}.log"


def checkpoint_log(state_folder: str, job_id: str, attempt: int) -> str:
    return f"{state_folder}/jobs/{job_id}/logs/{attempt}/checkpoint.log"
