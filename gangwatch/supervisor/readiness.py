"""Readiness of the daemons, as they report it on ``/readyz``."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.schema.errors import ConfigError
from gangwatch.connection import Trust, connect
from gangwatch.state_folder import AgentRecord, ControllerRecord, NodePlan, StateFolder, agent_name
from gangwatch.supervisor.daemon_ends import CONTROLLER, why_no_controller

TIMEOUT_SECONDS = 2.0
"""Maximum time in seconds to wait for each daemon's response."""


def readiness(record: AgentRecord | ControllerRecord) -> tuple[bool, str]:
    """Return whether the daemon is ready, and the reason if it is not ('' for none).

    A daemon is ready if it answers /readyz with 200. A controller that schedules is ready even if one of its parts has
    failed.

    The supervisor has no client certificate. A daemon that requires one (client_auth_type) counts as ready if it
    completes its side of the TLS handshake.
    """
    try:
        connection = connect(
            record.url, TIMEOUT_SECONDS, Trust(Path(record.certificate)) if record.certificate else None
        )
    except ConfigError as error:
        return False, str(error)
    shown = False
    try:
        connection.connect()
        shown = bool(record.certificate)
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        if response.status == 200:
            return True, ""
        return _partly_ready(response.read(64 * 1024))
    except (OSError, http.client.HTTPException) as error:
        ready = (shown and not isinstance(error, TimeoutError)) or "_ALERT_" in str(getattr(error, "reason", ""))
        return ready, "" if ready else f"{record.url} does not respond: {error or type(error).__name__}"
    finally:
        connection.close()


def _partly_ready(body: bytes) -> tuple[bool, str]:
    """Parse a /readyz response whose status is not 200. Return whether the daemon is ready nevertheless, and its
    error."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        return False, ""
    return document.get("scheduling") is True, str(document.get("error", ""))


def not_ready(state: StateFolder, nodes: Sequence[NodePlan]) -> dict[str, str]:
    """Return the reason for each daemon that is not ready, by daemon name; empty if all daemons are ready."""
    agents = {node.name: state.agent(node.name) for node in nodes}
    records: dict[str, AgentRecord | ControllerRecord | None] = {
        **{agent_name(name): record for name, record in agents.items()},
        CONTROLLER: state.controller(),
    }
    waiting: dict[str, str] = {}
    for name, record in records.items():
        if record is None:
            waiting[name] = why_no_controller(state) if name == CONTROLLER else "not listening yet"
            continue
        ready, why = readiness(record)
        if not ready:
            waiting[name] = why
    return waiting


def in_words(waiting: dict[str, str]) -> str:
    """Return one line that lists the daemons that are not ready, with the reasons.

    waiting: reason by daemon name.
    """
    return "; ".join(f"{name} ({why})" if why else name for name, why in waiting.items())
