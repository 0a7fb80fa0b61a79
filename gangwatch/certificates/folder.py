"""Certificate authority in a folder: functions that issue, renew, revoke and list certificates.

::

    FOLDER/                    0700
        authority.crt          trust anchor for all certificates
        authority.key          0600; it can sign any certificate: back it up, and keep it off the nodes
        issued.jsonl           every certificate ever signed, one per line
        revoked.json           revocations, for the controller and the agents
        controller/            tls.crt tls.key ca.crt
        nodes/NODE/            tls.crt tls.key ca.crt
        clients/NAME/          tls.crt tls.key ca.crt

Every file is replaced atomically. Copy only the folder `nodes/NODE` to that node.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from agent.schema.errors import ConfigError, GangwatchError
from agent.schema.identity import CONTROLLER, Revocations, of_client, of_node, read_revocations
from gangwatch.certificates.authority import DAYS, Authority, Issued, new_key, new_request, read

LEFT = 1 / 3
"""Share of a certificate's lifetime. If less than this share is left, the certificate is renewed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A certificate in the folder of the authority, with its owner and its revocation."""

    kind: str
    """Owner of the certificate: 'authority', 'controller', 'node' or 'client'."""
    name: str
    """Name of the node or client; '' for the authority and the controller."""
    path: Path
    issued: Issued
    revoked: str = ""
    """Reason of the revocation, or its date if no reason was given; '' if the certificate is not revoked."""
    barred: bool = False
    """Whether the authority refuses to issue new certificates for this name."""

    def left_seconds(self, now: datetime) -> float:
        """Return the seconds until the certificate expires; negative after expiry."""
        return (self.issued.not_after - now).total_seconds()

    def document(self, now: datetime) -> dict[str, Any]:
        """Return the certificate's data as a document for `--json`, without the certificate itself."""
        return {
            "kind": self.kind,
            "name": self.name,
            "names": list(self.issued.names),
            "serial": self.issued.serial,
            "not_before": f"{self.issued.not_before:%Y-%m-%dT%H:%M:%SZ}",
            "not_after": f"{self.issued.not_after:%Y-%m-%dT%H:%M:%SZ}",
            "seconds_left": round(self.left_seconds(now)),
            "revoked": self.revoked,
            "path": str(self.path),
        }


def identity_of(kind: str, name: str) -> str:
    """Return the name that the certificate of this node, client or controller contains. Raises ConfigError."""
    return CONTROLLER if kind == "controller" else of_node(name) if kind == "node" else of_client(name)


