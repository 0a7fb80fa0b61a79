"""The controller's own tokens: the state folder's token, and token files with a name, a user and a role per token.

A token file is TOML, and holds only hashes::

    [[token]]
    name = "ana-laptop"           # its name in logs and in the audit log
    user = "ana"                  # the user of jobs; default: the name
    role = "submitter"            # viewer, submitter or operator
    sha256 = "<64 hex digits>"    # of the token
    expires = 2027-02-01T00:00:00Z

SHA-256 without salt or work factor is enough, because a token is 256 random bits: ``is_token`` refuses text of any
other form before the look-up, so no guessable password can be in use. Files are checked at every request: a rotated or
removed token takes effect at once, without a restart.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.schema.errors import ConfigError
from scheduler_feedback.api.access.principal import ROLES, Role
from scheduler_feedback.core.plain_text import misleading

PREFIX = "gwt_"
"""Prefix of tokens, so that secret scanners and gangwatch's own redaction find them."""

OWN_TOKENS = "tokens.toml"
"""Token file in the state folder, written by `gangwatch token`."""

_TOKEN = re.compile(r"gwt_[A-Za-z0-9_-]{43}", re.ASCII)
_MOST_TOKENS = 100_000
_MOST_FILE_BYTES = 64 * 1024 * 1024

GUESSABLE_LENGTH = 32
"""Length below which guesses of the state folder's token are limited strictly, because a person chose the token."""

_log = logging.getLogger(__name__)


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One [[token]] entry of a token file: the name, user, role, hash and expiry of a token."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    role: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    user: Annotated[str, Meta(max_length=200)] = ""
    created: datetime | None = None
    expires: datetime | None = None

    @property
    def owner(self) -> str:
        return self.user or self.name

    def expired(self, wall_seconds: float) -> bool:
        return self.expires is not None and self.expires.timestamp() <= wall_seconds


