"""Identities in certificates of nodes, clients and the controller, and revocation of certificates. Pure.

An identity is a DNS name below ``gangwatch.internal`` that does not resolve (ICANN reserves .internal for private use).
It identifies the owner of the certificate, not its address. A node's agent is ``NODE.node.gangwatch.internal``, the
controller is ``controller.gangwatch.internal``.

A certificate is revoked by name and time of issue. The operator need not know its serial number, and a new certificate
for the same node is valid. The revocation list does not expire.
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
"""Maximum length of a DNS name (RFC 1035 section 2.3.4); node names of Kubernetes and Slurm are much shorter."""


def of_node(node: str) -> str:
    """Return the name in the certificate of a node's agent. Raise ConfigError if no certificate can have the name."""
    return _checked(node, _NODES, "node")


def of_client(name: str) -> str:
    """Return the name in the certificate of a client that may read metrics but not frames.

    Raise ConfigError if no certificate can have the name.
    """
    return _checked(name, _CLIENTS, "client")


def node_of(name: str) -> str | None:
    """Return the node whose agent has this name in its certificate; None if the name is not an agent's."""
    return name.removesuffix(_NODES) if name.endswith(_NODES) and name != _NODES else None


def _checked(name: str, suffix: str, what: str) -> str:
    if not name or "*" in name or not name.isascii() or not name.isprintable() or name != name.strip(" ."):
        raise ConfigError(f"{what} {name!r}: not a valid name for a certificate")
    if len(found := name + suffix) > LONGEST_NAME:
        raise ConfigError(f"{what} {name[:60]!r}...: the name in a certificate has at most {LONGEST_NAME} characters")
    return found


@dataclass(frozen=True, slots=True)
class Certificate:
    """Content of a peer's verified certificate. Times are seconds since the epoch."""

    names: frozenset[str]
    """DNS names exactly as in the certificate. A name with '*' is never accepted."""
    serial: str
    not_before: float
    not_after: float


def read_certificate(peer: Mapping[str, Any]) -> Certificate:
    """Convert the result of ``ssl.SSLSocket.getpeercert()`` to a Certificate. {} gives a certificate without names."""
    names = frozenset(str(value).lower() for kind, value in peer.get("subjectAltName", ()) if kind == "DNS")
    return Certificate(
        names, str(peer.get("serialNumber", "")), _seconds(peer.get("notBefore")), _seconds(peer.get("notAfter"))
    )


def _seconds(text: object) -> float:
    """Convert a time such as 'Jan  5 09:34:43 2038 GMT' to seconds since the epoch; 0.0 if it is not a text."""
    if not isinstance(text, str):
        return 0.0
    try:
        return datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def speaks_for(certificate: Certificate, node: str, host: str) -> bool:
    """Return whether the certificate belongs to the node. host: the host of the agent's address.

    The certificate must have the node's identity. If a site's own authority issues certificates for hosts, the
    certificate may have the node's host name instead, with or without a domain. A name with '*' is not accepted.
    """
    wanted = node.lower()
    if f"{wanted}{_NODES}" in certificate.names or wanted in certificate.names:
        return True
    host = host.lower()
    return host.startswith(f"{wanted}.") and host in certificate.names


# --- revoked ---------------------------------------------------------------------------------------------------------


class Revocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Revocation of all certificates that have one name and were issued before a given time."""

    name: str
    """Name in the revoked certificate."""
    before: datetime
    """Certificates issued before this time (RFC 3339) are revoked."""
    barred: bool = True
    """Whether new certificates for the name are refused too."""
    reason: str = ""
    """Reason of the revocation, free text."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    revoked: list[Revocation] = []


_files = msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class Revocations:
    """All revocations, by the name in the revoked certificates."""

    by_name: Mapping[str, Revocation] = field(default_factory=dict)

    def refuses(self, certificate: Certificate) -> str:
        """Return the reason why the certificate is refused; '' if it is accepted."""
        for name in sorted(certificate.names):
            found = self.by_name.get(name)
            if found is not None and certificate.not_before < found.before.timestamp():
                return f"it was revoked: {name}, made before {found.before:%Y-%m-%dT%H:%M:%SZ}" + (
                    f" ({found.reason})" if found.reason else ""
                )
        return ""

    def bars(self, name: str) -> bool:
        """Return whether this name is barred from new certificates."""
        found = self.by_name.get(name)
        return found is not None and found.barred

    def revoking(self, name: str, before: datetime, reason: str = "") -> Revocations:
        """Return a copy in which all certificates of this name that were issued before a time are revoked."""
        return Revocations({**self.by_name, name: Revocation(name, before, True, reason)})

    def admitting(self, name: str) -> Revocations:
        """Return a copy in which certificates may be issued for the name again. Its old certificates stay revoked."""
        found = self.by_name.get(name)
        if found is None:
            return self
        return Revocations({**self.by_name, name: msgspec.structs.replace(found, barred=False)})

    def encode(self) -> bytes:
        """Encode the revocations as the content of a revocation file."""
        body = msgspec.json.encode({"revoked": [self.by_name[name] for name in sorted(self.by_name)]})
        return msgspec.json.format(body, indent=2) + b"\n"


def read_revocations(data: bytes, where: str) -> Revocations:
    """Parse a revocation file, which may be empty. Raise ConfigError with `where`, the file name, if it is invalid."""
    if not data.strip():
        return Revocations()
    try:
        found = _files.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not a valid list of revoked certificates: {error}") from None
    by_name: dict[str, Revocation] = {}
    for one in found.revoked:
        if one.before.tzinfo is None:
            raise ConfigError(f"{where}: {one.name}: the time before={one.before} has no time zone")
        by_name[one.name.lower()] = one
    return Revocations(by_name)
