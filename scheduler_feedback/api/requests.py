"""Checks of requests to the API: their origin, and each field of their bodies. Refusals name the valid values."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Self, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request

from agent.schema.errors import GangwatchError
from scheduler_feedback.api.access.authentication import UNIX_PEER
from scheduler_feedback.api.access.principal import AccessError, Principal, Role
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import Dependency, Group, JobSpec, Packing
from scheduler_feedback.core.plain_text import misleading

MAX_BODY_BYTES = 1024 * 1024
"""Maximum size of a request body in bytes. The largest are submissions with a long environment."""


MOST_PRIORITY = 0
"""Highest priority that submitters may set. Only operators may set a higher one, as with Slurm's --nice."""


class RefusedError(GangwatchError):
    """Error for a refused request. status: the HTTP status. Its text says why, and what would be accepted."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


# --- origin ----------------------------------------------------------------------------------------------------------


def check_origin(request: Request) -> None:
    """Refuse a request that another site's web page could have sent. Raises RefusedError.

    Without TLS the Host must be a loopback address with this server's port: this stops names that were rebound to
    127.0.0.1. With TLS a browser has already refused the certificate for another name. If the request has an Origin, it
    must be this server's.
    """
    host = request.headers.get("host", "")
    server = request.scope.get("server")
    by_unix_socket = request.client is not None and request.client.host.startswith(UNIX_PEER)
    if not by_unix_socket and request.url.scheme != "https" and not _is_loopback(host, server[1] if server else None):
        raise RefusedError(403, f"Host {host!r} is not this server's loopback address")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{host}":
        raise RefusedError(403, f"Origin {origin!r} is not this server's own")


def _is_loopback(host: str, port: int | None) -> bool:
    name, given_port = host, "80"  # the default of HTTP
    if ":" in host and not host.endswith("]"):
        name, _, given_port = host.rpartition(":")
    if given_port != str(port):
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def submitted_by(spec: JobSpec, who: Principal) -> JobSpec:
    """Return the specification with the authenticated user as its user. Operators may submit for other users.

    Raises AccessError if the priority requires an operator: a job with a high priority starts before other users' jobs,
    and may preempt them.
    """
    if who.role >= Role.OPERATOR:
        return spec if spec.user else replace(spec, user=who.user)
    if spec.priority > MOST_PRIORITY:
        raise AccessError(403, f"a priority above {MOST_PRIORITY} requires the role operator; you are {who.name}")
    return replace(spec, user=who.user)


# --- bodies ----------------------------------------------------------------------------------------------------------

_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Words = Annotated[str, Meta(max_length=1000)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class Submission(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /api/jobs: the fields of JobSpec that users set."""

    name: _Name
    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    ranks: Annotated[int, Meta(ge=1, le=1 << 20)]
    user: _Words = ""
    queue: _Name = "default"
    time_limit_seconds: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    restartable: bool = False
    checkpoint_signal: str = "SIGTERM"
    grace_seconds: _Seconds = 30.0
    restart_cost_seconds: _Seconds = 10.0
    max_retries: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    working_directory: str = ""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    min_ranks: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    max_ranks: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    sizes: Annotated[tuple[Annotated[int, Meta(ge=1, le=1 << 20)], ...], Meta(max_length=1000)] = ()
    reshard_seconds: _Seconds = 0.0
    array_size: Annotated[int, Meta(ge=0, le=100_000)] = 0
    array_parallel: Annotated[int, Meta(ge=0, le=100_000)] = 0
    groups: Annotated[tuple[Group, ...], Meta(max_length=1000)] = ()
    after: Annotated[tuple[Dependency, ...], Meta(max_length=1000)] = ()
    gpu_types: Annotated[tuple[_Name, ...], Meta(max_length=100)] = ()
    throughput: dict[str, Annotated[float, Meta(gt=0, le=1e6)]] = msgspec.field(default_factory=dict)
    checkpoint_interval_seconds: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    checkpoint_cost_seconds: _Seconds = 0.0
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    preemptible: bool = False
    min_run_seconds: _Seconds | None = None
    packing: Packing = Packing.PACK
    required_level: Level | None = None
    preferred_level: Level | None = None
    workload: _Words = ""
    checkpoint_command: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    checkpoint_timeout_seconds: Annotated[float, Meta(gt=0, le=1e9)] = 60.0
    shareable: bool = False
    opportunistic: bool = False
    slot_memory_mib: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    slot_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stages: Annotated[tuple[_Seconds, ...], Meta(max_length=16)] = ()
    latency_objective_seconds: _Seconds = 0.0
    dataset: _Words = ""
    dataset_gib: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    mig_profile: _Words = ""

    def spec(self) -> JobSpec:
        """Return the job specification. Raises RefusedError with the name of an invalid field."""
        if self.working_directory and not self.working_directory.startswith("/"):
            raise RefusedError(400, f"working_directory: {self.working_directory!r} is not an absolute path")
        for field, text in (
            *(("name", self.name), ("user", self.user), ("queue", self.queue), ("workload", self.workload)),
            *(("dataset", self.dataset), ("mig_profile", self.mig_profile)),
            *(("gpu_types", one) for one in self.gpu_types),
            *(("groups: role", group.role) for group in self.groups),
            *(("after: job_id", one.job_id) for one in self.after),
        ):
            _check_plain(field, text)
        return JobSpec(**{name: getattr(self, name) for name in self.__struct_fields__})


def _check_plain(field: str, text: str) -> None:
    if (wrong := misleading(field, text)) is not None:
        raise RefusedError(400, wrong)


class Reason(msgspec.Struct, forbid_unknown_fields=True):
    """Body of an operator's command. The user and the reason are recorded in the story."""

    by: _Words = ""
    reason: _Words = ""

    def checked(self) -> Self:
        """Return self if its texts can be displayed safely. Raises RefusedError otherwise."""
        _check_plain("by", self.by)
        _check_plain("reason", self.reason)
        return self


class NodeReason(Reason, forbid_unknown_fields=True):
    """Body of an operator's command for a node, such as quarantine or maintenance."""

    drain: bool = False
    """Whether maintenance of the node also moves its restartable jobs away."""


Body = TypeVar("Body", bound=msgspec.Struct)


async def body_of(request: Request, kind: type[Body]) -> Body:
    """Read and check the body of a POST request. Raises RefusedError with the name of an invalid field."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # This also stops other sites' pages from posting a plain form.
        raise RefusedError(415, "Content-Type must be application/json")
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise RefusedError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    try:
        body = msgspec.json.decode(bytes(content), type=kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        raise RefusedError(400, f"{field}: {reason}" if field else reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None
    return body.checked() if isinstance(body, Reason) else body


def number_of(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """Return a parameter of the query as a whole number. Raises RefusedError if it is not from `least` to `most`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not text.isascii() or not least <= int(text[:20]) <= most:
        raise RefusedError(400, f"{name}: expected a whole number from {least} to {most}, not {text!r}")
    return int(text)
