"""Sections of the configuration file: keys, types, ranges and defaults.

config_file.py reads, checks and prints a file. To add a section, add a class here and a line in SECTIONS.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.schema.errors import ConfigError
from agent.schema.identity import CONTROLLER
from scheduler_feedback.backends.slurm.section import SlurmSection

DEFAULT_PORT = 9420
"""The controller's port, in the usual range of exporters (9100 and up)."""


def parse_listen(text: str, where: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPV6]:PORT". Raises ConfigError, which begins with `where`."""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not colon or not host or not is_port or (":" in host and host[0] != "["):
        raise ConfigError(f"{where}: expected HOST:PORT or [IPV6]:PORT, not {text!r}")
    return host, int(port)


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """The virtual nodes of this machine."""

    nodes: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Number of nodes; None: from the machine's size (``plan_nodes``)."""
    slots: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Slots per node; None: one per GPU or per processor, distributed over the nodes."""
    gpus: bool = True
    """Whether slots are GPUs, if this machine has any."""
    names: tuple[str, ...] | None = None
    """Names of the nodes; None: derived from the host's name."""


class AgentSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent: its server, and the sources that it reads."""

    interval_seconds: Annotated[float, Meta(ge=0.05, le=60)] = 1.0
    """Time between two frames."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port of the first node's agent on loopback; the next nodes use the following ports. 0 picks free ports."""
    listen: str | None = None
    """HOST:PORT instead of `port`; off loopback it needs `web_config`."""
    web_config: str | None = None
    """File with TLS settings and passwords, in the exporter-toolkit's format."""
    nvml_library: str | None = None
    """Path of the NVML library; None for the system's libnvidia-ml.so.1."""
    sysfs_root: str = "/sys"
    proc_root: str = "/proc"
    kubelet_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The kubelet's pod-resources socket; '' disables it."""
    job_files: str | None = None
    """Folder where a Slurm prolog writes which job has which GPU, as for dcgm-exporter."""
    step_socket: str | None = None
    """Path of the step socket; '{node}' is replaced by the node's name.
    None: in the state folder. In a folder of mode 0711, the ranks of all users can reach it."""
    kernel_log: str = "/dev/kmsg"
    """Path of the kernel's log, or of a recorded log."""
    rdma_excluded: tuple[str, ...] = ()
    """Patterns of names or PCI addresses of RDMA devices that are never read."""
    gpu_burst: bool = False
    """Read each GPU ten times a second to catch extremes within an interval."""
    kubelet_pods: str = ""
    """The kubelet's folder of pods; '' for none. A pod with an emptyDir named 'gangwatch' gets the step socket in it,
    as agent.sock."""
    step_folder: str | None = None
    """Folder of the agent where the ranks of all users report, at `agent.sock`; created with mode 0711."""
    frame_readers: tuple[str, ...] = (CONTROLLER,)
    """Off loopback, only clients with a certificate of one of these names can read frames over TLS; a password does not
    suffice. Empty: all clients that may read metrics, perhaps with one password for all agents."""
    revoked_file: str | None = None
    """List of revoked certificates (`gangwatch certificates revoke`) of `frame_readers`."""
    certificate_command: tuple[str, ...] = ()
    """Argument list, without a shell. The agent runs it at start until web_config's certificate exists, and when a
    third of its lifetime is left; the command replaces the files. GANGWATCH_NODE in its environment names the node."""


class StepQuotasSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of tenants on an agent's step socket. A tenant is a pod, a job, or the user of unattested processes."""

    reporters: Annotated[int, Meta(ge=1, le=16384)] = 1024
    """Maximum number of reporting processes."""
    reporters_unattested: Annotated[int, Meta(ge=0, le=16384)] = 256
    """Maximum number of reporters of unattested processes, over all users; the rest is reserved for attested ranks."""
    reporters_per_pod: Annotated[int, Meta(ge=0, le=16384)] = 64
    reporters_per_job: Annotated[int, Meta(ge=0, le=16384)] = 256
    reporters_per_user: Annotated[int, Meta(ge=0, le=16384)] = 16
    registrations_per_second: Annotated[float, Meta(ge=0.01, le=10_000)] = 4.0
    """Average number of registrations per second and tenant; a burst may have twice the tenant's reporters."""
    ring_slots: Annotated[int, Meta(ge=256, le=65536)] = 65536
    """Maximum number of slots in a ring (64 bytes each, in the reporter's memory)."""
    ring_slots_unattested: Annotated[int, Meta(ge=256, le=65536)] = 16384
    name_length: Annotated[int, Meta(ge=1, le=253)] = 128
    """Maximum length of a gang name from an unattested process, in characters."""


class ExporterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of an agent's /metrics. A running agent reloads it on SIGHUP."""

    profile: Literal["default", "full"] = "default"
    """'default': the most important series of a node; 'full': all."""
    allow: tuple[str, ...] = ()
    """Globs of metric names to include regardless of the profile."""
    deny: tuple[str, ...] = ()
    """Globs of metric names to exclude."""
    series_limit: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    compatibility: tuple[Literal["dcgm", "node_exporter", "rdma_exporter"], ...] = ()
    """Additional metric names for existing dashboards."""
    hostname_label: Literal["Hostname", "hostname"] = "Hostname"
    """Name of the hostname label in the installed release of dcgm-exporter."""
    owner_labels: bool = False
    """Put the user of a GPU on each of its series, instead of on an info series to join."""


class PushSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Push of an agent's series, in addition to scrapes. A running agent reloads it on SIGHUP."""

    endpoint: str = ""
    """Complete URL; '' for none."""
    interval_seconds: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    headers_file: str | None = None
    """Lines "Name: value", sent as headers of each request (for example a token)."""
    ca_file: str | None = None
    """Authorities of the receiver's certificate; None for the system's."""
    queue_frames: Annotated[int, Meta(ge=1, le=100_000)] = 40
    """Frames to queue while the receiver is unavailable; the oldest are dropped first."""


class OtlpSection(PushSection, frozen=True, forbid_unknown_fields=True):
    """Push by OTLP. The controller pushes its own series to `endpoint`, too."""

    traces_endpoint: str = ""
    """Complete URL where the controller sends each job's lifecycle as a trace; '' for none."""


class ControllerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The controller's server, mode and topology. Requests with the state folder's token have no limits."""

    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    """Port on loopback; 0 picks a free port."""
    mode: Literal["observe", "act"] = "act"
    """Whether decisions of the scheduler feedback are applied."""
    listen: str | None = None
    """HOST:PORT instead of `port`; off loopback it needs `web_config` with TLS."""
    web_config: str | None = None
    """File in the exporter-toolkit's format. Its users, and holders of a token, may read; [access] defines roles."""
    topology_file: str | None = None
    """Switches of the nodes, as Slurm's topology.conf or as TOML (fabric_file.py)."""
    connections: Annotated[int, Meta(ge=16, le=65536)] = 1024
    """Maximum number of open connections."""
    connections_per_peer: Annotated[int, Meta(ge=8, le=65536)] = 256
    """Maximum number of open connections per address, or on loopback per user."""
    requests_per_second: Annotated[float, Meta(ge=1, le=100_000)] = 100.0
    """Maximum request rate per peer; requests above it are delayed."""
    streams: Annotated[int, Meta(ge=1, le=16384)] = 256
    """Maximum number of event streams, including those of open pages."""
    streams_per_peer: Annotated[int, Meta(ge=1, le=16384)] = 64

    def address(self) -> tuple[str, int]:
        """Return host and port to listen at. Raises ConfigError if `listen` is invalid."""
        return ("127.0.0.1", self.port) if self.listen is None else parse_listen(self.listen, "controller.listen")


RoleWord = Literal["viewer", "submitter", "operator"]


class AccessSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens, sessions and the audit log. The state folder's token is always an operator's."""

    token_files: tuple[str, ...] = ()
    """Tokens with names, users and roles, written by `gangwatch token`; read again when they change."""
    session_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 12 * 3600.0
    """Maximum duration of a login on the page."""
    session_idle_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 2 * 3600.0
    """Maximum time of a login without a request."""
    audit_target: Literal["file", "stdout"] = "file"
    """Audit log of user actions: 'file', in the state folder's audit/, or 'stdout', for a container's log collector."""
    audit_bytes: Annotated[int, Meta(ge=65536)] = 64 * 1024 * 1024
    """Size at which the file is rotated."""
    audit_files: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Number of rotated files to keep."""


class OidcSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Logins through an OpenID provider; needs `gangwatch[oidc]`."""

    issuer: str = ""
    """URL of the provider; '' for none."""
    client_id: str = ""
    """This controller's client id; only tokens for it are accepted."""
    client_secret_file: str | None = None
    """File with the client secret, if the provider issued one."""
    redirect_url: str = ""
    """https://HOST:PORT/login/oidc/callback, for logins on the page; '' accepts only bearer tokens."""
    user_claim: str = "sub"
    """Claim with the user name. Users must not be able to choose its value, and jobs must use the same name."""
    groups_claim: str = "groups"
    roles: dict[str, RoleWord] = {}
    """Role by group."""
    default_role: Literal["", "viewer", "submitter", "operator"] = ""
    """Role of users without a group in `roles`; '' refuses these users."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """Accepted signature algorithms of tokens."""
    scopes: tuple[str, ...] = ("openid", "profile", "groups")
    """Scopes that a login requests."""
    ca_file: str | None = None
    """Authorities of the provider's certificate; None for the system's."""


class TokenReviewSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that a Kubernetes API server authenticates, such as those of service accounts."""

    enabled: bool = False
    audiences: tuple[str, ...] = ()
    """Required audiences of tokens; empty: the API server's own audiences."""
    roles: dict[str, RoleWord] = {}
    """Role by user or group name."""
    access_review: bool = True
    """Whether the cluster's RBAC also grants roles: verb use, apiGroup gangwatch.io, resource roles, by name."""
    kubeconfig: str | None = None
    """Access to the API server; None: the pod's service account."""


class ClientSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The controller that the command line uses if no state folder is given."""

    url: str = ""
    """URL of the controller; '' for this user's own controller."""
    ca_file: str | None = None
    """File of the authorities of the controller's certificate."""
    token_file: str | None = None
    """File with a copy of the token in the controller's state folder."""
    cert_file: str | None = None
    """The client's certificate, if the controller requires one."""
    key_file: str | None = None


class FeedSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The controller's access to agents that use TLS."""

    ca_file: str | None = None
    """Authorities of the agents' certificates."""
    cert_file: str | None = None
    """The controller's certificate, for agents that require one."""
    key_file: str | None = None
    username: str = ""
    """User name, for agents that require a password."""
    password_file: str | None = None
    verify: Literal["node", "host"] = "node"
    """'node': an agent's certificate must name its node. 'host': it must name the host in the agent's URL."""
    revoked_file: str | None = None
    """List of revoked certificates (`gangwatch certificates revoke`); read again when it changes."""


class StoreSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Snapshots and retention of the journal. Rows that a restart needs are always kept."""

    snapshot_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    """Time between two snapshots of the state; a restart replays the journal from the latest."""
    keep_days: Annotated[float, Meta(ge=0.01, le=3650)] = 30.0
    """Age at which journal rows and stories of ended jobs are deleted."""
    journal_bytes: Annotated[int, Meta(ge=1_000_000)] = 512 * 1024 * 1024
    """File size above which the oldest rows are deleted earlier."""


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "cluster": ClusterSection,
    "agent": AgentSection,
    "step_quotas": StepQuotasSection,
    "exporter": ExporterSection,
    "otlp": OtlpSection,
    "remote_write": PushSection,
    "controller": ControllerSection,
    "access": AccessSection,
    "oidc": OidcSection,
    "token_review": TokenReviewSection,
    "client": ClientSection,
    "feed": FeedSection,
    "slurm": SlurmSection,
    "store": StoreSection,
}
