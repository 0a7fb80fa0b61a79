"""The configuration: one TOML file, checked key by key and overridden by the command line.

An invalid file is rejected as a whole, with file, key and reason. Durations are numbers of seconds or strings such as
"90s", "10m", "2h".

::

    [cluster]     nodes = 1, slots, gpus = true, names, jobs_per_slot = 1,
                  slot_memory_mib = 0, mig = false
    [agent]       interval_seconds = 1, port = 0, listen, web_config, nvml_library, sysfs_root, proc_root,
                  kubelet_socket, job_files, step_socket, kernel_log, rdma_excluded, gpu_burst = false,
                  kubelet_pods, step_folder, frame_readers, revoked_file, certificate_command, collectors,
                  pod_label_names
    [step_quotas] reporters = 1024, reporters_unattested = 256, reporters_per_pod = 64, reporters_per_job = 256,
                  reporters_per_user = 16, registrations_per_second = 4, ring_slots, ring_slots_unattested,
                  name_length = 128
    [exporter]    profile = "default", allow, deny, series_limit, compatibility, hostname_label, owner_labels,
                  pod_labels = true, metrics_file, textfile_folder
    [otlp]        endpoint, traces_endpoint, protocol, exporter = "auto", interval_seconds = 15, headers_file, ca_file,
                  queue_frames
    [remote_write] endpoint, interval_seconds = 15, headers_file, ca_file, queue_frames
    [controller]  port = 9420, mode = "act", listen, web_config, topology_file
    [access]      token_files, session_seconds = 12h, session_idle_seconds = 2h, audit_target = "file",
                  audit_bytes = 67108864, audit_files = 10
    [oidc]        issuer, client_id, client_secret_file, redirect_url, user_claim = "sub", groups_claim = "groups",
                  roles, default_role, algorithms, scopes, ca_file
    [token_review] enabled = false, audiences, roles, access_review = true, kubeconfig
    [client]      url, ca_file, token_file, cert_file, key_file
    [feed]        ca_file, cert_file, key_file, username, password_file, verify = "node", revoked_file
    [policy]      every field of scheduler_feedback.core.state.Policy but the mode
    [slurm]       enabled = false, mode = "advise", programs, configuration, agents, text, timeout_seconds,
                  idle_seconds = 30, attentive_seconds = 5, partition_share = 0.25, requeues_per_hour,
                  changes_per_minute, comments
    [store]       snapshot_seconds = 60, keep_days = 30, journal_bytes = 536870912
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, replace
from dataclasses import fields as dataclass_fields
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from agent.schema.errors import ConfigError
from agent.schema.pod_label_names import check_pod_label_names
from gangwatch.configuration.durations import parse_duration
from gangwatch.configuration.node_plan import NODE_NAME
from gangwatch.configuration.sections import (
    SECTIONS,
    AccessSection,
    AgentSection,
    ClientSection,
    ClusterSection,
    ControllerSection,
    ExporterSection,
    FeedSection,
    OidcSection,
    OtlpSection,
    PushSection,
    StepQuotasSection,
    StoreSection,
    TokenReviewSection,
    parse_listen,
)
from scheduler_feedback.backends.registry import BackendSection
from scheduler_feedback.backends.registry import sections as backend_sections
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.core.plain_text import misleading
from scheduler_feedback.core.state import Backfilling, Mode, Policy, Queue, Sharing, Sizes, TypeQuotas
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.network.network_class import MOST_NETWORK_CLASSES
from scheduler_feedback.policies.network.rails import MOST_RAILS

RELOADABLE = frozenset({"controller.mode", "policy", "slurm.mode"})
"""Keys and sections that a running controller can reload. A change of another key needs a restart."""

_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "array": "a list",
    "object": "a table",
}

MOST_CELLS = 100_000
"""Maximum number of cells of one kind that a queue may have."""

_POLICY_TYPES = get_type_hints(Policy)
_POLICY_DEFAULTS = {
    field.name: field.default if field.default is not MISSING else None
    for field in dataclass_fields(Policy)
    if field.name != "mode"
}


class Config(msgspec.Struct, frozen=True):
    """The effective configuration: the file, its defaults, and the overrides of the command line."""

    cluster: ClusterSection = ClusterSection()
    agent: AgentSection = AgentSection()
    step_quotas: StepQuotasSection = StepQuotasSection()
    exporter: ExporterSection = ExporterSection()
    otlp: OtlpSection = OtlpSection()
    remote_write: PushSection = PushSection()
    controller: ControllerSection = ControllerSection()
    access: AccessSection = AccessSection()
    oidc: OidcSection = OidcSection()
    token_review: TokenReviewSection = TokenReviewSection()
    client: ClientSection = ClientSection()
    feed: FeedSection = FeedSection()
    policy: Policy = Policy()
    slurm: SlurmSection = SlurmSection()
    store: StoreSection = StoreSection()
    backends: dict[str, dict[str, Any]] = {}
    """Sections of the backends other than local and Slurm, by the backend's name. The sections are checked and contain
    all keys, with defaults for missing keys."""
    source: str = ""
    """Path of the configuration file; '' if there is no file and the defaults apply."""

    def backend_section(self, name: str) -> BackendSection:
        """Return the section of the named backend, with defaults if the file does not contain it."""
        if name == "slurm":
            return self.slurm
        return msgspec.convert(self.backends.get(name, {}), backend_sections()[name])


def selected_backend(config: Config) -> str:
    """Return the name of the enabled backend; 'local' if none is enabled. Raises ConfigError if several are enabled."""
    enabled = [name for name in backend_sections() if config.backend_section(name).enabled]
    if len(enabled) > 1:
        raise ConfigError(f"{' and '.join(f'{name}.enabled' for name in enabled)}: only one backend can be enabled")
    return enabled[0] if enabled else "local"


def _sections() -> dict[str, type[msgspec.Struct]]:
    """Return the class of each section by section name, including the sections of all backends."""
    return {**SECTIONS, **backend_sections()}


# --- reading ---------------------------------------------------------------------------------------------------------


def default_file() -> Path | None:
    """Return the default path of the configuration file; None if there is no default file.

    The path is $GANGWATCH_CONFIG, else ~/.config/gangwatch/gangwatch.toml if this file exists.
    """
    if named := os.environ.get("GANGWATCH_CONFIG"):
        return Path(named)
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gangwatch" / "gangwatch.toml"
    return usual if usual.is_file() else None


def load(file: Path | None, overrides: Mapping[str, object] | None = None) -> Config:
    """Return the configuration in a file, changed by `overrides`.

    file: None reads ``default_file``. overrides: values by key, such as "cluster.nodes": 4; a value None is ignored.

    Raises ConfigError with file, key and reason.
    """
    file = file if file is not None else default_file()
    if file is None:
        return load_defaults(overrides)
    file = file.absolute()
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    return _with_overrides(tree, _convert(tree, str(file)), overrides)


def load_defaults(overrides: Mapping[str, object] | None = None) -> Config:
    """Return the default configuration, changed by `overrides`, without reading a file. Raises ConfigError."""
    return _with_overrides({}, _convert({}, ""), overrides)


def _with_overrides(tree: dict[str, Any], config: Config, overrides: Mapping[str, object] | None) -> Config:
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    for key, value in given.items():
        section, _, name = key.partition(".")
        values = tree.setdefault(section, {})
        # A table on the command line changes single entries of the file's table.
        values[name] = {**values.get(name, {}), **value} if isinstance(value, Mapping) else value
    return _convert(tree, config.source, "command line") if given else config


def _convert(tree: dict[str, Any], source: str, blamed: str = "") -> Config:
    where = blamed or source
    sections = _sections()
    for name, section in tree.items():
        if name not in (*sections, "policy"):
            hint = _elsewhere(name) or _nearest(name, (*sections, "policy"))
            raise ConfigError(f"{where}: {name}: unknown section{hint}")
        if not isinstance(section, dict):
            raise ConfigError(f"{where}: {name}: {section!r} is not a section: write [{name}]")
    parts: dict[str, Any] = {
        name: _section(kind, tree.get(name, {}), name, where) for name, kind in sections.items() if name in tree
    }
    backends = {name: msgspec.to_builtins(parts.pop(name)) for name in parts.keys() - SECTIONS.keys()}
    config = Config(**parts, backends=backends, policy=_policy(tree.get("policy", {}), where), source=source)
    _check_names(config.cluster, where)
    if config.agent.listen is not None:
        parse_listen(config.agent.listen, f"{where}: agent.listen")
    if config.controller.listen is not None:
        parse_listen(config.controller.listen, f"{where}: controller.listen")
    if config.agent.collectors:
        from agent.collectors import check_collector_names  # loads all collectors

        try:
            check_collector_names(config.agent.collectors)
        except ConfigError as error:
            raise ConfigError(f"{where}: agent.collectors: {error}") from None
    try:
        check_pod_label_names(config.agent.pod_label_names)
    except ConfigError as error:
        raise ConfigError(f"{where}: agent.pod_label_names: {error}") from None
    quotas = config.step_quotas
    if quotas.reporters_unattested >= quotas.reporters:
        raise ConfigError(
            f"{where}: step_quotas.reporters_unattested: {quotas.reporters_unattested} of step_quotas.reporters = "
            f"{quotas.reporters} leaves no slot for attested ranks: it must be less"
        )
    if config.client.url and not config.client.url.startswith(("http://", "https://")):
        raise ConfigError(f"{where}: client.url: expected https://HOST:PORT, not {config.client.url!r}")
    if config.policy.network_classes > 1 and config.slurm.enabled:
        raise ConfigError(f"{where}: policy.network_classes: Slurm starts the jobs, without a class; leave it out")
    advised = config.slurm.enabled and config.slurm.mode == "advise"
    mode = Mode.OBSERVE if advised else Mode(config.controller.mode)
    return msgspec.structs.replace(config, policy=replace(config.policy, mode=mode))


def _section(kind: type[msgspec.Struct], values: dict[str, Any], name: str, where: str) -> msgspec.Struct:
    known = kind.__struct_fields__
    prepared = {key: _prepared(key, value, known, f"{where}: {name}.{key}") for key, value in values.items()}
    try:
        return msgspec.convert(prepared, kind, strict=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        key = re.split(r"[\[.`]", path)[0]
        # msgspec reports "Expected `int | null`, got `str`" or "Invalid enum value 'x'", without the value.
        if choices := getattr(get_type_hints(kind).get(key), "__args__", ()) if "enum" in reason else ():
            listed = get_args(choices[0])  # for a list, the choices of its entries
            reason = f"expected {'a list of ' if listed else ''}{' or '.join(map(repr, listed or choices))}"
        elif found := re.match(r"Expected `(\w+)[^`]*`( [<>=]+ [\d.]+)?", reason):
            reason = f"expected {_TYPE_WORDS.get(found[1], found[1])}{found[2] or ''}"
        raise ConfigError(f"{where}: {name}.{key}: {reason}, not {values.get(key)!r}") from None


def _policy(values: dict[str, Any], where: str) -> Policy:
    if "mode" in values:
        raise ConfigError(f"{where}: policy.mode: unknown key (use controller.mode)")
    prepared = {key: _policy_value(key, value, f"{where}: policy.{key}") for key, value in values.items()}
    prepared.setdefault("probe_command", probe_command())
    policy = Policy(**prepared)
    for queue in policy.queues:
        if (wrong := misleading("a queue's name", queue.name)) is not None:
            raise ConfigError(f"{where}: policy.queues: {wrong}")
    if policy.network_classes > MOST_NETWORK_CLASSES:
        raise ConfigError(
            f"{where}: policy.network_classes: expected a whole number from 0 to {MOST_NETWORK_CLASSES}, not "
            f"{policy.network_classes}"
        )
    if policy.network_classes > 1 and not policy.uplink_slowdown:
        raise ConfigError(
            f"{where}: policy.network_classes: has no effect without policy.uplink_slowdown; set that, too, "
            "to 0.1 for example"
        )
    if not 1 <= policy.uplink_rails <= MOST_RAILS:
        raise ConfigError(
            f"{where}: policy.uplink_rails: expected a whole number from 1 to {MOST_RAILS}, not {policy.uplink_rails}"
        )
    if not 0 < policy.uplink_gangs < math.inf:
        raise ConfigError(f"{where}: policy.uplink_gangs: expected a number above 0, not {policy.uplink_gangs:g}")
    if (wrong := _wrong_cells(policy)) is not None:
        raise ConfigError(f"{where}: policy.{wrong}")
    if (wrong := _wrong_type_quotas(policy)) is not None:
        raise ConfigError(f"{where}: policy.{wrong}")
    if policy.quarantine_max_seconds < policy.quarantine_seconds:
        raise ConfigError(
            f"{where}: policy.quarantine_max_seconds: {policy.quarantine_max_seconds:g} s is less than "
            f"policy.quarantine_seconds, {policy.quarantine_seconds:g} s"
        )
    return policy


def _wrong_cells(policy: Policy) -> str | None:
    """Return what is wrong with the cells of the queues, with the key first; None if nothing is."""
    owners = {queue.name: queue for queue in policy.queues if queue.cells}
    for queue in owners.values():
        for kind, count in queue.cells.items():
            if not 1 <= count <= MOST_CELLS:
                return (
                    f"queues: {queue.name}: cells.{kind}: expected a whole number from 1 to {MOST_CELLS}, not {count}"
                )
        parents = Shares(policy).chain(queue.name)[1:]
        if (parent := next((name for name in parents if name in owners), None)) is not None:
            return f"queues: {queue.name}: cells: its parent queue {parent} has cells, too; leave out one of them"
    if owners:
        if policy.preempt:
            return "preempt: queues with cells decide which jobs are stopped; set preempt = false"
        if policy.sharing is not Sharing.NONE:
            return 'sharing: jobs do not share slots if a queue has cells; set sharing = "none"'
        if policy.sizes is not Sizes.IDLE:
            return 'sizes: a gang keeps its size if a queue has cells; set sizes = "idle"'
        if policy.backfill is Backfilling.CONSERVATIVE:
            return 'backfill: not possible if a queue has cells; use "easy", "greedy" or "none"'
    return None


def _wrong_type_quotas(policy: Policy) -> str | None:
    """Return the error in the quotas by GPU type, with the key first; None if there is none."""
    if policy.type_quotas is TypeQuotas.ALIKE:
        return None
    owners = {queue.name for queue in policy.queues if queue.quota is not None}
    for name in sorted(owners):
        if (parent := next((one for one in Shares(policy).chain(name)[1:] if one in owners), None)) is not None:
            return (
                f"type_quotas: queue {name} and its parent {parent} both have a quota; GPU types are divided on one "
                "level: leave out one of the quotas"
            )
    if any(queue.cells for queue in policy.queues):
        return 'type_quotas: not possible if a queue has cells; set type_quotas = "alike"'
    return None


def probe_command() -> tuple[str, ...]:
    """Return the command of gangwatch's own probe of a node, the default of policy.probe_command."""
    found = find_spec("scheduler_feedback.backends.local.slot_probe")
    assert found is not None and found.origin is not None, "the probe is part of the distribution"
    return (sys.executable, "-I", "-S", found.origin, "--seconds", "2")


