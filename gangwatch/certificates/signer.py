"""Which certificate requests of the cluster's agents are approved, and signed where the authority is ours.

An agent's pod asks the API server (certificates.k8s.io/v1) for a certificate of a signer of our own. Who asked, the API
server says: the pod's service account and, in the token's claims, the pod and the node that it runs on
(https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens). A
kubelet gets such tokens for pods of its own node alone, so whoever has root on a node can ask for that node's
certificate and for no other.

Another signer may do the signing (cert-manager: ``clusterissuers.cert-manager.io/NAME``). It makes the certificate out
as it is asked for, so what is asked for is checked here before it is approved.
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
from scheduler_feedback.backends.kubernetes import Access
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.objects.objects import Condition, Metadata, Part

SIGNER = "gangwatch.io/agent"
PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

NODE = "authentication.kubernetes.io/node-name"
POD = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
"""What the API server says of a token that is bound to a pod (k8s.io/apiserver, pkg/authentication/serviceaccount)."""

USES = frozenset({"server auth", "digital signature", "key encipherment"})

MOST_AN_HOUR = 12
"""Certificates of one node. An agent asks once in a month; one that asks all the time writes to the cluster's store."""

STALE_SECONDS = 3600.0
"""A request that nobody has decided for so long is nobody's any more: its agent has asked again."""

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
        """What the API server says of who asked; '' where it says nothing, or not one thing."""
        found = (self.extra or {}).get(key, [])
        return found[0] if len(found) == 1 else ""


class CertificateStatus(Part):
    conditions: list[Condition] | None = None
    certificate: str | None = None


class Request(Part):
    """A CertificateSigningRequest."""

    metadata: Metadata
    spec: Spec = msgspec.field(default_factory=Spec)
    status: CertificateStatus = msgspec.field(default_factory=CertificateStatus)

    def has(self, condition: str) -> bool:
        """Whether it was approved ('Approved'), or denied ('Denied')."""
        return any(one.type == condition for one in self.status.conditions or ())


class PodSpec(Part):
    node_name: str = ""


class Pod(Part):
    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


@dataclass(frozen=True, slots=True)
class Rules:
    """Whose requests are answered. account: of the agents, 'NAMESPACE:NAME'. hosts: names that every agent's
    certificate has as well, by which it is scraped. days: how long a certificate lasts."""

    account: str
    hosts: tuple[str, ...]
    signer: str = SIGNER
    days: float = 90.0

    @property
    def ours(self) -> bool:
        """Whether we sign, too."""
        return self.signer == SIGNER


@dataclass(frozen=True, slots=True)
class Decision:
    """names: of the certificate, for an approval; refusal: why not, otherwise."""

    names: tuple[str, ...] = ()
    refusal: str = ""


def decide(request: Request, node: str, rules: Rules, revocations: Revocations) -> Decision:
    """Decide one request. node: on which its sender runs, as the API server says; '' where it does not. Pure."""
    spec = request.spec
    if spec.username != f"system:serviceaccount:{rules.account}":
        return Decision(refusal=f"{spec.username} is not the agents' service account")
    if not node:
        return Decision(refusal="nothing says on which node its sender runs: its token is bound to no pod")
    try:
        identity = of_node(node)
        _, names = requested(base64.b64decode(spec.request, validate=True))
    except (ConfigError, ValueError, binascii.Error) as error:
        return Decision(refusal=str(error))
    allowed = (identity, *rules.hosts)
    if identity not in names or not set(names) <= set(allowed):
        return Decision(refusal=f"it asks for {', '.join(names)[:200]}; its sender runs on {node}")
    if not set(spec.usages or ()) <= USES:
        return Decision(refusal=f"it asks for {', '.join(spec.usages or ())[:200]}; an agent's certificate only serves")
    if revocations.bars(identity):
        return Decision(refusal=f"{identity} is revoked; `gangwatch kubernetes admit {node}` ends that")
    return Decision(allowed)


