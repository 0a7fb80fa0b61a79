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
"""Default port of the controller, in the range that Prometheus exporters usually use (9100 and up)."""


def parse_listen(text: str, where: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPV6]:PORT". Raises ConfigError; its message begins with `where`."""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not colon or not host or not is_port or (":" in host and host[0] != "["):
        raise ConfigError(f"{where}: expected HOST:PORT or [IPV6]:PORT, not {text!r}")
    return host, int(port)


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """Section [cluster]: the virtual nodes of this machine."""

    nodes: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Number of virtual nodes; None derives it from the number of GPUs or processors of the machine."""
    slots: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Number of slots per node; None divides the GPUs or processors of the machine among the nodes."""
    gpus: bool = True
    """Whether a slot is a GPU if this machine has GPUs. False: a slot is a share of the processors."""
    names: tuple[str, ...] | None = None
    """Names of the nodes; None derives them from the name of the host."""
    jobs_per_slot: Annotated[int, Meta(ge=1, le=64)] = 1
    """Maximum number of shareable jobs on one slot. They share it by `policy.sharing`."""
    slot_memory_mib: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    """Device memory of each slot in MiB. The memory of all jobs on a slot must fit into it. 0: unknown, so jobs share
    slots whatever memory they need."""
    mig: bool = False
    """Whether gangwatch creates and destroys MIG instances on the GPUs of this machine, for `policy.mig`. MIG mode must
    be on, and gangwatch must run as root. A job with whole GPUs then gets one instance with all slices of each."""


class AgentSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [agent]: the agent's server, and the sources that the agent reads."""

    interval_seconds: Annotated[float, Meta(ge=0.05, le=60)] = 1.0
    """Time between two frames, in seconds."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port of the first node's agent on loopback. Other nodes' agents use the next ports. 0 picks free ports."""
    listen: str | None = None
    """Address HOST:PORT of the agent's server, in place of `port`. An address off loopback needs `web_config`."""
    web_config: str | None = None
    """File with TLS settings and passwords, in the exporter-toolkit's format."""
    nvml_library: str | None = None
    """Path of the NVML library; None for the system's libnvidia-ml.so.1."""
    sysfs_root: str = "/sys"
    proc_root: str = "/proc"
    kubelet_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Path of the kubelet's pod-resources socket, which reports the pod that uses each GPU; '' for none."""
    pod_label_names: tuple[str, ...] = ()
    """Keys of pod labels. Series with a label `pod` (DCGM's, and those with `owner_labels`) also get label_KEY.
    The agent must run in a pod whose service account may list pods."""
    job_files: str | None = None
    """Folder in which a Slurm prolog writes the job that uses each GPU, in the format of dcgm-exporter."""
    step_socket: str | None = None
    """Path of the step socket. '{node}' is replaced by the node's name. None puts the socket in the state folder.
    If the folder has mode 0711, the ranks of all users can reach the socket."""
    kernel_log: str = "/dev/kmsg"
    """Path of the kernel's log, or of a file with a recorded kernel log."""
    rdma_excluded: tuple[str, ...] = ()
    """Glob patterns of RDMA devices that the agent never reads, by device name or PCI address."""
    gpu_burst: bool = False
    """Whether the agent reads each GPU ten times a second, to find minimum and maximum values between two frames."""
    power_limits: str = ""
    """Range MIN..MAX in watts, such as '300..700', in which the controller may set the power limits of this node's GPUs
    (`policy.power_budget_watts`); '' allows none. Needs root, and `web_config` that verifies client certificates."""
    kubelet_pods: str = ""
    """The kubelet's folder of pods; '' for none. If a pod has an emptyDir volume named 'gangwatch', the agent creates
    the step socket agent.sock in this volume."""
    step_folder: str | None = None
    """Folder (mode 0711) in which the agent creates the step socket `agent.sock` for the ranks of all users."""
    frame_readers: tuple[str, ...] = (CONTROLLER,)
    """Names of clients that may read frames over TLS, off loopback. A client needs a certificate with one of these
    names; a password does not suffice. If empty, every client that may read metrics may also read frames."""
    revoked_file: str | None = None
    """File that lists revoked certificates of `frame_readers`, written by `gangwatch certificates revoke`."""
    certificate_command: tuple[str, ...] = ()
    """Command that creates or renews the agent's certificate files in web_config, as an argument list without a shell.
    The agent runs the command if the certificate is missing, and when a third of its lifetime is left. The variable
    GANGWATCH_NODE contains the node's name."""
    collectors: dict[str, bool] = {}
    """Whether the agent runs a collector, by the collector's name. '*' applies to all collectors without an entry. By
    default all run. docs/how-to/agent.md lists the names."""


class StepQuotasSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [step_quotas]: limits on the processes that report steps to an agent.

    A tenant is a pod, a job, or the user of unattested processes: processes that the agent can't assign to a pod or
    job.
    """

    reporters: Annotated[int, Meta(ge=1, le=16384)] = 1024
    """Maximum number of processes that report steps to one agent at the same time."""
    reporters_unattested: Annotated[int, Meta(ge=0, le=16384)] = 256
    """Maximum number of unattested processes (of no known pod or job) among `reporters`. Other processes may use all of
    `reporters`."""
    reporters_per_pod: Annotated[int, Meta(ge=0, le=16384)] = 64
    reporters_per_job: Annotated[int, Meta(ge=0, le=16384)] = 256
    reporters_per_user: Annotated[int, Meta(ge=0, le=16384)] = 16
    registrations_per_second: Annotated[float, Meta(ge=0.01, le=10_000)] = 4.0
    """Maximum average of registrations per second of one tenant (a pod, a job or a user). A burst of registrations may
    be twice the tenant's maximum number of reporters."""
    ring_slots: Annotated[int, Meta(ge=256, le=65536)] = 65536
    """Maximum number of records in a step ring. Each record takes 64 bytes of the reporting process's memory."""
    ring_slots_unattested: Annotated[int, Meta(ge=256, le=65536)] = 16384
    name_length: Annotated[int, Meta(ge=1, le=253)] = 128
    """Maximum length in characters of the job's name that an unattested process (of no known pod or job) reports."""


class ExporterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [exporter]: the content of an agent's /metrics. A running agent reloads this section on SIGHUP.

    `textfile_folder` and `deny` also apply to the metrics of plug-ins and files in the controller's /metrics.
    """

    profile: Literal["default", "full"] = "default"
    """'default' exports the most important series of a node; 'full' exports all series."""
    allow: tuple[str, ...] = ()
    """Glob patterns of metric names that are exported regardless of the profile."""
    deny: tuple[str, ...] = ()
    """Glob patterns of metric names that are not exported."""
    series_limit: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    compatibility: tuple[Literal["dcgm", "node_exporter", "rdma_exporter"], ...] = ()
    """Other exporters under whose metric names the values are also exported, for existing dashboards."""
    hostname_label: Literal["Hostname", "hostname"] = "Hostname"
    """Name of the label with the hostname. It must be the same as in the installed release of dcgm-exporter."""
    metrics_file: str | None = None
    """File in dcgm-exporter's CSV form that selects the metrics of /metrics, in place of `profile`. It also sets their
    help texts. Names of other exporters in it enable their `compatibility`."""
    owner_labels: bool = False
    """Whether each series of a GPU has labels of the job that uses the GPU. If not, a separate info series has them."""
    pod_labels: bool = True
    """Whether DCGM's series (`compatibility`) have the labels container, namespace and pod of the GPU's user."""
    textfile_folder: str | None = None
    """Folder of *.prom files whose metrics are served too, as by node_exporter's textfile collector."""


class PushSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a push of an agent's series to a receiver. A running agent reloads them on SIGHUP."""

    endpoint: str = ""
    """Complete URL of the receiver; '' disables the push."""
    interval_seconds: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    headers_file: str | None = None
    """File with lines "Name: value", which are sent as headers of each request (for example a token)."""
    ca_file: str | None = None
    """File of the authorities that may sign the receiver's certificate; None for the system's authorities."""
    queue_frames: Annotated[int, Meta(ge=1, le=100_000)] = 40
    """Maximum number of frames to queue while the receiver is unavailable. The oldest frames are dropped first."""


class OtlpSection(PushSection, frozen=True, forbid_unknown_fields=True):
    """Section [otlp]: push of metrics by OTLP. The controller also pushes its own series to `endpoint`."""

    traces_endpoint: str = ""
    """Complete URL where the controller sends each job's lifecycle as a trace; '' for none."""
    protocol: Literal["", "http/protobuf", "grpc"] = ""
    """Protocol of both endpoints. '' is http/protobuf, or OTEL_EXPORTER_OTLP_PROTOCOL for the endpoint of a variable.
    grpc needs gangwatch[otlp-grpc]."""
    exporter: Literal["auto", "sdk", "own"] = "auto"
    """Exporter: 'sdk' is opentelemetry-sdk's (needs gangwatch[otlp] or gangwatch[otlp-grpc]), 'own' is gangwatch's own
    (HTTP only), 'auto' is the SDK's if it is installed; for HTTP from an agent it is gangwatch's."""


class ControllerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [controller]: server, mode and topology.

    Limits on requests do not apply to the state folder's token.
    """

    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    """Port of the controller on loopback; 0 picks a free port."""
    mode: Literal["observe", "act"] = "act"
    """'act' applies the controller's decisions on faults; 'observe' only logs and scores these decisions."""
    listen: str | None = None
    """Address HOST:PORT of the controller, in place of `port`. An address off loopback needs `web_config` with TLS."""
    web_config: str | None = None
    """File with TLS settings and users, in the exporter-toolkit's format. These users may only read."""
    topology_file: str | None = None
    """File that assigns nodes to network switches: a topology.conf of Slurm, or a TOML file (fabric_file.py)."""
    connections: Annotated[int, Meta(ge=16, le=65536)] = 1024
    """Maximum number of open connections."""
    connections_per_peer: Annotated[int, Meta(ge=8, le=65536)] = 256
    """Maximum number of open connections per client address, or on loopback per user."""
    requests_per_second: Annotated[float, Meta(ge=1, le=100_000)] = 100.0
    """Maximum number of requests per second from one client address or local user. Further requests are delayed."""
    streams: Annotated[int, Meta(ge=1, le=16384)] = 256
    """Maximum number of event streams, including the streams of open pages."""
    streams_per_peer: Annotated[int, Meta(ge=1, le=16384)] = 64

    def address(self) -> tuple[str, int]:
        """Return host and port to listen at. Raises ConfigError if `listen` is invalid."""
        return ("127.0.0.1", self.port) if self.listen is None else parse_listen(self.listen, "controller.listen")


RoleWord = Literal["viewer", "submitter", "operator"]


class AccessSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [access]: tokens, logins and the audit log. The state folder's token always has the role operator."""

    token_files: tuple[str, ...] = ()
    """Files with tokens, their users and their roles, written by `gangwatch token`. A changed file is read again."""
    session_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 12 * 3600.0
    """Maximum duration of a login on the page, in seconds."""
    session_idle_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 2 * 3600.0
    """Time in seconds without a request after which a login on the page ends."""
    audit_target: Literal["file", "stdout"] = "file"
    """Destination of the audit log of user actions: 'file' (in audit/ of the state folder) or 'stdout'."""
    audit_bytes: Annotated[int, Meta(ge=65536)] = 64 * 1024 * 1024
    """Size in bytes at which the audit file is rotated."""
    audit_files: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Number of rotated audit files to keep."""


class OidcSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [oidc]: logins through an OpenID provider. It needs the package `gangwatch[oidc]`."""

    issuer: str = ""
    """URL of the OpenID provider; '' for none."""
    client_id: str = ""
    """Client id of this controller at the provider. Only tokens that were issued for this id are accepted."""
    client_secret_file: str | None = None
    """File with the client secret; None if the provider issued no secret."""
    redirect_url: str = ""
    """URL to which the provider returns users after a login on the page: https://HOST:PORT/login/oidc/callback.
    '' disables logins on the page; only bearer tokens are accepted."""
    user_claim: str = "sub"
    """Claim of the token that contains the user name. It must be the name that jobs use, and users must not be able to
    change it."""
    groups_claim: str = "groups"
    roles: dict[str, RoleWord] = {}
    """Role of the members of each group at the provider, by group name."""
    default_role: Literal["", "viewer", "submitter", "operator"] = ""
    """Role of users who have no group in `roles`; '' refuses these users."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """Signature algorithms of tokens that are accepted."""
    scopes: tuple[str, ...] = ("openid", "profile", "groups")
    """OpenID scopes that the controller requests at a login."""
    ca_file: str | None = None
    """File of the authorities that may sign the provider's certificate; None for the system's authorities."""


class TokenReviewSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [token_review]: tokens that a Kubernetes API server authenticates, such as service account tokens."""

    enabled: bool = False
    audiences: tuple[str, ...] = ()
    """Audiences that a token must have been issued for; empty accepts the API server's own audiences."""
    roles: dict[str, RoleWord] = {}
    """gangwatch role of each Kubernetes user or group, by name."""
    access_review: bool = True
    """Whether RBAC rules of the cluster also grant gangwatch roles. A rule grants a role if it allows the verb `use` on
    the resource `roles` (API group gangwatch.io) with the name of the role."""
    kubeconfig: str | None = None
    """Path of the kubeconfig file for the API server; None uses the service account of the pod."""


class ClientSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [client]: the controller that the command line uses if no state folder is given."""

    url: str = ""
    """URL of the controller; '' uses the controller of this user's state folder."""
    ca_file: str | None = None
    """File of the authorities that may sign the controller's certificate; None for the system's authorities."""
    token_file: str | None = None
    """File with a copy of the token in the controller's state folder; None sends no token."""
    cert_file: str | None = None
    """File of the client's certificate, if the controller requires one."""
    key_file: str | None = None


class FeedSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [feed]: how the controller connects to agents that use TLS."""

    ca_file: str | None = None
    """File of the authorities that may sign the agents' certificates; None for the system's authorities."""
    cert_file: str | None = None
    """File of the controller's certificate, for agents that require one."""
    key_file: str | None = None
    username: str = ""
    """User name that the controller sends to agents that require a password."""
    password_file: str | None = None
    verify: Literal["node", "host"] = "node"
    """'node': an agent's certificate must name its node. 'host': it must name the host in the agent's URL."""
    revoked_file: str | None = None
    """File that lists revoked certificates, of `gangwatch certificates revoke`. A changed file is read again."""
    processes: Annotated[int, Meta(ge=-1, le=8)] = 0
    """Number of processes that read the agents' streams for the controller. 0: it reads them itself. -1: one if more
    than 2,000 agents are announced."""


class StoreSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section [store]: snapshots of the state in the journal, and deletion of old journal entries.

    Entries that a restart of the controller needs are never deleted.
    """

    snapshot_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    """Seconds between two snapshots of the state. A restart replays the journal from the latest snapshot."""
    keep_days: Annotated[float, Meta(ge=0.01, le=3650)] = 30.0
    """Age in days at which journal entries and the stories of ended jobs are deleted."""
    journal_bytes: Annotated[int, Meta(ge=1_000_000)] = 512 * 1024 * 1024
    """If the journal file is larger than this number of bytes, the oldest entries are deleted before `keep_days`."""


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
