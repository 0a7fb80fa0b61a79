"""What the API accepts: who may ask, and bodies checked field by field. Every refusal says what would be accepted."""

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
"""Of a request: a submission carries an environment, which execve(2) limits to about twice as much anyway."""


MOST_PRIORITY = 0
"""Of a submitter's job: as with Slurm's --nice, users lower the priority of their jobs, and operators raise it."""


class RefusedError(GangwatchError):
    """A request is refused. status: of HTTP; the text says why, and what would be accepted."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


# --- who may ask -----------------------------------------------------------------------------------------------------


def check_origin(request: Request) -> None:
    """Refuse a request that a web page elsewhere could have made.

    Without TLS the Host must be loopback with this server's port: a name that was rebound to 127.0.0.1 is not. Over TLS
    a browser that was led here by another name has refused our certificate already. An Origin, where a browser sends
    one, must be this server's own page. Raises RefusedError.
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
    name, given_port = host, "80"  # of http, where a Host names none
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
    """The specification with the user that was authenticated, whatever it claims; an operator may submit for others.

    Raises AccessError for a priority that takes an operator: with it a job goes before everybody's, and may have
    others' stopped.
    """
    if who.role >= Role.OPERATOR:
        return spec if spec.user else replace(spec, user=who.user)
    if spec.priority > MOST_PRIORITY:
        raise AccessError(403, f"a priority above {MOST_PRIORITY} takes the role operator; you are {who.name}")
    return replace(spec, user=who.user)


# --- bodies ----------------------------------------------------------------------------------------------------------

_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Words = Annotated[str, Meta(max_length=1000)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class Submission(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/jobs: the fields of JobSpec that are a user's."""

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

    def spec(self) -> JobSpec:
        """The specification that the cycle takes."""
        if self.working_directory and not self.working_directory.startswith("/"):
            raise RefusedError(400, f"working_directory: {self.working_directory!r} is no absolute path")
        for field, text in (
            *(("name", self.name), ("user", self.user), ("queue", self.queue), ("workload", self.workload)),
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
    """The body of an operator's command: who, and why; both are kept in the story."""

    by: _Words = ""
    reason: _Words = ""

    def checked(self) -> Self:
        """This, with texts that can be shown as they are. Raises RefusedError."""
        _check_plain("by", self.by)
        _check_plain("reason", self.reason)
        return self


class NodeReason(Reason, forbid_unknown_fields=True):
    """The body of a command for a node. drain: with maintenance, move restartable jobs away."""

    drain: bool = False


Body = TypeVar("Body", bound=msgspec.Struct)


async def body_of(request: Request, kind: type[Body]) -> Body:
    """The body of a POST. Raises RefusedError naming the field that is wrong."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Also what keeps a page elsewhere from posting a plain form.
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
        raise RefusedError(400, f"the body is no JSON: {error}") from None
    return body.checked() if isinstance(body, Reason) else body


def number_of(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """A whole number of the query. Raises RefusedError naming it."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not text.isascii() or not least <= int(text[:20]) <= most:
        raise RefusedError(400, f"{name}: expected a whole number from {least} to {most}, not {text!r}")
    return int(text)
