"""Credentials from a program that the kubeconfig names, as the clusters of cloud providers require.

The program, called a plugin, gets its request in the variable KUBERNETES_EXEC_INFO and prints JSON, an ExecCredential.
The protocol is client.authentication.k8s.io, versions v1 and v1beta1:
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from agent.schema.errors import BackendError, ConfigError
from scheduler_feedback.core.plain_text import plain

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

_RUN_SECONDS = 30.0
_INTERACTIVE_SECONDS = 300.0
"""Time limit of a plugin that may ask the user for a password or a login in a browser."""

_RETRY_SECONDS = 5.0
"""Time after a failed run, or after a run because of a refused credential, until the plugin runs again. Dozens of
requests can fail at once, and a login service limits the rate of logins."""

_POLL_SECONDS = 0.02
_OUTPUT_BYTES = 1 << 20
_SHOWN_CHARACTERS = 300
"""Length of a plugin's last error output in a message."""

_HINT_CHARACTERS = 1000
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_log = logging.getLogger(__name__)


class CredentialError(BackendError):
    """The plugin returned no credential. The request was not sent."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential as a plugin returned it: a token, a client certificate, or both."""

    token: str = field(default="", repr=False)
    certificate: str = ""
    """PEM; '' for none."""
    key: str = field(default="", repr=False)
    """PEM; '' for none."""
    expires: float | None = None
    """Wall time in seconds; None if the credential is valid until the server refuses it."""


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """The plugin's command line, from the `exec` section of a kubeconfig."""

    source: str
    """Path of the kubeconfig, for messages."""
    api_version: str
    command: str
    """Name of a program in PATH, or an absolute path."""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of this process."""
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None
    """The cluster in the form of ExecCredential.spec.cluster, if the plugin needs it (provideClusterInfo)."""


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


_answers = msgspec.json.Decoder(_ExecCredential)


def exec_command(source: Path, section: Any, cluster: Mapping[str, Any]) -> ExecCommand:
    """Return the command of a user's `exec` section. cluster: content for ExecCredential.spec.cluster.

    Raises ConfigError that names the kubeconfig and the key.
    """
    where = f"{source}: users: exec"
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: must be a table, not {type(section).__name__}")
    version = section.get("apiVersion")
    if version not in API_VERSIONS:
        raise ConfigError(f"{where}.apiVersion: {version!r} is not supported; use {' or '.join(API_VERSIONS)}")
    command = section.get("command")
    if not isinstance(command, str) or not command:
        raise ConfigError(f"{where}.command: missing")
    if "/" in command:
        command = str(source.absolute().parent / command)
    # Version v1 requires the mode, as kubectl does; v1beta1 has a default.
    mode = section.get("interactiveMode") or ("" if version == API_VERSIONS[0] else "IfAvailable")
    if mode not in INTERACTIVE_MODES:
        raise ConfigError(f"{where}.interactiveMode: {mode or 'missing'}; use one of {', '.join(INTERACTIVE_MODES)}")
    arguments = section.get("args") or []
    variables = section.get("env") or []
    try:
        environment = {str(one["name"]): str(one["value"]) for one in variables}
        if not isinstance(arguments, list):
            raise TypeError(f"args must be a list, not {type(arguments).__name__}")
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where}: args must be a list, and env a list of name and value: {error}") from None
    return ExecCommand(
        str(source),
        version,
        command,
        tuple(map(str, arguments)),
        environment,
        _readable(str(section.get("installHint") or ""))[:_HINT_CHARACTERS],
        mode,
        cluster if section.get("provideClusterInfo") else None,
    )


class ExecPlugin:
    """A plugin and its newest credential, which is kept until it expires or the server refuses it. Thread-safe."""

    def __init__(
        self,
        command: ExecCommand,
        *,
        run_seconds: float | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object without running the plugin. run_seconds: time limit of a run; None for the default."""
        self.command = command
        self._run_seconds, self._wall, self._monotonic = run_seconds, wall, monotonic
        self._lock = threading.Lock()
        self._newest: Credential | None = None
        self._failure: CredentialError | None = None
        self._failed_at = self._renewed_at = -_RETRY_SECONDS

    def cached(self) -> Credential | None:
        """Return the newest credential; None if there is none or it has expired. Does not wait."""
        newest = self._newest
        if newest is None or (newest.expires is not None and newest.expires <= self._wall()):
            return None
        return newest

    def obtain(self, refused: Credential | None = None) -> Credential:
        """Return a valid credential; run the plugin if there is none. Waits for the plugin.

        refused: credential that the server has refused. If it is still the newest one, the plugin runs again, unless a
        refusal already caused a run less than 5 s ago.

        Raises CredentialError. After a failure the same error is raised for 5 s without a run.
        """
        with self._lock:
            now = self._monotonic()
            cached = self.cached()
            if cached is not None and (cached is not refused or now - self._renewed_at < _RETRY_SECONDS):
                return cached
            if self._failure is not None and now - self._failed_at < _RETRY_SECONDS:
                raise self._failure
            self._newest = None
            try:
                self._newest = self._run()
            except CredentialError as error:
                self._failure, self._failed_at = error, self._monotonic()
                _log.error("%s", error)
                raise
            self._failure = None
            if cached is not None:  # the server has refused it
                self._renewed_at = self._monotonic()
            return self._newest

    def _run(self) -> Credential:
        command = self.command
        interactive = self._is_interactive()
        info: dict[str, Any] = {"interactive": interactive}
        if command.cluster is not None:
            info["cluster"] = dict(command.cluster)
        request = {"kind": "ExecCredential", "apiVersion": command.api_version, "spec": info}
        environment = {
            **os.environ,
            **command.environment,
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
        }
        seconds = self._run_seconds or (_INTERACTIVE_SECONDS if interactive else _RUN_SECONDS)
        code, output, errors = self._output_of(environment, interactive, seconds)
        if code != 0:
            said = _readable(errors.decode(errors="replace"))
            said = f"...{said[-_SHOWN_CHARACTERS:]}" if len(said) > _SHOWN_CHARACTERS else said
            ended = f"ended with exit status {code}" if code > 0 else f"was ended by signal {-code}"
            raise self._error(f"{ended}: {said}" if said else ended)
        return self._parsed(output)

    def _is_interactive(self) -> bool:
        """Return whether the plugin gets this process's terminal.

        Raises CredentialError if it needs one that is missing.
        """
        mode = self.command.interactive_mode
        if mode == "Never":
            return False
        terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if mode == "Always" and not terminal:
            raise self._error("needs a terminal (interactiveMode: Always), and this process has none")
        return terminal

    def _output_of(self, environment: Mapping[str, str], interactive: bool, seconds: float) -> tuple[int, bytes, bytes]:
        """Run the plugin; return exit status, output and errors.

        A plugin without a terminal has its own process group, so that its children end with it at the time limit.
        """
        command = self.command
        try:
            process = subprocess.Popen(
                [command.command, *command.arguments],
                env=dict(environment),
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if interactive else subprocess.PIPE,
                process_group=None if interactive else 0,
            )
        except FileNotFoundError:
            hint = f". {command.install_hint}" if command.install_hint else ": install it, or add its folder to PATH"
            raise self._error(f"not found{hint}") from None
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be started: {getattr(error, 'strerror', None) or error}") from None
        try:
            output, errors = _collect(process, self._monotonic() + seconds, self._monotonic)
            return process.returncode, output, errors
        except TimeoutError:
            raise self._error(
                f"did not finish in {seconds:g} s. Run the command by hand: it may wait for a login or the network"
            ) from None
        except OverflowError:
            raise self._error(f"printed more than {_OUTPUT_BYTES} bytes") from None
        finally:
            _end(process, group=not interactive)

    def _parsed(self, output: bytes) -> Credential:
        version = self.command.api_version
        try:
            answer = _answers.decode(output)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(f"printed no valid ExecCredential: {error}") from None
        if answer.kind != "ExecCredential" or answer.api_version != version:
            shown = plain(f"{answer.kind} of {answer.api_version}"[:_SHOWN_CHARACTERS])
            raise self._error(f"printed {shown}, but the kubeconfig requests ExecCredential of {version}")
        status = answer.status
        if status is None:
            raise self._error("printed an ExecCredential without a status")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._error("returned only one of clientCertificateData and clientKeyData")
        if not status.token and not status.client_certificate_data:
            raise self._error("returned neither a token nor a client certificate")
        if not status.token.isascii() or not status.token.isprintable():
            raise self._error("returned a token with characters that an HTTP header cannot contain")
        expires = status.expiration_timestamp
        credential = Credential(
            status.token,
            status.client_certificate_data,
            status.client_key_data,
            None if expires is None else expires.timestamp(),
        )
        if credential.expires is not None and credential.expires <= self._wall():
            raise self._error(f"returned a credential that expired at {expires}: compare the clocks, or log in again")
        return credential

    def _error(self, what: str) -> CredentialError:
        return CredentialError(f"{self.command.source}: credential plugin {self.command.command!r} {what}")