@dataclass(slots=True)
class Signer:
    """Approves and signs, on a thread of its own, whether this controller leads or not: requests are decided alike by
    all, and the API server takes the first decision.

    authority: folder with ca.crt and ca.key, read for each certificate; None where another signs. revoked: the file of
    revocations, None for none.
    """

    access: Access
    rules: Rules
    authority: Path | None = None
    revoked: Path | None = None
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
        """Begin, on a thread of its own."""
        self._thread = threading.Thread(target=self._main, name="signer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; what was under way is done by another, or by this one when it is started again."""
        if self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
        if self._thread is not None:
            self._thread.join(5.0)

    def measures(self) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
        """Samples of the catalogue; from any thread."""
        return [
            ("gangwatch_certificates_signed_total", (("outcome", "refused"),), float(self.refused)),
            ("gangwatch_certificates_signed_total", (("outcome", "signed"),), float(self.signed)),
        ]

    def _main(self) -> None:
        while True:
            try:
                asyncio.run(self._run())
                return
            except Exception as error:  # certificates that are there go on; an alarm comes long before they end
                _log.critical("signing certificates failed, tried again in %.0f s", _AGAIN_SECONDS, exc_info=error)
                time.sleep(_AGAIN_SECONDS)

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with Client(self.access, agent="gangwatch-signer") as client:

            def told(_key: str, _before: Request | None, after: Request | None) -> None:
                if after is not None and after.metadata.name not in self._busy and self._open(after):
                    self._busy.add(after.metadata.name)
                    task = asyncio.get_running_loop().create_task(self._handle(client, after))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

            watch = Watch(client, PATH, Request, told, {"fieldSelector": f"spec.signerName={self.rules.signer}"})
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
        """Whether there is something to be done about it."""
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
            if error.code not in (404, 409):  # it is gone, or another of us was faster
                _log.error("certificate request %s: %s", name, error)
        except (BackendError, ConfigError) as error:
            _log.error("certificate request %s is left until its agent asks again: %s", name, error)
        except Exception as error:  # of one request: the others are decided
            _log.critical("certificate request %s: this is a bug, please report it", name, exc_info=error)
        finally:
            self._busy.discard(name)

    async def _decide(self, client: Client, request: Request) -> None:
        name = request.metadata.name
        node = await self._node_of(client, request.spec)
        revocations = read_revocations(_bytes(self.revoked), str(self.revoked))
        decision = decide(request, node, self.rules, revocations)
        if not decision.refusal and not request.has("Approved") and not self._may(node):
            decision = Decision(refusal=f"{node} has asked for more than {MOST_AN_HOUR} certificates in an hour")
        if decision.refusal:
            self.refused += 1
            _log.warning("certificate request %s of %s refused: %s", name, request.spec.username, decision.refusal)
            if not request.has("Approved"):
                await _judge(client, request, Condition("Denied", "True", "Refused", decision.refusal))
            return
        if not request.has("Approved"):
            why = f"its sender runs on {node}"
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
        """The sender's node: as its token says or, before Kubernetes 1.30, by the pod that its token is bound to."""
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
        """Count one more certificate of the node; False where it has had too many lately."""
        now = self.clock()
        made = self._made.setdefault(node, deque(maxlen=MOST_AN_HOUR))
        if len(made) == MOST_AN_HOUR and now - made[0] < 3600.0:
            return False
        made.append(now)
        return True


_pods = msgspec.json.Decoder(Pod)
_requests = msgspec.json.Decoder(Request)
_anything: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict)


async def _present(client: Client, name: str) -> dict[str, Any]:
    """The whole object, as it is to be written back."""
    return await client.get(f"{PATH}/{name}", _anything)


async def _judge(client: Client, request: Request, condition: Condition) -> Request:
    """Write the decision; the request with it. The object is written back whole, at the version that was read."""
    document = await _present(client, request.metadata.name)
    document.setdefault("status", {}).setdefault("conditions", []).append(msgspec.to_builtins(condition))
    answer = await client.replace(f"{PATH}/{request.metadata.name}/approval", document)
    return _requests.decode(answer)


def _age(request: Request) -> float:
    """Seconds since it was made; 0 where that is not told."""
    try:
        made = datetime.fromisoformat(request.metadata.creation_timestamp)
    except ValueError:
        return 0.0
    return (datetime.now(UTC) - made).total_seconds()


def _bytes(path: Path | None) -> bytes:
    """A file's content; b'' where there is none. Raises ConfigError where it can't be read."""
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
