"""Approval of the agents' certificate requests, and their signing if gangwatch has the authority.

An agent's pod requests a certificate from the API server (certificates.k8s.io/v1), for gangwatch's own signer name. The
API server attests the sender: the pod's service account and, from the token's claims, the pod and its node
(https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens). A
kubelet gets such tokens only for pods on its node, so root on a node can request only that node's certificate.

If another signer signs (cert-manager: ``clusterissuers.cert-manager.io/NAME``), gangwatch only checks and approves
the request.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agent.schema.errors import BackendError, ConfigError
from agent.schema.identity import Revocations, of_node, read_revocations
from gangwatch.certificates.authority import Authority, requested
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.objects.objects import Condition, Metadata, Part

SIGNER = "gangwatch.io/agent"
PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

NODE = "authentication.kubernetes.io/node-name"
POD = "authentication.kubernetes.io/pod-name"
"""Name of the attribute in which the API server reports the name of the pod that sent a request (k8s.io/apiserver,
pkg/authentication/serviceaccount)."""
POD_UID = "authentication.kubernetes.io/pod-uid"
"""Name of the attribute in which the API server reports the uid of the pod that sent a request."""

USES = frozenset({"server auth", "digital signature", "key encipherment"})

MAX_PER_HOUR = 12
"""Maximum number of certificates per node and hour. An agent normally needs one per month."""

STALE_SECONDS = 3600.0
"""Age in seconds above which an undecided request is ignored, because its agent has sent a new one."""

_AGAIN_SECONDS = 30.0
_log = logging.getLogger(__name__)


class Spec(Part):
    request: str = ""
    signer_name: str = ""
    username: str = ""
    usages: list[str] | None = None
    extra: dict[str, list[str]] | None = None
    expiration_seconds: int | None = None

    def said(self, key: str) -> str:
        """Return an extra attribute that the API server has set for the sender, such as its node.

        Return '' if the attribute is missing or has several values.
        """
        found = (self.extra or {}).get(key, [])
        return found[0] if len(found) == 1 else ""


class CertificateStatus(Part):
    conditions: list[Condition] | None = None
    certificate: str | None = None


class Request(Part):
    """A CertificateSigningRequest object of the Kubernetes API."""

    metadata: Metadata
    spec: Spec = msgspec.field(default_factory=Spec)
    status: CertificateStatus = msgspec.field(default_factory=CertificateStatus)

    def has(self, condition: str) -> bool:
        """Return whether the request has the given condition ('Approved', 'Denied', 'Failed')."""
        return any(one.type == condition for one in self.status.conditions or ())


class PodSpec(Part):
    node_name: str = ""


class Pod(Part):
    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that decide which certificate requests are approved."""

    account: str
    """The agents' service account, 'NAMESPACE:NAME'."""
    hosts: tuple[str, ...]
    """Additional names in every agent's certificate, under which Prometheus connects to agents."""
    signer: str = SIGNER
    days: float = 90.0
    """Validity of a certificate, in days."""

    @property
    def ours(self) -> bool:
        """Whether gangwatch signs the certificates. If not, it only approves the requests."""
        return self.signer == SIGNER


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about one certificate request: approved or refused."""

    names: tuple[str, ...] = ()
    """Names that the certificate will contain; empty if the request is refused."""
    refusal: str = ""
    """Reason of the refusal; '' if the request is approved."""


def decide(request: Request, node: str, rules: Rules, revocations: Revocations) -> Decision:
    """Return the decision about one request, without side effects.

    node: the sender's node according to the API server; '' if unknown.
    """
    spec = request.spec
    if spec.username != f"system:serviceaccount:{rules.account}":
        return Decision(refusal=f"{spec.username} is not the agents' service account")
    if not node:
        return Decision(refusal="the sender's node is unknown: its token is not bound to a pod")
    try:
        identity = of_node(node)
        _, names = requested(base64.b64decode(spec.request, validate=True))
    except (ConfigError, ValueError, binascii.Error) as error:
        return Decision(refusal=str(error))
    allowed = (identity, *rules.hosts)
    if identity not in names or not set(names) <= set(allowed):
        return Decision(refusal=f"it requests the names {', '.join(names)[:200]}, but its sender runs on {node}")
    if not set(spec.usages or ()) <= USES:
        return Decision(
            refusal=f"it requests the uses {', '.join(spec.usages or ())[:200]}, which an agent does not need"
        )
    if revocations.bars(identity):
        return Decision(refusal=f"{identity} is revoked; `gangwatch kubernetes admit {node}` allows new certificates")
    return Decision(allowed)


@dataclass(slots=True)
class Signer:
    """Thread that approves and signs certificate requests. It runs on the leader and on standbys.

    All controllers make the same decision about a request, and the API server accepts the first response.
    """

    access: Access
    rules: Rules
    authority: Path | None = None
    """Folder with ca.crt and ca.key, which are read for each certificate; None if another signer signs."""
    revoked: Path | None = None
    """Path of the file that lists revoked certificates; None if there is no such file."""
    clock: Callable[[], float] = time.monotonic
    signed: int = 0
    refused: int = 0
    _made: dict[str, deque[float]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _busy: set[str] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _ended: asyncio.Event | None = None

    def start(self) -> None:
        """Start the thread that approves and signs requests."""
        self._thread = threading.Thread(target=self._main, name="signer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Open requests are handled by other controllers, or after a restart."""
        if self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
        if self._thread is not None:
            self._thread.join(5.0)

    def measures(self) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
        """Return the signer's metric samples. Any thread may call this function."""
        return [
            ("gangwatch_certificates_signed_total", (("outcome", "refused"),), float(self.refused)),
            ("gangwatch_certificates_signed_total", (("outcome", "signed"),), float(self.signed)),
        ]

    def _main(self) -> None:
        while True:
            try:
                asyncio.run(self._run())
                return
            except Exception as error:  # existing certificates stay valid, and an alert fires long before they expire
                _log.critical("signing certificates failed, retrying in %.0f s", _AGAIN_SECONDS, exc_info=error)
                time.sleep(_AGAIN_SECONDS)

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with Client(self.access, agent="gangwatch-signer") as client:

            def changed(_key: str, _before: Request | None, after: Request | None) -> None:
                if after is not None and after.metadata.name not in self._busy and self._open(after):
                    self._busy.add(after.metadata.name)
                    task = asyncio.get_running_loop().create_task(self._handle(client, after))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

            watch = Watch(client, PATH, Request, changed, {"fieldSelector": f"spec.signerName={self.rules.signer}"})
            following = asyncio.create_task(watch.run())
            ended = asyncio.create_task(self._ended.wait())
            try:
                await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    await following
            finally:
                for task in (following, ended, *self._tasks):
                    task.cancel()
                await asyncio.gather(following, ended, *self._tasks, return_exceptions=True)

    def _open(self, request: Request) -> bool:
        """Return whether the request still needs a decision or a signature from this controller."""
        if (
            request.has("Denied")
            or request.has("Failed")
            or request.status.certificate
            or _age(request) > STALE_SECONDS
        ):
            return False
        return self.rules.ours or not request.has("Approved")

    async def _handle(self, client: Client, request: Request) -> None:
        name = request.metadata.name
        try:
            await self._decide(client, request)
        except RefusedError as error:
            if error.code not in (404, 409):  # deleted, or another controller was faster
                _log.error("certificate request %s: %s", name, error)
        except (BackendError, ConfigError) as error:
            _log.error("certificate request %s failed, waiting for the agent's next request: %s", name, error)
        except Exception as error:  # one failing request must not block the others
            _log.critical("certificate request %s: this is a bug, please report it", name, exc_info=error)
        finally:
            self._busy.discard(name)

    async def _decide(self, client: Client, request: Request) -> None:
        name = request.metadata.name
        node = await self._node_of(client, request.spec)
        revocations = read_revocations(_bytes(self.revoked), str(self.revoked))
        decision = decide(request, node, self.rules, revocations)
        if not decision.refusal and not request.has("Approved") and not self._may(node):
            decision = Decision(refusal=f"{node} has requested more than {MAX_PER_HOUR} certificates within an hour")
        if decision.refusal:
            self.refused += 1
            _log.warning("certificate request %s of %s refused: %s", name, request.spec.username, decision.refusal)
            if not request.has("Approved"):
                await _judge(client, request, Condition("Denied", "True", "Refused", decision.refusal))
            return
        if not request.has("Approved"):
            why = f"the sender runs on {node}"
            request = await _judge(client, request, Condition("Approved", "True", "AttestedByTheApiServer", why))
        if not self.rules.ours or self.authority is None:
            return
        authority = Authority(_bytes(self.authority / "ca.crt"), _bytes(self.authority / "ca.key"))
        days = self.rules.days
        if request.spec.expiration_seconds is not None:
            days = min(days, request.spec.expiration_seconds / 86400)
        revoked = revocations.by_name.get(decision.names[0])
        issued = authority.issue(
            base64.b64decode(request.spec.request),
            decision.names,
            days,
            since=None if revoked is None else revoked.before,
        )
        document = await _present(client, name)
        document.setdefault("status", {})["certificate"] = base64.b64encode(issued.certificate).decode()
        await client.replace(f"{PATH}/{name}/status", document)
        self.signed += 1
        _log.info("node=%s serial=%s: certificate signed until %s", node, issued.serial, f"{issued.not_after:%Y-%m-%d}")

    async def _node_of(self, client: Client, spec: Spec) -> str:
        """Return the node of the sender's pod.

        Before Kubernetes 1.30 the token has no node, so the pod is requested.
        """
        if node := spec.said(NODE):
            return node
        pod, uid = spec.said(POD), spec.said(POD_UID)
        namespace = self.rules.account.partition(":")[0]
        if not pod or not uid or "/" in pod:
            return ""
        try:
            found = await client.get(f"/api/v1/namespaces/{namespace}/pods/{pod}", _pods)
        except RefusedError:
            return ""
        return found.spec.node_name if found.metadata.uid == uid else ""

    def _may(self, node: str) -> bool:
        """Return whether the node may get another certificate, and count it; False after MAX_PER_HOUR in the last
        hour."""
        now = self.clock()
        made = self._made.setdefault(node, deque(maxlen=MAX_PER_HOUR))
        if len(made) == MAX_PER_HOUR and now - made[0] < 3600.0:
            return False
        made.append(now)
        return True


_pods = msgspec.json.Decoder(Pod)
_requests = msgspec.json.Decoder(Request)
_anything: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict)


async def _present(client: Client, name: str) -> dict[str, Any]:
    """Return the complete CertificateSigningRequest object as a dictionary, to be changed and written back."""
    return await client.get(f"{PATH}/{name}", _anything)


async def _judge(client: Client, request: Request, condition: Condition) -> Request:
    """Add the condition to the request and return the updated request.

    The API server refuses the update if the request has changed since it was read.
    """
    document = await _present(client, request.metadata.name)
    document.setdefault("status", {}).setdefault("conditions", []).append(msgspec.to_builtins(condition))
    answer = await client.replace(f"{PATH}/{request.metadata.name}/approval", document)
    return _requests.decode(answer)


def _age(request: Request) -> float:
    """Return the seconds since the creation of the request; 0 if its creation time is unknown."""
    try:
        made = datetime.fromisoformat(request.metadata.creation_timestamp)
    except ValueError:
        return 0.0
    return (datetime.now(UTC) - made).total_seconds()


def _bytes(path: Path | None) -> bytes:
    """Return the content of a file; b'' if the path is None or no such file exists. Raises ConfigError."""
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
