"""Who a certificate is made out to: names of nodes and of the controller, and which certificates are revoked. Pure.

An identity is a DNS name below ``gangwatch.internal``, one that no resolver answers for (ICANN keeps .internal for
private use): it says who shows the certificate, not where it is reached. A node's agent is
``NODE.node.gangwatch.internal``, the controller ``controller.gangwatch.internal``.

A certificate is revoked by whose it is and when it was made: whoever revokes a node's certificate need not know its
serial number, and a new one for the same node is valid. No list expires while nobody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from agent.schema.errors import ConfigError

DOMAIN = "gangwatch.internal"
CONTROLLER = f"controller.{DOMAIN}"
_NODES = f".node.{DOMAIN}"
_CLIENTS = f".client.{DOMAIN}"

LONGEST_NAME = 253
"""Of a DNS name (RFC 1035 section 2.3.4); Kubernetes' and Slurm's names of nodes are far shorter."""


def of_node(node: str) -> str:
    """The name in the certificate of a node's agent. Raises ConfigError for a name that no certificate can have."""
    return _checked(node, _NODES, "node")


def of_client(name: str) -> str:
    """The name in the certificate of whoever reads metrics, and no frames. Raises ConfigError as ``of_node``."""
    return _checked(name, _CLIENTS, "client")


def node_of(name: str) -> str | None:
    """The node that a certificate's name is of; None for any other name."""
    return name.removesuffix(_NODES) if name.endswith(_NODES) and name != _NODES else None


def _checked(name: str, suffix: str, what: str) -> str:
    if not name or "*" in name or not name.isascii() or not name.isprintable() or name != name.strip(" ."):
        raise ConfigError(f"{what} {name!r}: a certificate can't be made out to such a name")
    if len(found := name + suffix) > LONGEST_NAME:
        raise ConfigError(f"{what} {name[:60]!r}...: a certificate's name has at most {LONGEST_NAME} characters")
    return found


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a peer's verified certificate says. Times: seconds since the epoch."""

    names: frozenset[str]
    """Its DNS names, as they stand there: '*' is part of a name, and matches none."""
    serial: str
    not_before: float
    not_after: float


def read_certificate(told: Mapping[str, Any]) -> Certificate:
    """What ``ssl.SSLSocket.getpeercert()`` gives of a verified peer; {} gives one without names."""
    names = frozenset(str(value).lower() for kind, value in told.get("subjectAltName", ()) if kind == "DNS")
    return Certificate(
        names, str(told.get("serialNumber", "")), _seconds(told.get("notBefore")), _seconds(told.get("notAfter"))
    )


def _seconds(text: object) -> float:
    """Of a time as ``getpeercert`` writes it, 'Jan  5 09:34:43 2038 GMT'; 0.0 where there is none."""
    if not isinstance(text, str):
        return 0.0
    try:
        return datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def speaks_for(certificate: Certificate, node: str, host: str) -> bool:
    """Whether the certificate is the node's. host: at which its agent is reached.

    By its name as a node, or, where a site's own authority makes certificates out to hosts, by the node's own name: its
    host name, with or without a domain. A name with '*' is nobody's.
    """
    wanted = node.lower()
    if f"{wanted}{_NODES}" in certificate.names or wanted in certificate.names:
        return True
    host = host.lower()
    return host.startswith(f"{wanted}.") and host in certificate.names


# --- revoked ---------------------------------------------------------------------------------------------------------


class Revocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Certificates of this name that were made before an instant are revoked.

    name: as in the certificate. before: RFC 3339. barred: whether no new one is made out to it either. reason: for
    people.
    """

    name: str
    before: datetime
    barred: bool = True
    reason: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    revoked: list[Revocation] = []


_files = msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class Revocations:
    """All that is revoked, by name."""

    by_name: Mapping[str, Revocation] = field(default_factory=dict)

    def refuses(self, certificate: Certificate) -> str:
        """Why the certificate is not accepted; '' where it is."""
        for name in sorted(certificate.names):
            found = self.by_name.get(name)
            if found is not None and certificate.not_before < found.before.timestamp():
                return f"it was revoked: {name}, made before {found.before:%Y-%m-%dT%H:%M:%SZ}" + (
                    f" ({found.reason})" if found.reason else ""
                )
        return ""

    def bars(self, name: str) -> bool:
        """Whether no certificate is to be made out to this name."""
        found = self.by_name.get(name)
        return found is not None and found.barred

    def revoking(self, name: str, before: datetime, reason: str = "") -> Revocations:
        """The same, with all certificates of this name revoked that were made before an instant."""
        return Revocations({**self.by_name, name: Revocation(name, before, True, reason)})

    def admitting(self, name: str) -> Revocations:
        """The same, where the name may have a new certificate. Its old ones stay revoked."""
        found = self.by_name.get(name)
        if found is None:
            return self
        return Revocations({**self.by_name, name: msgspec.structs.replace(found, barred=False)})

    def encode(self) -> bytes:
        """As a file."""
        body = msgspec.json.encode({"revoked": [self.by_name[name] for name in sorted(self.by_name)]})
        return msgspec.json.format(body, indent=2) + b"\n"


def read_revocations(data: bytes, where: str) -> Revocations:
    """What a file of revocations holds; nothing where it is empty. Raises ConfigError naming `where`."""
    if not data.strip():
        return Revocations()
    try:
        found = _files.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: no list of revoked certificates: {error}") from None
    by_name: dict[str, Revocation] = {}
    for one in found.revoked:
        if one.before.tzinfo is None:
            raise ConfigError(f"{where}: {one.name}: before {one.before} names no time zone")
        by_name[one.name.lower()] = one
    return Revocations(by_name)
