"""An agent's own certificate on Kubernetes: a key that is made here, and a request to the API server.

The key never leaves the pod. Who asks, the API server knows by the pod's token; whether the request is granted, the
controller decides (signer.py). The command is run by the agent itself (agent.certificate_command), at its start and
when a third of the certificate's life is left.
"""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
from pathlib import Path

import msgspec

from agent.schema.errors import ConfigError, GangwatchError
from agent.schema.identity import of_node
from gangwatch.certificates.authority import new_key, new_request, read
from gangwatch.certificates.folder import write_pair
from gangwatch.certificates.signer import PATH, Request
from scheduler_feedback.backends.kubernetes import Access
from scheduler_feedback.backends.kubernetes.client import Client, UnreachableError

POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0

_requests = msgspec.json.Decoder(Request)


async def obtain(
    access: Access, signer: str, node: str, hosts: tuple[str, ...], folder: Path, authority: Path, wait_seconds: float
) -> str:
    """Put a new certificate, its key and the authority's certificate in the folder; words about it.

    authority: the file of the authority's certificate. Raises GangwatchError where the request is refused, or not
    decided in time, and BackendError where the API server refuses it.
    """
    key = new_key()
    names = (of_node(node), *hosts)
    name = f"gangwatch-agent-{secrets.token_hex(8)}"
    body = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "gangwatch"}},
        "spec": {
            "request": base64.b64encode(new_request(key, names)).decode(),
            "signerName": signer,
            "usages": ["digital signature", "server auth"],
        },
    }
    try:
        trusted = authority.read_bytes()
    except OSError as error:
        raise ConfigError(f"{authority}: {error.strerror}") from None
    async with Client(access, agent="gangwatch-agent") as client:
        await client.create(PATH, body)
        certificate = await _issued(client, name, signer, wait_seconds)
    made = read(certificate)
    if names[0] not in made.names:
        raise GangwatchError(f"certificate request {name}: what was signed is not made out to {names[0]}")
    write_pair(folder, key, certificate, trusted)
    return f"{names[0]}: serial {made.serial}, until {made.not_after:%Y-%m-%d}"


async def _issued(client: Client, name: str, signer: str, wait_seconds: float) -> bytes:
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + wait_seconds, POLL_SECONDS
    while True:
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(1.5 * pause, LONGEST_POLL_SECONDS)
        try:
            found = await client.get(f"{PATH}/{name}", _requests)
        except UnreachableError:
            found = None  # asked again: the request itself is in the server's store
        if found is not None:
            for one in found.status.conditions or ():
                if one.type in ("Denied", "Failed"):
                    raise GangwatchError(f"certificate request {name}: {one.type.lower()}: {one.message or one.reason}")
            if found.status.certificate:
                return base64.b64decode(found.status.certificate)
        if loop.time() >= until:
            approved = found is not None and found.has("Approved")
            who = f"signer {signer} has not signed it" if approved else "nobody has approved it: does a controller run?"
            raise GangwatchError(f"certificate request {name}: after {wait_seconds:.0f} s {who}")