class _File(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[tuple[TokenEntry, ...], Meta(max_length=_MOST_TOKENS)] = ()


def make_token() -> str:
    """Return a new random token of 256 bits."""
    return PREFIX + secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    """Return whether the text has the form of a token from ``make_token``."""
    return _TOKEN.fullmatch(text) is not None


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def read_entries(file: Path) -> tuple[TokenEntry, ...]:
    """Return the entries of a token file. Raises ConfigError naming the file, the entry and the remedy."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                raise ConfigError(
                    f"{file}: it must be owned by root or by the user that runs gangwatch, and writable only by its "
                    "owner, because it grants access. Run chmod go-w, and chown it if needed"
                )
            content = opened.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if len(content) > _MOST_FILE_BYTES:
        raise ConfigError(f"{file}: longer than {_MOST_FILE_BYTES} bytes")
    try:
        tree = tomllib.loads(content.decode())
        entries = msgspec.convert(tree, _File).token
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from None
    for entry in entries:
        _check(file, entry)
    if len({entry.name for entry in entries}) < len(entries):
        raise ConfigError(f"{file}: two tokens have the same name; names must be unique, to revoke one of them")
    return entries


def _check(file: Path, entry: TokenEntry) -> None:
    if entry.role not in ROLES:
        raise ConfigError(f"{file}: token {entry.name!r}: role {entry.role!r} is not one of {', '.join(ROLES)}")
    for what, text in (("name", entry.name), ("user", entry.user)):
        if (wrong := misleading(what, text)) is not None:
            raise ConfigError(f"{file}: token {entry.name!r}: {wrong}")


def write_entries(entries: Sequence[TokenEntry]) -> bytes:
    """Return the content of a token file with these entries, as TOML."""
    lines = ["# Written by `gangwatch token`. It holds hashes. A token is shown once, when it is created.\n"]
    for entry in entries:
        lines.append("\n[[token]]\n")
        for key, value in msgspec.to_builtins(entry, builtin_types=(datetime,)).items():
            written = value.astimezone(UTC).isoformat() if isinstance(value, datetime) else _quoted(value)
            lines.append(f"{key} = {written}\n")
    return "".join(lines).encode()


def _quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()


@dataclass(frozen=True, slots=True)
class Known:
    """User and role of a valid token. key: identifies the token in later checks (``Tokens.current``)."""

    user: str
    role: Role
    means: str
    key: str


_Stamp = tuple[int, int, int, int] | None


class _TokenFile:
    """A token file, which is read again when it changes.

    If the file cannot be read, this is logged once, and the tokens of the last reading stay valid. A missing file has
    no tokens.
    """

    def __init__(self, file: Path, optional: bool) -> None:
        self.file = file
        self.failure = ""
        self._stamp: _Stamp = None
        self.by_hash: dict[str, TokenEntry] = {}
        if not optional or file.exists():
            self._stamp = self._stamp_now()
            self.by_hash = {entry.sha256: entry for entry in read_entries(file)}

    def reload(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            _log.warning("token file %s was removed: its tokens are refused now", self.file)
            self.by_hash, self.failure = {}, ""
            return
        try:
            self.by_hash = {entry.sha256: entry for entry in read_entries(self.file)}
        except ConfigError as error:
            self.failure = str(error)
            _log.error("changed token file not loaded, its former tokens stay valid: %s", error)
        else:
            self.failure = ""
            _log.info("token file %s: %d tokens loaded", self.file, len(self.by_hash))

    def _stamp_now(self) -> _Stamp:
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns


STATE_TOKEN = "the state folder's token"
_STATE_KEY = "state:"


class Tokens:
    """All valid tokens: the state folder's token, and the tokens of the token files. Thread-safe."""

    def __init__(
        self,
        state_token: Path,
        files: Sequence[Path] = (),
        own_file: Path | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Read the token files. own_file: file that `gangwatch token` writes; may be absent. Raises ConfigError."""
        self._state_file = state_token
        self._wall = wall
        self._lock = threading.Lock()
        self._files = [_TokenFile(file, optional=False) for file in files]
        if own_file is not None:
            self._files.append(_TokenFile(own_file, optional=True))
        self._state_stamp: _Stamp = None
        self._state = ""

    def state_token(self) -> str:
        """Return the state folder's token; '', which matches no request, if its file cannot be read."""
        with self._lock:
            try:
                status = self._state_file.stat()
                stamp = status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns
                if stamp != self._state_stamp:
                    self._state, self._state_stamp = self._state_file.read_text().strip(), stamp
            except (OSError, UnicodeDecodeError):
                self._state, self._state_stamp = "", None
            return self._state

    def guessable(self, token: str) -> bool:
        """Return whether this text may be a guess of the state folder's token, which is short if a person chose it."""
        return not is_token(token) and 0 < len(self.state_token()) < GUESSABLE_LENGTH

    def find(self, token: str) -> Known | None:
        """Return the user and role of the token; None if the token is unknown or has expired."""
        state = self.state_token()
        if state and compare_digest(token.encode(), state.encode()):
            return Known("", Role.OPERATOR, STATE_TOKEN, _STATE_KEY + hash_of(state))
        return self._entry(hash_of(token)) if is_token(token) else None

    def current(self, key: str) -> Known | None:
        """Return user and role of the token with this key; None if the token was rotated, revoked or has expired."""
        if key.startswith(_STATE_KEY):
            state = self.state_token()
            valid = bool(state) and compare_digest(key, _STATE_KEY + hash_of(state))
            return Known("", Role.OPERATOR, STATE_TOKEN, key) if valid else None
        return self._entry(key)

    def _entry(self, digest: str) -> Known | None:
        with self._lock:
            for file in self._files:
                file.reload()
            # The timing of this look-up reveals something about the hash of the sent token at most, not about 256 bits.
            entry = next((one.by_hash[digest] for one in self._files if digest in one.by_hash), None)
        if entry is None or entry.expired(self._wall()):
            return None
        return Known(entry.owner, ROLES[entry.role], f"token {entry.name}", digest)

    def failures(self) -> list[str]:
        """Return, for each token file that cannot be loaded, a text with the reason."""
        with self._lock:
            return [file.failure for file in self._files if file.failure]