def _policy_value(key: str, value: object, name: str) -> Any:
    """Return the checked value for a key of [policy]. A number is also checked against the range of the key."""
    value = _prepared(key, value, tuple(_POLICY_DEFAULTS), name)
    default = _POLICY_DEFAULTS[key]
    if key == "queues" and isinstance(value, list):
        _check_queue_keys(value, name)
    is_number = isinstance(default, int | float) or _POLICY_TYPES[key] == float | None
    if isinstance(default, bool) or not is_number:
        try:
            return msgspec.convert(value, _POLICY_TYPES[key], strict=True)
        except msgspec.ValidationError as error:
            if isinstance(default, Enum):
                reason = f"expected {' or '.join(repr(one.value) for one in type(default))}"
            else:
                reason, _, path = str(error).partition(" - at `$")
                found = re.match(r"Expected `(\w+)", reason)
                reason = f"expected {_TYPE_WORDS.get(found[1], found[1])}" if found is not None else reason
                reason += f" at {path.strip('`.')}" if path else ""
            hint = (
                f": write [[policy.{key}]] for each, with a name" if key == "queues" and isinstance(value, dict) else ""
            )
            raise ConfigError(f"{name}: {reason}, not {value!r}{hint}") from None
    if isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name}: expected a whole number >= 0, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name}: expected a number, not {value!r}")
    least, most = _policy_range(key)
    if not least <= value <= most:
        reach = f">= {least:g}" if math.isinf(most) else f"between {least:g} and {most:g}"
        raise ConfigError(f"{name}: expected a number {reach}, not {value!r}")
    return float(value)


