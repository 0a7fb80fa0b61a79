"""When certificates end, and who opens agents' frames: what `gangwatch check` says of them."""

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
from gangwatch.client import Client
from gangwatch.configuration.config_file import Config
from gangwatch.health.machine import Finding
from gangwatch.state_folder import StateFolder

NAME = "certificates"
SOON_SECONDS = 14 * 86400.0
"""As the alert GangwatchCertificateEnds: renewal begins when a third of 90 days is left, and has failed by then."""

TIMEOUT_SECONDS = 5.0
_NAMED = 3
_SERIES = re.compile(r'gangwatch_feed_certificate_expiry_seconds\{node="([^"]*)"\} ([0-9.e+]+)')


class _Record(msgspec.Struct):
    certificate: str = ""


def findings(state: StateFolder, config: Config) -> tuple[Finding, ...]:
    """Whether each certificate that this machine, or an agent of its controller, shows is valid for a while yet."""
    found = [*_frames(config)]
    ends: dict[str, float] = {}
    for what, path in _files(state, config):
        try:
            ends[what] = validity(path.read_bytes())[1]
        except (OSError, ConfigError) as error:
            words = getattr(error, "strerror", None) or str(error)
            remedy = "gangwatch certificates issue, or whoever issues it (docs/how-to/certificates.md)"
            found.append(Finding(f"{NAME}: {what}", "missing", f"{path}: {words}", remedy))
    ends |= {f"agent {node}": end for node, end in _of_agents(state).items()}
    if not ends and not found:
        return (Finding(NAME, "found", "none is used: everything is on loopback, or over plain HTTP"),)
    if ends:
        found.append(_soonest(ends, time.time()))
    # The first has the name that --require asks for.
    found.sort(key=lambda one: ("missing", "limited", "found").index(one.state))
    return (msgspec.structs.replace(found[0], name=NAME), *found[1:])


def _soonest(ends: dict[str, float], now: float) -> Finding:
    due = sorted((end, what) for what, end in ends.items() if end - now < SOON_SECONDS)
    if not due:
        end, what = min((end, what) for what, end in ends.items())
        return Finding(NAME, "found", f"{len(ends)} valid; the first to end is that of {what}, on {_day(end)}")
    named = ", ".join(f"{what} ({'ended' if end < now else 'ends'} {_day(end)})" for end, what in due[:_NAMED])
    more = f" and {len(due) - _NAMED} more" if len(due) > _NAMED else ""
    state: Literal["missing", "limited"] = "missing" if due[0][0] < now else "limited"
    remedy = "gangwatch certificates renew, and copy the files; with certificate_command see the agent's log"
    return Finding(NAME, state, f"of {len(ends)}: {named}{more}", remedy)


def _frames(config: Config) -> Iterator[Finding]:
    agent = config.agent
    if agent.web_config is not None and agent.listen is not None and not agent.frame_readers:
        yield Finding(
            f"{NAME}: frames",
            "limited",
            "agent.frame_readers is empty: whoever has the password of one agent reads the frames of all that share it",
            "a certificate for the controller: docs/how-to/certificates.md",
        )
    if config.feed.verify == "host":
        yield Finding(
            f"{NAME}: feed",
            "limited",
            "feed.verify = 'host': an agent is believed to be any node whose address its certificate covers",
            "a certificate for each node: docs/how-to/certificates.md",
        )


def _files(state: StateFolder, config: Config) -> Iterator[tuple[str, Path]]:
    """The files of certificates that this machine's daemons show, and whose each is."""
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
        yield "the controller, as it reads agents", Path(config.feed.cert_file)


def _of_agents(state: StateFolder) -> dict[str, float]:
    """When the certificates end that agents have shown to this state folder's controller, by node."""
    try:
        text = Client(state, TIMEOUT_SECONDS).text("/metrics")
    except GangwatchError:
        return {}
    return {node: float(end) for node, end in _SERIES.findall(text)}


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
