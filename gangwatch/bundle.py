"""Support bundle: what a bug report needs, in one archive, and nothing that anybody must keep to themselves.

Secrets are kept out twice. What may hold one is not taken, or taken without its values: a job's environment keeps its
names, its command its first word; keys of the configuration that name a secret keep their name. Then every part is
searched for the secrets that are known here (the API's token, the passwords and tokens in the configuration and in the
web configuration's files, all values of jobs' environments that look like one), and each is blotted out.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from agent.schema.errors import GangwatchError
from gangwatch.connection import Trust, connect
from gangwatch.in_force import read_in_force
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core.codec import printable
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.store import JournalRow, Reader

BLOT = "[removed]"

_SECRET_NAME = re.compile(r"pass(word|wd)?$|secret|token|credential|api_?key|private|auth", re.IGNORECASE)
"""Names of variables and keys whose values are secrets by custom."""

_SHORTEST_SECRET = 6
"""A shorter value would blot out ordinary text everywhere, and protects nothing."""

_LOG_BYTES = 1024 * 1024
"""Of each log, from its end."""


def pack(state: StateFolder, target: Path, cycles: int = 1000) -> list[str]:
    """Write the archive; the names of its parts. Raises GangwatchError where the target exists or can't be written."""
    rows, complaints = _journal_end(state, cycles)
    secrets = known_secrets(state, rows)
    parts = {name: blotted(text, secrets) for name, text in _parts(state, rows, complaints)}
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                content = text.encode(errors="replace")
                member = tarfile.TarInfo(f"gangwatch-support/{name}")
                member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
                archive.addfile(member, io.BytesIO(content))
    except FileExistsError:
        raise GangwatchError(f"{target}: exists already; a bundle never overwrites") from None
    except OSError as error:
        raise GangwatchError(f"{target}: {error.strerror}") from error
    return list(parts)


# --- secrets ---------------------------------------------------------------------------------------------------------


def known_secrets(state: StateFolder, rows: Iterable[JournalRow]) -> list[str]:
    """Every secret that this machine's gangwatch knows, the longest first."""
    found = {_text(state.token_file).strip()}
    in_force = _in_force(state)
    for key, value in in_force.items():
        if not isinstance(value, str) or not value:
            continue
        if _SECRET_NAME.search(key):
            found.add(value)
        if key.endswith(("_file", "web_config")):
            found.update(_values_in(_text(Path(value))))
    for row in rows:
        for event in row.events:
            if isinstance(event, Submitted):
                found.update(value for name, value in event.spec.environment.items() if _SECRET_NAME.search(name))
    return sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True)


def _values_in(text: str) -> Iterator[str]:
    """What stands after ':' or '=' or alone on a line of a file of secrets: headers, passwords, whole tokens."""
    for line in text.split("\n"):
        for piece in (line, *re.split(r"[:=]", line, maxsplit=1)[1:]):
            piece = piece.strip().strip("\"'")
            yield piece
            # A header such as 'Authorization: Bearer XYZ' hides its secret in the last word.
            yield piece.rpartition(" ")[2]


def blotted(text: str, secrets: Iterable[str]) -> str:
    """The text without any of them: neither as they are nor as JSON writes them, with or without escapes of letters."""
    for secret in secrets:
        for form in (secret, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1]):
            text = text.replace(form, BLOT)
    return text


def _without_secrets(value: Any) -> Any:
    """A document of the journal without environments' values, commands' arguments, and values under secret names."""
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for key, inner in value.items():
            if key == "environment" and isinstance(inner, dict):
                kept[key] = dict.fromkeys(inner, BLOT)
            elif key == "command" and isinstance(inner, list | tuple):
                kept[key] = [*inner[:1], *([f"{len(inner) - 1} arguments"] if len(inner) > 1 else [])]
            elif isinstance(inner, str) and inner and _SECRET_NAME.search(key):
                kept[key] = BLOT
            else:
                kept[key] = _without_secrets(inner)
        return kept
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value


# --- parts -----------------------------------------------------------------------------------------------------------


def _parts(state: StateFolder, rows: Sequence[JournalRow], complaints: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "versions.json", json.dumps(_versions(state), indent=2)
    yield "configuration.json", json.dumps(_without_secrets(_in_force(state)), indent=2, default=str)
    lines = (json.dumps(_without_secrets(_row(row)), ensure_ascii=False) for row in rows)
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
    from gangwatch.config import flatten

    try:
        in_force = read_in_force(state)
    except GangwatchError as error:
        return {"error": str(error)}
    return flatten(in_force.config) if in_force is not None else {}


def _journal_end(state: StateFolder, cycles: int) -> tuple[Sequence[JournalRow], Sequence[str]]:
    """The newest cycles that can be read, and what can't be: a damaged journal is what the report may be about."""
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
    except GangwatchError as error:  # rows of a newer release: what of them is known here
        complaints = (str(error), *complaints)
    return rows, complaints


def _row(row: JournalRow) -> dict[str, Any]:
    return {
        "cycle": row.cycle,
        "now_ns": row.now_ns,
        "events": [printable(event) for event in row.events],
        "actions": [printable(action) for action in row.actions],
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
    """What the controller's /metrics says now, or why it says nothing."""
    record = state.controller()
    if record is None:
        return "# no controller is running\n"
    try:
        connection = connect(record.url, 5.0, Trust(Path(record.certificate)) if record.certificate else None)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {state.token()}"})
        answer = connection.getresponse().read()
        return answer.decode(errors="replace")
    except (OSError, http.client.HTTPException, GangwatchError) as error:
        return f"# the controller at {record.url} does not answer: {error}\n"