def _check_queue_keys(queues: list[object], name: str) -> None:
    """Raise ConfigError for an unknown key of a queue, because msgspec accepts unknown fields of a dataclass."""
    known = tuple(field.name for field in dataclass_fields(Queue))
    for index, queue in enumerate(queues):
        for key in queue if isinstance(queue, dict) else ():
            if key not in known:
                raise ConfigError(f"{name}[{index}].{key}: unknown key{_nearest(key, known)}")


def _policy_range(key: str) -> tuple[float, float]:
    """Return the minimum and maximum value of this key of [policy].

    A key that ends with _fraction or _confidence accepts 0 to 1; other keys have no maximum.
    """
    if key.endswith(("_fraction", "_confidence")):
        return 0.0, 1.0
    # A limit of zero seconds would end every job at once, and a slice of zero seconds would stop it at its start.
    least = ("default_time_limit_seconds", "start_timeout_seconds", "slice_seconds")
    return (1.0 if key in least else 0.0), math.inf


def _prepared(key: str, value: object, known: tuple[str, ...], name: str) -> object:
    """Return the value of a key, with durations converted to seconds.

    known: allowed keys of the section. Raises ConfigError for an unknown key or an infinite number.
    """
    if key not in known:
        raise ConfigError(f"{name}: unknown key{_elsewhere(key) or _nearest(key, known)}")
    if isinstance(value, str) and key.endswith("_seconds"):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name}: expected a finite number, not {value!r}")
    return value