def _collect(process: subprocess.Popen[bytes], deadline: float, monotonic: Callable[[], float]) -> tuple[bytes, bytes]:
    """Return what the process wrote to standard output and standard error until it exited.

    It does not wait for the end of the pipes, which a remaining child may keep open. Raises TimeoutError at the
    deadline, OverflowError for too much output.
    """
    texts: dict[str, bytearray] = {"output": bytearray(), "errors": bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream, name in ((process.stdout, "output"), (process.stderr, "errors")):
            if stream is not None:
                waiting.register(stream, selectors.EVENT_READ, name)
        while True:
            exited = process.poll() is not None
            ready = waiting.select(0.0 if exited else _POLL_SECONDS) if waiting.get_map() else []
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    waiting.unregister(key.fileobj)
                texts[key.data] += data
                if len(texts[key.data]) > _OUTPUT_BYTES:
                    raise OverflowError
            if exited and not ready:
                return bytes(texts["output"]), bytes(texts["errors"])
            if monotonic() > deadline:
                raise TimeoutError
            if not waiting.get_map() and not exited:
                time.sleep(_POLL_SECONDS)


def _end(process: subprocess.Popen[bytes], *, group: bool) -> None:
    """Close the pipes. End the plugin if it still runs, and with `group` its children, too."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    process.wait()


def _readable(text: str) -> str:
    """Return the text on one line, without escape sequences and control characters."""
    return plain(" ".join(_ESCAPES.sub("", text).split()))
