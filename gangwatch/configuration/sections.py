"""The sections of the configuration file: which keys there are, their types, ranges and defaults.

How a file is read, checked and shown: gangwatch/configuration/config_file.py. A section more is a class here, and a
line in SECTIONS.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.schema.errors import ConfigError
from agent.schema.identity import CONTROLLER

DEFAULT_PORT = 9420
"""The controller's port: in the range that exporters use by custom (9100 and up), our own choice."""


def parse_listen(text: str, where: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT". Raises ConfigError beginning with `where`."""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not colon or not host or not is_port or (":" in host and host[0] != "["):
        raise ConfigError(f"{where}: expected HOST:PORT or [IPV6]:PORT, not {text!r}")
    return host, int(port)


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """nodes: virtual nodes on this machine; None: by its size (``plan_nodes``). slots: per node; None: a slot a GPU, or
    a slot a processor, shared out.

    gpus: whether slots are GPUs where this machine has some. names: of the nodes, None: made from the host's name.
    """

    nodes: Annotated[int, Meta(ge=1, le=1024)] | None = None
    slots: Annotated[int, Meta(ge=1, le=4096)] | None = None
    gpus: bool = True
    names: tuple[str, ...] | None = None


class AgentSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """interval_seconds: time between two frames. port: of the first node's agent on loopback, the next nodes' follow; 0
    takes any free ones. listen: HOST:PORT instead; off loopback it needs web_config, a file in the exporter-toolkit's
    format. nvml_library: instead of the system's libnvidia-ml.so.1. sysfs_root, proc_root: where those file systems
    are. kubelet_socket: of its pod-resources; '' asks no kubelet. job_files: folder in which a Slurm prolog writes
    which job has which GPU, as for dcgm-exporter. step_socket: where ranks report, '{node}' standing for the node's
    name; None: in the state folder. In a folder of mode 0711 it is open to every user's ranks. kernel_log: the
    kernel's, or a recorded one. rdma_excluded: patterns of RDMA devices' names or PCI addresses that are never read.
    gpu_burst: read each GPU ten times a second, for extremes within the interval. kubelet_pods: the kubelet's folder of
    pods: whoever has an emptyDir named 'gangwatch' finds the step socket in it, agent.sock; '' for none.
    """

    interval_seconds: Annotated[float, Meta(ge=0.05, le=60)] = 1.0
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    listen: str | None = None
    web_config: str | None = None
    nvml_library: str | None = None
    sysfs_root: str = "/sys"
    proc_root: str = "/proc"
    kubelet_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    job_files: str | None = None
    step_socket: str | None = None
    kernel_log: str = "/dev/kmsg"
    rdma_excluded: tuple[str, ...] = ()
    gpu_burst: bool = False
    kubelet_pods: str = ""
    step_folder: str | None = None
    """A folder of the agent's own in which every user's ranks report, at `agent.sock`: it is made, with mode 0711."""
    frame_readers: tuple[str, ...] = (CONTROLLER,)
    """Off loopback frames are given over TLS to whoever shows a certificate of one of these names, and to nobody by a
    password. Empty: to whoever may read metrics, which one password of all agents may open."""
    revoked_file: str | None = None
    """List of revoked certificates (`gangwatch certificates revoke`), for those of frame_readers."""
    certificate_command: tuple[str, ...] = ()
    """Argument list, no shell. It is run at the start until web_config's certificate is there, and when a third of its
    life is left; it makes the files anew. GANGWATCH_NODE in its environment is the node's name."""


class StepQuotasSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tenants may use of an agent's step socket. A tenant is a pod, a job, or the user of processes that nothing
    attests. reporters: most processes that report at once. reporters_unattested: most of them that nothing attests, of
    all users together; the other slots are reserved for attested ranks. reporters_per_pod, reporters_per_job,
    reporters_per_user: of one tenant. registrations_per_second: of one tenant on average; twice its reporters may come
    at once. ring_slots, ring_slots_unattested: most slots of one ring (64 bytes each, of the reporter's own memory).
    name_length: most characters of the name that an unattested process gives to its gang.
    """

    reporters: Annotated[int, Meta(ge=1, le=16384)] = 1024
    reporters_unattested: Annotated[int, Meta(ge=0, le=16384)] = 256
    reporters_per_pod: Annotated[int, Meta(ge=0, le=16384)] = 64
    reporters_per_job: Annotated[int, Meta(ge=0, le=16384)] = 256
    reporters_per_user: Annotated[int, Meta(ge=0, le=16384)] = 16
    registrations_per_second: Annotated[float, Meta(ge=0.01, le=10_000)] = 4.0
    ring_slots: Annotated[int, Meta(ge=256, le=65536)] = 65536
    ring_slots_unattested: Annotated[int, Meta(ge=256, le=65536)] = 16384
    name_length: Annotated[int, Meta(ge=1, le=253)] = 128


class ExporterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent's /metrics holds; a running agent takes changes over on SIGHUP.

    profile: 'default', a node's most wanted series, or 'full'. allow, deny: globs on names: what allow names comes in
    whatever the profile, what deny names never. series_limit: most series. compatibility: names that dashboards
    already have. hostname_label: as the installed dcgm-exporter's release spells it. owner_labels: who uses a GPU, on
    each of its series, instead of on an info series to join.
    """

    profile: Literal["default", "full"] = "default"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    series_limit: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    compatibility: tuple[Literal["dcgm", "node_exporter", "rdma_exporter"], ...] = ()
    hostname_label: Literal["Hostname", "hostname"] = "Hostname"
    owner_labels: bool = False


class PushSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an agent pushes its series to, beside being scraped; a running agent takes changes over on SIGHUP.

    endpoint: the whole URL, '' for none. headers_file: lines "Name: value" that each request carries (a token is one).
    ca_file: of the receiver's certificate, where the system doesn't know it. queue_frames: frames that wait while the
    receiver is away; the oldest are dropped first.
    """

    endpoint: str = ""
    interval_seconds: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    headers_file: str | None = None
    ca_file: str | None = None
    queue_frames: Annotated[int, Meta(ge=1, le=100_000)] = 40


class OtlpSection(PushSection, frozen=True, forbid_unknown_fields=True):
    """As PushSection; the controller pushes its own series to `endpoint` too, and to `traces_endpoint`, a whole URL as
    well, each job's life as a trace ('': none).
    """

    traces_endpoint: str = ""


class ControllerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """port: on loopback; 0 takes any free one. mode: whether feedback's decisions are carried out. listen: HOST:PORT
    instead of the port; off loopback it needs web_config, a file in the exporter-toolkit's format, with TLS in it. Whom
    that file names, or who has a token, may read; what else takes a role is said in [access].
    topology_file: which switch each node stands below, as Slurm's topology.conf or as TOML (fabric_file.py).

    connections: most that are open at one time; connections_per_peer: of one address, or on loopback of one user.
    requests_per_second: of one peer; more wait for their turn. streams: most event streams, those of open pages among
    them; streams_per_peer: of one peer. Whoever has the token waits for nobody.
    """

    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    mode: Literal["observe", "act"] = "act"
    listen: str | None = None
    web_config: str | None = None
    topology_file: str | None = None
    connections: Annotated[int, Meta(ge=16, le=65536)] = 1024
    connections_per_peer: Annotated[int, Meta(ge=8, le=65536)] = 256
    requests_per_second: Annotated[float, Meta(ge=1, le=100_000)] = 100.0
    streams: Annotated[int, Meta(ge=1, le=16384)] = 256
    streams_per_peer: Annotated[int, Meta(ge=1, le=16384)] = 64

    def address(self) -> tuple[str, int]:
        """Host and port to listen at. Raises ConfigError where `listen` is none."""
        return ("127.0.0.1", self.port) if self.listen is None else parse_listen(self.listen, "controller.listen")


RoleWord = Literal["viewer", "submitter", "operator"]


class AccessSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may do what, beside whoever has the state folder's token, which is an operator's.

    token_files: tokens with names, users and roles, as `gangwatch token` writes them; read again when they change.
    session_seconds: the longest that a login by the page lasts; session_idle_seconds: without a request.
    audit_target: where it is written down who did what: 'file', in the state folder's audit/, or 'stdout', where others
    collect what a container writes. audit_bytes, audit_files: size at which the file is rotated, and how many older
    ones are kept.
    """

    token_files: tuple[str, ...] = ()
    session_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 12 * 3600.0
    session_idle_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 2 * 3600.0
    audit_target: Literal["file", "stdout"] = "file"
    audit_bytes: Annotated[int, Meta(ge=65536)] = 64 * 1024 * 1024
    audit_files: Annotated[int, Meta(ge=1, le=1000)] = 10


class OidcSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """People who log in at an OpenID provider; needs `gangwatch[oidc]`.

    issuer: its URL, '' for none. client_id: of this controller there; only tokens for it are taken.
    client_secret_file: where the provider gave a secret. redirect_url: https://HOST:PORT/login/oidc/callback, where the
    page's login comes back to; '': bearer tokens alone. user_claim: what of a token is the user's name; it has to be
    one that nobody can choose for themselves, and the one that jobs have. groups_claim: where groups are; roles: role
    by group; default_role: of whoever is in none of these, '' refuses them. algorithms: with which tokens are signed.
    scopes: asked for at the login. ca_file: who vouches for the provider, None for the system's.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret_file: str | None = None
    redirect_url: str = ""
    user_claim: str = "sub"
    groups_claim: str = "groups"
    roles: dict[str, RoleWord] = {}
    default_role: Literal["", "viewer", "submitter", "operator"] = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    scopes: tuple[str, ...] = ("openid", "profile", "groups")
    ca_file: str | None = None


class TokenReviewSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that a Kubernetes API server knows: of service accounts, and whatever else it authenticates.

    audiences: for whom tokens have to be issued; none: for the API server. roles: role by the name of a user or group.
    access_review: whether the cluster's RBAC grants roles, too: verb use, apiGroup gangwatch.io, resource roles, by
    name. kubeconfig: how to reach the API server; None: as a pod does.
    """

    enabled: bool = False
    audiences: tuple[str, ...] = ()
    roles: dict[str, RoleWord] = {}
    access_review: bool = True
    kubeconfig: str | None = None


class ClientSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which controller the command line speaks to where no state folder is named: the one at `url`, '' for this user's
    own. ca_file: who vouches for its certificate. token_file: a copy of its state folder's token. cert_file, key_file:
    our own certificate, where it asks for one.
    """

    url: str = ""
    ca_file: str | None = None
    token_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class FeedSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the controller reaches agents that serve over TLS. ca_file: who vouches for them. cert_file, key_file: its
    own certificate, where they ask for one. username, password_file: where they ask for a password.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    username: str = ""
    password_file: str | None = None
    verify: Literal["node", "host"] = "node"
    """'node': an agent's certificate must be made out to its node. 'host': to the host that its URL names."""
    revoked_file: str | None = None
    """List of revoked certificates (`gangwatch certificates revoke`); read again when it changes."""


class StoreSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """snapshot_seconds: time between two snapshots of the state; a restart replays the journal from the newest.

    keep_days: age at which the journal, and stories of ended jobs, are forgotten. journal_bytes: size of the file above
    which the oldest of the journal goes before its time. What a restart needs is kept regardless.
    """

    snapshot_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    keep_days: Annotated[float, Meta(ge=0.01, le=3650)] = 30.0
    journal_bytes: Annotated[int, Meta(ge=1_000_000)] = 512 * 1024 * 1024


class SlurmSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """enabled: whether this controller watches a Slurm cluster, and not this machine. mode: 'advise' changes no node's
    state and no job, and says what it would do; 'act' does it, where controller.mode is 'act' too. programs: folder of
    squeue and the others, where they are not on PATH. configuration: slurm.conf, where it is not at the usual place.
    agents: where each node's agent listens, '{node}' standing for its name; None: agents' records are put in the state
    folder by other means. text: read the text forms whatever the version. timeout_seconds: after which a command is
    killed. idle_seconds, attentive_seconds: between two looks while nothing is the matter, and while something is.
    partition_share: of a partition's nodes, the most that are drained by us, or left by jobs that we move, at once.
    requeues_per_hour, changes_per_minute: most jobs that are moved, most changes of nodes and of pending jobs.
    comments: whether nodes' comments say what is held against them, as far as no operator has written one.
    """

    enabled: bool = False
    mode: Literal["advise", "act"] = "advise"
    programs: str | None = None
    configuration: str | None = None
    agents: str | None = None
    text: bool = False
    timeout_seconds: Annotated[float, Meta(ge=1, le=600)] = 20.0
    idle_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    attentive_seconds: Annotated[float, Meta(ge=0.5, le=600)] = 5.0
    partition_share: Annotated[float, Meta(ge=0, le=1)] = 0.25
    requeues_per_hour: Annotated[int, Meta(ge=0, le=100_000)] = 12
    changes_per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 30
    comments: bool = True


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