def _elsewhere(key: str) -> str:
    """Return a hint with the sections that have this key, for an error message; '' if no section has it."""
    sections = [name for name, kind in _sections().items() if key in kind.__struct_fields__]
    sections += ["policy"] if key in _POLICY_DEFAULTS else []
    return f" (did you mean {' or '.join(f'{name}.{key}' for name in sections)}?)" if sections else ""


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" (did you mean {near[0]}?)"
    from importlib.metadata import version  # slow, and only for this message

    return f" (known keys: {', '.join(known)}; releases newer than {version('gangwatch')} may have more)"


def _check_names(cluster: ClusterSection, where: str) -> None:
    if cluster.names is None:
        return
    for name in cluster.names:
        if NODE_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{where}: cluster.names: {name!r} is not a valid node name: use letters, digits, '-' and '_', at most "
                "63 characters, a letter or digit first"
            )
    if len(set(cluster.names)) != len(cluster.names):
        raise ConfigError(f"{where}: cluster.names: duplicate name in {list(cluster.names)}")
    if cluster.nodes is not None and len(cluster.names) != cluster.nodes:
        raise ConfigError(f"{where}: cluster.names: {len(cluster.names)} names for cluster.nodes = {cluster.nodes}")


# --- showing ---------------------------------------------------------------------------------------------------------


