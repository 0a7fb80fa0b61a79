"""Support bundle: one archive with the files for a bug report, without secrets.

Secrets are removed in two steps. First, fields that may contain secrets are removed (core/disclosure.py), such as a
job's environment and secret configuration keys. Then redaction.py searches every part for known secrets, and for
text in the format of a secret, such as private keys and URLs with passwords.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import flatten
from gangwatch.configuration.in_force import read_in_force
from gangwatch.connection import Trust, connect
from gangwatch.state_folder import StateFolder
from gangwatch.support.redaction import SECRET_NAME, longest_first, of_file, of_specification, redacted
from scheduler_feedback.core.disclosure import REMOVED, for_bundle, rule_of, shared
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Policy
from scheduler_feedback.journal.store import JournalRow, Reader

_NO_SECRET_FILES = frozenset({"ca_file", "cert_file", "topology_file"})
"""Configuration keys of files that contain no secrets. Names from these files stay readable in a bundle."""

_LOG_BYTES = 1024 * 1024
"""Maximum number of bytes that a bundle contains from the end of each log."""


def pack(state: StateFolder, target: Path, cycles: int = 1000) -> list[str]:
    """Write the archive and return the names of its parts.

    Raises GangwatchError if the file exists or can't be written.
    """
    rows, complaints = _journal_end(state, cycles)
    secrets = known_secrets(state, rows)
    parts = {name: redacted(text, secrets) for name, text in _parts(state, rows, complaints)}
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                content = text.encode(errors="replace")
                member = tarfile.TarInfo(f"gangwatch-support/{name}")
                member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
                archive.addfile(member, io.BytesIO(content))
    except FileExistsError:
        raise GangwatchError(f"{target}: the file already exists and is not overwritten") from None
    except OSError as error:
        raise GangwatchError(f"{target}: {error.strerror}") from error
    return list(parts)


# --- secrets ---------------------------------------------------------------------------------------------------------


def known_secrets(state: StateFolder, rows: Iterable[JournalRow]) -> list[str]:
    """Return all secrets in the token, the configuration and the jobs of this state folder, the longest first."""
    found = {_text(state.token_file).strip()}
    for key, value in _in_force(state).items():
        if not isinstance(value, str) or not value:
            continue
        if SECRET_NAME.search(key.rpartition(".")[2]) and not key.endswith("_file"):
            found.add(value)
        if key.endswith(("_file", "web_config")) and key.rpartition(".")[2] not in _NO_SECRET_FILES:
            found.update(of_file(_text(Path(value))))
    for spec in _specifications(state, rows):
        found.update(of_specification(spec))
    return longest_first(found)


def _specifications(state: StateFolder, rows: Iterable[JournalRow]) -> Iterator[JobSpec]:
    """Yield the specifications of the jobs in these journal rows and in the latest state of the journal.

    The state is included because a log may mention a job that is older than the rows.
    """
    for row in rows:
        for recorded in (*row.events, *row.actions):
            if isinstance(spec := getattr(recorded, "spec", None), JobSpec):
                yield spec
    path = state.path / "store.sqlite"
    try:
        loaded = Reader(path).load() if path.exists() else None
    except GangwatchError:
        return  # the bundle reports the unreadable journal in another part
    if loaded is not None and loaded.state is not None:
        yield from (job.spec for job in loaded.state.jobs.values())


def _without_secrets(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration (values by key) without secret values and without argument lists of commands."""
    kept: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        if section == "policy":
            kept[key] = shared(value, rule_of(Policy, name))
        elif isinstance(value, str) and value and SECRET_NAME.search(name) and not name.endswith("_file"):
            kept[key] = REMOVED
        else:
            kept[key] = value
    return kept


# --- parts -----------------------------------------------------------------------------------------------------------


def _parts(state: StateFolder, rows: Sequence[JournalRow], complaints: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "versions.json", json.dumps(_versions(state), indent=2)
    yield "configuration.json", json.dumps(_without_secrets(_in_force(state)), indent=2, default=str)
    lines = (json.dumps(_row(row), ensure_ascii=False, default=str) for row in rows)
    yield "journal.jsonl", "".join(f"{line}\n" for line in lines)
    if complaints:
        yield "journal-unreadable.txt", "".join(f"{complaint}\n" for complaint in complaints)
    for path in sorted((state.path / "log").glob("*")):
        yield f"log/{path.name}", _tail(path)
    yield "metrics.txt", _metrics(state)


def _versions(state: StateFolder) -> dict[str, Any]:
    packages = sorted(
        {str(one.metadata["Name"]): one.version for one in metadata.distributions()}.items(),
        key=lambda one: one[0].lower(),
    )
    controller = state.controller()
    return {
        "gangwatch": metadata.version("gangwatch"),
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "controller_runs": controller is not None,
        "agents": sorted(state.agents()),
        "packages": dict(packages),
        "packed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _in_force(state: StateFolder) -> Mapping[str, Any]:
    try:
        in_force = read_in_force(state)
    except GangwatchError as error:
        return {"error": str(error)}
    return flatten(in_force.config) if in_force is not None else {}


def _journal_end(state: StateFolder, cycles: int) -> tuple[Sequence[JournalRow], Sequence[str]]:
    """Return the journal rows of the latest `cycles` cycles, and the errors of the rows that can't be read."""
    path = state.path / "store.sqlite"
    if not path.exists() or not cycles:
        return (), ()
    reader = Reader(path)
    try:
        rows, complaints = reader.journal_end(cycles)
    except GangwatchError as error:
        return (), (str(error),)
    try:
        reader.meta("job_number")
    except GangwatchError as error:  # rows of a newer release, as far as this release can read them
        complaints = (str(error), *complaints)
    return rows, complaints


def _row(row: JournalRow) -> dict[str, Any]:
    return {
        "cycle": row.cycle,
        "now_ns": row.now_ns,
        "events": [{"type": type(event).__name__, **for_bundle(event)} for event in row.events],
        "actions": [{"type": type(action).__name__, **for_bundle(action)} for action in row.actions],
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _LOG_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"{path}: {error.strerror}\n"


def _metrics(state: StateFolder) -> str:
    """Return the text of the controller's /metrics, or a comment that explains why it is missing."""
    record = state.controller()
    if record is None:
        return "# no controller is running\n"
    try:
        connection = connect(record.url, 5.0, Trust(Path(record.certificate)) if record.certificate else None)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {state.token()}"})
        answer = connection.getresponse().read()
        return answer.decode(errors="replace")
    except (OSError, http.client.HTTPException, GangwatchError) as error:
        return f"# the controller at {record.url} does not respond: {error}\n"
