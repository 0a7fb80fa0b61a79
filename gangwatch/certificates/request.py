"""Request of an agent's certificate on Kubernetes, with a private key that this module creates.

The key never leaves the pod. The API server authenticates the sender by the pod's token, and the controller approves
the request (signer.py). The agent runs `gangwatch kubernetes certificate` at start and when a third of the lifetime is
left.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import secrets
import shutil
from pathlib import Path

import msgspec

from agent.schema.errors import ConfigError, GangwatchError
from agent.schema.identity import of_node
from gangwatch.certificates.authority import new_key, new_request, read
from gangwatch.certificates.folder import write_pair
from gangwatch.certificates.signer import PATH, Request
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError, UnreachableError

POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0

PENDING = "pending"
"""Subfolder with the name and key of an undecided request. A restarted agent uses this request again. Otherwise
thousands of agents without a controller would fill the API server's store with requests."""

_requests = msgspec.json.Decoder(Request)


async def obtain(
    access: Access, signer: str, node: str, hosts: tuple[str, ...], folder: Path, authority: Path, wait_seconds: float
) -> str:
    """Write a new certificate, its key and the authority's certificate into the folder; return a message.

    authority: file of the authority's certificate. Raises GangwatchError if the request is refused or not decided in
    time, BackendError if the API server refuses it.
    """
    names = (of_node(node), *hosts)
    try:
        trusted = authority.read_bytes()
    except OSError as error:
        raise ConfigError(f"{authority}: {error.strerror}") from None
    pending = folder / PENDING
    async with Client(access, agent="gangwatch-agent") as client:
        name, key = _pending(pending)
        if name and await _find(client, name) is None:
            name = ""  # the server deletes requests after a day
        if not name:
            name, key = f"gangwatch-agent-{secrets.token_hex(8)}", new_key()
            await client.create(PATH, _body(name, signer, new_request(key, names)))
            _keep(pending, name, key)
        try:
            certificate = await _issued(client, name, signer, wait_seconds)
        except RefusalError:
            shutil.rmtree(pending, ignore_errors=True)
            raise
    made = read(certificate)
    if names[0] not in made.names:
        shutil.rmtree(pending, ignore_errors=True)
        raise GangwatchError(f"certificate request {name}: the signed certificate does not name {names[0]}")
    write_pair(folder, key, certificate, trusted)
    shutil.rmtree(pending, ignore_errors=True)
    return f"{names[0]}: serial {made.serial}, until {made.not_after:%Y-%m-%d}"


class RefusalError(GangwatchError):
    """The API server has denied the request, or it can't be signed. A retry of the same request is useless."""


def _body(name: str, signer: str, request: bytes) -> dict[str, object]:
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "gangwatch"}},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": signer,
            "usages": ["digital signature", "server auth"],
        },
    }


def _pending(folder: Path) -> tuple[str, bytes]:
    """Return the name and private key of the request that waits for its signature; ('', b'') if there is none."""
    try:
        return (folder / "name").read_text(encoding="ascii").strip(), (folder / "tls.key").read_bytes()
    except (OSError, UnicodeDecodeError):
        return "", b""


def _keep(folder: Path, name: str, key: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "tls.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    (folder / "name").write_text(name, encoding="ascii")


async def _find(client: Client, name: str) -> Request | None:
    """Return the certificate request with this name; None if it does not exist. Raises UnreachableError."""
    try:
        return await client.get(f"{PATH}/{name}", _requests)
    except RefusedError as error:
        if error.code == 404:
            return None
        raise


async def _issued(client: Client, name: str, signer: str, wait_seconds: float) -> bytes:
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + wait_seconds, POLL_SECONDS
    while True:
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(1.5 * pause, LONGEST_POLL_SECONDS)
        try:
            found = await _find(client, name)
        except UnreachableError:
            found = None  # retry: the server has stored the request
        if found is not None:
            for one in found.status.conditions or ():
                if one.type in ("Denied", "Failed"):
                    raise RefusalError(f"certificate request {name}: {one.type.lower()}: {one.message or one.reason}")
            if found.status.certificate:
                return base64.b64decode(found.status.certificate)
        if loop.time() >= until:
            approved = found is not None and found.has("Approved")
            why = f"signer {signer} has not signed it" if approved else "not approved yet: is a controller running?"
            raise GangwatchError(f"certificate request {name}: timed out after {wait_seconds:.0f} s: {why}")