class AuthorityFolder:
    """The folder of one certificate authority. A lock prevents concurrent changes by several commands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # --- making -------------------------------------------------------------------------------------------------------

    def make(self, days: int) -> Issued:
        """Create the authority. Raises ConfigError if the folder already has an authority, which is never replaced."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._alone():
            if self._certificate.exists() or self._key.exists():
                raise ConfigError(f"{self.path}: an authority already exists; to replace it, delete its files first")
            authority = Authority.make(days=days)
            _write(self._key, authority.key, secret=True)
            _write(self._certificate, authority.certificate)
        return read(authority.certificate)

    def issue(
        self, kind: str, name: str, hosts: Sequence[str] = (), days: float = DAYS, request: bytes | None = None
    ) -> Entry:
        """Issue a certificate with a new key, or for the key in `request`.

        hosts: additional host names and addresses in the certificate. days: validity.

        Raises ConfigError if new certificates for the name are refused, or the request is malformed.
        """
        identity = identity_of(kind, name)
        with self._alone():
            return self._issue(self._authority(), kind, name, (identity, *hosts), days, request)

    def _issue(
        self, authority: Authority, kind: str, name: str, names: tuple[str, ...], days: float, request: bytes | None
    ) -> Entry:
        revocations = self.revocations()
        if revocations.bars(names[0]):
            raise ConfigError(f"{names[0]} is revoked: `gangwatch certificates admit` allows a new certificate")
        folder = self._folder(kind, name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = new_key() if request is None else None
        asked = new_request(key, names) if key is not None else request or b""
        revoked = revocations.by_name.get(names[0])
        issued = authority.issue(asked, names, days, since=None if revoked is None else revoked.before)
        self._note(kind, name, issued)
        _write(folder / "ca.crt", authority.certificate)
        if key is not None:
            _write(folder / "tls.key", key, secret=True)
        else:
            (folder / "tls.key").unlink(missing_ok=True)  # the sender of the request has the key
        _write(folder / "tls.crt", issued.certificate)
        return Entry(kind, name, folder / "tls.crt", issued)

    def renew(
        self, left: float = LEFT, days: float | None = None, everything: bool = False
    ) -> tuple[list[Entry], list[str]]:
        """Renew the certificates whose remaining share of their lifetime is at most `left`.

        Return the renewed certificates, and an error message for each certificate that can't be renewed.

        days: lifetime of the new certificates; None: the same as before. everything: renew all, regardless of
        `left`.
        """
        renewed: list[Entry] = []
        failed: list[str] = []
        with self._alone():
            authority, now = self._authority(), datetime.now(UTC)
            for entry in self.entries():
                life = entry.issued.not_after - entry.issued.not_before
                due = everything or entry.left_seconds(now) <= left * life.total_seconds()
                if entry.kind == "authority" or not due or entry.barred:
                    continue
                if not (entry.path.parent / "tls.key").exists():
                    failed.append(
                        f"{entry.kind} {entry.name}: its key is not in this folder; sign a new request from its owner"
                    )
                    continue
                lasts = life / timedelta(days=1) if days is None else days
                try:
                    renewed.append(self._issue(authority, entry.kind, entry.name, entry.issued.names, lasts, None))
                except GangwatchError as error:
                    failed.append(f"{entry.kind} {entry.name}: {error}")
        return renewed, failed

    # --- revoking -----------------------------------------------------------------------------------------------------

    def revocations(self) -> Revocations:
        """Return the revoked names of this folder. Raises ConfigError if the file is damaged."""
        try:
            return read_revocations(self._revoked.read_bytes(), str(self._revoked))
        except FileNotFoundError:
            return Revocations()

    def revoke(self, kind: str, name: str, reason: str) -> None:
        """Revoke all certificates issued to this name so far, and refuse to issue new ones."""
        identity = identity_of(kind, name)
        with self._alone():
            # Add one second, so that certificates issued in this second are revoked, too.
            before = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
            _write(self._revoked, self.revocations().revoking(identity, before, reason).encode())

    def admit(self, kind: str, name: str) -> None:
        """Allow new certificates for the name. Old ones stay revoked. Raises ConfigError if the name is not revoked."""
        identity = identity_of(kind, name)
        with self._alone():
            known = self.revocations()
            if identity not in known.by_name:
                raise ConfigError(f"{identity} is not revoked")
            _write(self._revoked, known.admitting(identity).encode())

    # --- listing ------------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return all certificates in the folder. Raises ConfigError if one is damaged."""
        found = [Entry("authority", "", self._certificate, read(self._read(self._certificate)))]
        revocations = self.revocations()
        places = [("controller", "", self.path / "controller")]
        for kind in ("node", "client"):
            folder = self.path / f"{kind}s"
            names = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
            places += [(kind, name, folder / name) for name in names]
        for kind, name, folder in places:
            path = folder / "tls.crt"
            if not path.exists():
                continue
            issued = read(self._read(path))
            identity = identity_of(kind, name)
            revoked = revocations.by_name.get(identity)
            why = ""
            if revoked is not None and issued.not_before < revoked.before:
                why = revoked.reason or f"{revoked.before:%Y-%m-%d}"
            found.append(Entry(kind, name, path, issued, why, revocations.bars(identity)))
        return found

    # --- files --------------------------------------------------------------------------------------------------------

    @property
    def _certificate(self) -> Path:
        return self.path / "authority.crt"

    @property
    def _key(self) -> Path:
        return self.path / "authority.key"

    @property
    def _revoked(self) -> Path:
        return self.path / "revoked.json"

    def _folder(self, kind: str, name: str) -> Path:
        if kind == "controller":
            return self.path / "controller"
        if "/" in name or name in (".", ".."):
            raise ConfigError(f"{kind} {name!r}: not a valid folder name")
        return self.path / f"{kind}s" / name

    def _authority(self) -> Authority:
        authority = Authority(self._read(self._certificate), self._read(self._key))
        mode = self._key.stat().st_mode & 0o077
        if mode:
            raise ConfigError(
                f"{self._key}: other users can read the authority's key: chmod 0600, and check for copies"
            )
        authority.check()
        return authority

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if path in (self._certificate, self._key):
                raise ConfigError(
                    f"{path}: no authority in this folder: create one with `gangwatch certificates authority`"
                ) from None
            raise
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None

    def _note(self, kind: str, name: str, issued: Issued) -> None:
        line = {
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "kind": kind,
            "name": name,
            "names": issued.names,
            "serial": issued.serial,
            "not_after": f"{issued.not_after:%Y-%m-%dT%H:%M:%SZ}",
        }
        descriptor = os.open(self.path / "issued.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"{self.path}: {error.strerror}; `gangwatch certificates authority` creates the folder"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise GangwatchError(f"{error.filename or self.path}: {error.strerror}") from error
        finally:
            os.close(descriptor)


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """Replace the file atomically and sync it to disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600 if secret else 0o644)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_pair(folder: Path, key: bytes, certificate: bytes, authority: bytes) -> None:
    """Write a private key, its certificate and the authority's certificate into a folder.

    The key is written first: a daemon that sees the new certificate then also finds the matching key.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / "ca.crt", authority)
    _write(folder / "tls.key", key, secret=True)
    _write(folder / "tls.crt", certificate)
