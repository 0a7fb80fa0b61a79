"""Checks of certificates and of access to agents' frames, for `gangwatch check`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError, GangwatchError
from gangwatch.configuration.config_file import Config
from gangwatch.controller_client import Client
from gangwatch.health.machine import Finding
from gangwatch.state_folder import StateFolder

NAME = "certificates"
SOON_SECONDS = 14 * 86400.0
"""`gangwatch check` reports a certificate that expires within this number of seconds. The alert
GangwatchCertificateEnds has the same limit. Renewal begins 30 days before the end, so it has failed by this time."""

TIMEOUT_SECONDS = 5.0
_NAMED = 3
_SERIES = re.compile(r'gangwatch_feed_certificate_expiry_seconds\{node="([^"]*)"\} ([0-9.e+]+)')


class _Record(msgspec.Struct):
    certificate: str = ""


def findings(state: StateFolder, config: Config) -> tuple[Finding, ...]:
    """Check the expiry of all certificates of this machine's daemons and of its controller's agents."""
    found = [*_frames(config)]
    ends: dict[str, float] = {}
    for what, path in _files(state, config):
        try:
            ends[what] = validity(path.read_bytes())[1]
        except (OSError, ConfigError) as error:
            words = getattr(error, "strerror", None) or str(error)
            remedy = "gangwatch certificates issue, or your own issuer (docs/how-to/certificates.md)"
            found.append(Finding(f"{NAME}: {what}", "missing", f"{path}: {words}", remedy))
    ends |= {f"agent {node}": end for node, end in _of_agents(state).items()}
    if not ends and not found:
        return (Finding(NAME, "found", "not used: all daemons are on loopback or use plain HTTP"),)
    if ends:
        found.append(_soonest(ends, time.time()))
    # The worst finding gets the name for --require.
    found.sort(key=lambda one: ("missing", "limited", "found").index(one.state))
    return (msgspec.structs.replace(found[0], name=NAME), *found[1:])


def _soonest(ends: dict[str, float], now: float) -> Finding:
    due = sorted((end, what) for what, end in ends.items() if end - now < SOON_SECONDS)
    if not due:
        end, what = min((end, what) for what, end in ends.items())
        return Finding(NAME, "found", f"{len(ends)} valid; the first expires on {_day(end)}: {what}")
    named = ", ".join(f"{what} ({'expired' if end < now else 'expires'} {_day(end)})" for end, what in due[:_NAMED])
    more = f" and {len(due) - _NAMED} more" if len(due) > _NAMED else ""
    state: Literal["missing", "limited"] = "missing" if due[0][0] < now else "limited"
    remedy = "gangwatch certificates renew and copy the files; with certificate_command, see the agent's log"
    return Finding(NAME, state, f"of {len(ends)}: {named}{more}", remedy)


def _frames(config: Config) -> Iterator[Finding]:
    agent = config.agent
    if agent.web_config is not None and agent.listen is not None and not agent.frame_readers:
        yield Finding(
            f"{NAME}: frames",
            "limited",
            "agent.frame_readers is empty: any client with the password can read the frames of all agents that use it",
            "issue a certificate for the controller: docs/how-to/certificates.md",
        )
    if config.feed.verify == "host":
        yield Finding(
            f"{NAME}: feed",
            "limited",
            "feed.verify = 'host': an agent can report as any node whose address its certificate covers",
            "issue a certificate for each node: docs/how-to/certificates.md",
        )


def _files(state: StateFolder, config: Config) -> Iterator[tuple[str, Path]]:
    """Yield (owner, path) of each certificate file that this machine's daemons use."""
    records = [("controller", state.path / "controller.json")]
    folder = state.path / "agents"
    records += [(f"agent {file.stem}", file) for file in sorted(folder.glob("*.json"))]
    seen: set[Path] = set()
    for what, record in records:
        try:
            named = msgspec.json.decode(record.read_bytes(), type=_Record).certificate
        except (OSError, msgspec.MsgspecError):
            continue
        if named and Path(named) not in seen:
            seen.add(Path(named))
            yield what, Path(named)
    if config.feed.cert_file is not None and Path(config.feed.cert_file) not in seen:
        yield "the controller's feed client", Path(config.feed.cert_file)


def _of_agents(state: StateFolder) -> dict[str, float]:
    """Return when each agent's certificate expires, by node, from the metrics of this state folder's controller."""
    try:
        text = Client(state, TIMEOUT_SECONDS).text("/metrics")
    except GangwatchError:
        return {}
    return {node: float(end) for node, end in _SERIES.findall(text)}


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