def flatten(config: Config) -> dict[str, object]:
    """Return every key as "section.key" with its value. Keys with the value None are left out."""
    tree = msgspec.to_builtins(config)
    tree["policy"].pop("mode")
    tree |= tree.pop("backends")
    return {
        f"{section}.{key}": value
        for section in (*_sections(), "policy")
        for key, value in tree.get(section, {}).items()
        if value is not None
    }


def as_toml(config: Config) -> str:
    """Return the effective configuration as TOML text. ``load`` reads an equal configuration from this text."""
    lines: list[str] = []
    newest = ""
    for key, value in flatten(config).items():
        section, _, name = key.partition(".")
        if section != newest:
            lines += ([""] if lines else []) + [f"[{section}]"]
            newest = section
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a value as TOML text. Keys of a table with the value None are left out."""
    if isinstance(value, dict):
        pairs = (f"{_toml(key)} = {_toml(one)}" for key, one in value.items() if one is not None)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON does not escape DEL, which TOML forbids.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


class Change(msgspec.Struct, frozen=True):
    """A configuration key whose value has changed, with the old and the new value."""

    key: str
    before: object
    after: object
    restart: bool
    """Whether the change needs a restart of the controller; False if a reload suffices."""


def changes(before: Config, after: Config) -> list[Change]:
    """Return the keys whose values differ between two configurations, with the old and the new values."""
    old, new = flatten(before), flatten(after)
    return [
        Change(key, old.get(key), new.get(key), not ({key, key.partition(".")[0]} & RELOADABLE))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def take_over(running: Config, wanted: Config) -> Config:
    """Return the configuration `running` with the reloadable settings of `wanted`."""
    controller = msgspec.structs.replace(running.controller, mode=wanted.controller.mode)
    slurm = msgspec.structs.replace(running.slurm, mode=wanted.slurm.mode)
    return msgspec.structs.replace(running, controller=controller, policy=wanted.policy, slurm=slurm)
