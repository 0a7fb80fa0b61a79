"""Fuzz targets: gangwatch.toml, templates of jobs, web configuration, topology files, headers, and durations."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import msgspec

from agent.schema.errors import ConfigError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.files import written
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from exporter.push.target_files import _read_headers
from exporter.security.web_config import load_web_config
from gangwatch.configuration import config_file
from gangwatch.configuration.durations import parse_duration
from gangwatch.job_templates import template as job_template
from scheduler_feedback.fabric_file import read_fabric

# --- gangwatch.toml --------------------------------------------------------------------------------------------------

DEFAULTS: dict[str, Any] = tomllib.loads(config_file.as_toml(config_file.load_defaults()))
MORE: dict[str, dict[str, tuple[Any, ...]]] = {
    "cluster": {"names": (["a", "b"], ["a", "a"], ["-x"], ["a b"], [], [1]), "nodes": (2, 0, -1, "2"), "slots": (8, 0)},
    "agent": {"listen": ("0.0.0.0:9400", ":0", "x", "[::1]:1", "h:99999"), "kubelet_socket": ("", "/x", 7),
              "collectors": ({"host": True, "nfs": False}, {"hots": False}, {"*": 7}),
              "pod_label_names": (["team"], ["a b", ""], ["k8s.io/x", "k8s.io/x"], [7], "x", ["y"] * 99)},
    "controller": {"listen": ("127.0.0.1:1", "nobody", ""), "mode": ("act", "observe", "advise", "x")},
    "client": {"url": ("https://h:1", "ftp://h", "", 7)},
    "slurm": {"enabled": (True, False, "yes"), "mode": ("act", "advise", "x"), "partition_share": (0.5, 2, -1)},
    "policy": {
        "queues": (
            [{"name": "a", "weight": 2}], [{"name": "a\u202e"}], [{"nam": "a"}], "x", [7],
            [{"name": "a", "quota": "x"}], [{"name": "a", "cells": {"node": 1}}],
            [{"name": "a", "cells": {"node": 1}, "quota": 4}],
        ),
        "quarantine_seconds": (3, "10m", "1:00:00", "2-00:00:00", "x", float("inf"), "9" * 400),
        "quarantine_max_seconds": (1, "1s", 1e9), "default_time_limit_seconds": (0, 60), "mode": ("act",),
        "preempt": (True, "x"), "quarantine_max_fraction": (2, 0.1), "order": ("fifo", "fair", "x"),
        "network_classes": (2, 2, 99), "uplink_slowdown": (0.1, 2), "time_shifts": (True, 1),
        "uplink_gangs": (2, 0, -1), "uplink_rails": (8, 0, 65, 1.5),
        "sharing": ("gandiva", "x"), "slice_seconds": (0, "5m"),
        "probe_command": (["sleep", "1"], "sleep", [1]), "migration_cooldown_seconds": (True, "1.5h", "250ms"),
    },
    "store": {"keep_days": (1, 1e9), "journal_bytes": (1, 10**9)},
    "step_quotas": {"reporters": (4, 0)},
    "sloorm": {"enabled": (True,)},
}  # fmt: skip


def _value(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_value(one)}' for key, one in value.items() if one is not None)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value(one) for one in value if one is not None)}]"
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _key(key: str) -> str:
    return msgspec.json.encode(key).decode("utf-8", "replace")


def _as_toml(tree: dict[str, Any]) -> str:
    lines: list[str] = []
    for section, values in tree.items():
        if not isinstance(values, dict):
            lines.insert(0, f"{_key(section)} = {_value(values)}" if values is not None else "")
            continue
        lines.append(f"[{_key(section)}]")
        lines += [f"{_key(key)} = {_value(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _make_toml(chance: random.Random) -> bytes:
    """Make a configuration file of some sections and keys, some of which have unusual values."""
    tree: dict[str, Any] = {}
    if chance.random() < 0.25:  # one unusual value alone reaches the checks that come last
        section = chance.choice([*MORE, *["policy"] * 8])
        key = chance.choice(list(MORE[section]))
        return _as_toml({section: {key: chance.choice(MORE[section][key])}}).encode("utf-8", "replace")
    for section in chance.sample(list(DEFAULTS), chance.randrange(1, 5)):
        keys = list(DEFAULTS[section])
        tree[section] = {key: DEFAULTS[section][key] for key in chance.sample(keys, min(len(keys), 4))}
    for _ in range(chance.randrange(4)):
        section = chance.choice([*MORE, "policy", "agent"])
        key = chance.choice(list(MORE[section]))
        tree.setdefault(section, {})[key] = chance.choice(MORE[section][key])
    if chance.random() < 0.4:
        tree = mutate.tree(chance, tree)
        tree = tree if isinstance(tree, dict) else {"cluster": tree}
    made = _as_toml(tree).encode("utf-8", "replace")
    return mutate.octets(chance, made) if chance.random() < 0.05 else made


def _parse_toml(data: bytes) -> str:
    try:
        loaded = config_file.load(written(data, ".toml"), {"cluster.nodes": 4} if len(data) % 5 == 0 else None)
    except ConfigError as error:
        return REFUSED_FIRST if "not TOML" in str(error) else REFUSED
    again = config_file.load(written(config_file.as_toml(loaded).encode(), ".again.toml"))
    assert config_file.flatten(again) | {"x": 0} == config_file.flatten(loaded) | {"x": 0}, (
        "a written configuration is read back the same"
    )
    config_file.changes(config_file.load_defaults(), config_file.take_over(config_file.load_defaults(), loaded))
    return ACCEPTED


# --- templates of jobs -----------------------------------------------------------------------------------------------

TEXTS = ("x", "{a}", "{b}", "{words}", "{python}", "a{a}", "{", "}}", "{{", "{z}", "{a}{b}", "", 7)
PARAMETERS: tuple[dict[str, Any], ...] = (
    {"default": "x"}, {"optional": True}, {"type": "integer", "minimum": 1, "maximum": 3, "default": 2}, {},
    {"type": "number", "default": 0.5, "minimum": 0, "help": "h"}, {"type": "boolean", "default": True},
    {"choices": ["x", "y"], "default": "x"}, {"type": "file", "optional": True}, {"type": "file", "minimum": 1},
    {"type": "integer", "default": "x"}, {"type": "integer", "default": True}, {"choices": [7]}, {"type": "x"},
    {"type": "integer", "minimum": 3, "default": 2}, {"type": "integer", "maximum": 1, "default": 2},
    {"tpye": "string"},
    {"choices": ["x"], "default": "y"}, {"type": "number", "default": float("inf")},
)  # fmt: skip
GIVEN = ("x", "1", "9", "0", "nan", "1e999", "yes", "false", "", "y", "{a}", "1_0", "9" * 5000)
FIELD_VALUES = ("{a}", "x-{b}", 3, True, ["{a}", "y"], {"A": "{a}", "B": "{b}"}, "{{{a}}}")


def _make_template(chance: random.Random) -> bytes:
    """Make a template of a few parameters, and values for them, as TOML with a line of values at its end."""
    tree: dict[str, Any] = {"description": "d"}
    texts: list[Any] = [chance.choice(TEXTS[:6]) for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.3:
        texts.append(chance.choice(TEXTS))
    command: list[Any] = list(texts)
    if chance.random() < 0.5:
        command.append({"if": chance.choice("abbbz"), "words": [chance.choice(TEXTS[:6])]})
    tree["command"] = command if chance.random() < 0.95 else []
    tree["job"] = {
        chance.choice(("workload", "ranks", "environment", "gpu_types", "user")): chance.choice(FIELD_VALUES)
        for _ in range(chance.randrange(3))
    }
    names = ("a", "b") if chance.random() < 0.9 else ("a", chance.choice(("B", "words", "c")))
    tree["parameters"] = {name: chance.choice(PARAMETERS[: chance.choice((6, 8, 99))]) for name in names}
    if chance.random() < 0.1:
        tree = {**tree, chance.choice(("description", "job", "wrods")): chance.choice((7, None, "x"))}
    values = "".join(f"# {chance.choice('aabbz')}={chance.choice(GIVEN)}\n" for _ in range(chance.randrange(3)))
    return (_as_toml(tree) + values).encode("utf-8", "replace")


def _parse_template(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    try:
        template = job_template.parse(text)
    except job_template.TemplateError as error:
        return REFUSED_FIRST if "line" in str(error) else REFUSED
    given = dict(line[2:].split("=", 1) for line in text.splitlines() if line.startswith("# ") and "=" in line)
    schema = job_template.schema(template)
    assert schema["properties"].keys() == template.parameters.keys()
    try:
        made = job_template.render(template, given, ["w"], "python")
    except job_template.TemplateError:
        return REFUSED
    assert all(isinstance(word, str) for word in made.command), "a command consists of texts"
    assert set(schema["required"]) <= given.keys(), "a required parameter must have a value"
    return ACCEPTED


# --- durations -------------------------------------------------------------------------------------------------------


DURATIONS = ("90", "90s", "1.5h", "10m", "250ms", "2d", "30:00", "1:00:00", "2-00:00:00", "1-12", "1-2:3", "", "x", "٣")


def _make_duration(chance: random.Random) -> bytes:
    made = chance.choice(DURATIONS)
    return (mutate.text(chance, made) if chance.random() < 0.6 else made).encode("utf-8", "replace")


def _parse_duration(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    try:
        seconds = parse_duration(text)
    except ValueError:
        return REFUSED if text[:1].isdigit() else REFUSED_FIRST
    assert seconds >= 0
    return ACCEPTED


# --- web configuration -----------------------------------------------------------------------------------------------


HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
WEB: dict[str, Any] = {
    "tls_server_config": {
        "cert_file": "a.pem", "key_file": "a.key", "client_ca_file": "/ca.pem",
        "client_auth_type": "RequireAndVerifyClientCert", "client_allowed_sans": ["a.example"], "min_version": "TLS12",
        "max_version": "TLS13", "cipher_suites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"],
        "prefer_server_cipher_suites": True, "curve_preferences": ["CurveP256"],
    },
    "http_server_config": {
        "http2": False,
        "headers": {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=31536000", "X-XSS-Protection": ""},
    },
    "basic_auth_users": {"a": HASH, "b": HASH},
    "rate_limit": {"interval": "1s", "burst": 20},
}  # fmt: skip
WEB_MORE: dict[str, dict[str, tuple[Any, ...]]] = {
    "tls_server_config": {
        "client_auth_type": ("", "RequireAnyClientCert", "VerifyClientCertIfGiven", "NoClientCert", "x", 7),
        "cert": ("-----BEGIN CERTIFICATE-----", 7), "cert_file": (None, ""), "client_ca_file": (None,),
        "min_version": ("TLS13", "TLS10"), "max_version": ("TLS12", "x"),
        "curve_preferences": (["CurveP256", "X25519"], ["x"], []),
        "cipher_suites": (["x"], []), "client_allowed_sans": ([], "x", [7]), "prefer_server_cipher_suites": (1, False),
        "key_file": (None,),
    },
    "http_server_config": {
        "http2": (True, "x"),
        "headers": (None, {"X-Frame-Options": "x"}, {"Server": "x"}, {"X-XSS-Protection": "a\nb"}, 7),
    },
    "basic_auth_users": {"a:b": (HASH,), "c": ("password", 7, None, HASH.replace("10$", "99$")), "": (HASH,)},
    "rate_limit": {"interval": (0, "100ms", "x", 5, True), "burst": (-1, 0, "x", True)},
}  # fmt: skip


def _make_web(chance: random.Random) -> bytes:
    tree = {name: dict(WEB[name]) for name in WEB if chance.random() < 0.7}
    for _ in range(chance.randrange(3)):
        section = chance.choice(list(WEB_MORE))
        key = chance.choice(list(WEB_MORE[section]))
        tree.setdefault(section, {})[key] = chance.choice(WEB_MORE[section][key])
    if chance.random() < 0.3:
        tree = mutate.tree(chance, tree)
    made = msgspec.json.encode(tree)  # JSON is valid YAML too
    if chance.random() < 0.1:
        made = mutate.octets(chance, made)
    if chance.random() < 0.03:
        made = chance.choice(
            (b"a: [", b"2026-13-45", b"? [", b"\xff", b"a: &x [*x]", b"- " * 3000, b"!!python/none", b"")
        )
    return made


def _parse_web(data: bytes) -> str:
    try:
        load_web_config(written(data, ".yml"))
    except ConfigError as error:
        return REFUSED_FIRST if "not YAML" in str(error) or "not UTF-8" in str(error) else REFUSED
    return ACCEPTED


# --- topology --------------------------------------------------------------------------------------------------------


TOPOLOGY = (
    b"# leaves\nSwitchName=leaf1 Nodes=n[01-16],login\nSwitchName=leaf2 nodes=r[1-2]n[1-3]\n"
    b"SwitchName=s Switches=leaf[1-2]\n",
    b"SwitchName=a Nodes=n1\n\nSwitchName=b Nodes=n[2-9] LinkSpeed=4\n",
)
LEAVES = (
    b'[[leaf]]\nname = "leaf-0"\nnodes = "n[01-32]"\nrail = 0\n'
    b'[[leaf]]\nname = "leaf-1"\nnodes = "n[01-32]"\nrail = 1\n',
    b'[[leaf]]\nname = "a"\nnodes = "x,y"\n',
)


def _make_topology(chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return b"t" + mutate.one_of(chance, LEAVES, mutate.lines)
    made = mutate.one_of(chance, TOPOLOGY, mutate.lines)
    if chance.random() < 0.2:
        ranges = (
            b"[0-999999999]",
            b"[5-1]",
            b"[a]",
            b"[",
            b"]",
            b"[1-1000][1-1000][1-1000]",
            b"[" + b"9" * 5000 + b"]",
        )
        made = made.replace(b"[01-16]", chance.choice(ranges), 1)
    return b"s" + made


def _parse_topology(data: bytes) -> str:
    try:
        read_fabric(written(data[1:], ".topology.toml" if data[:1] == b"t" else ".topology.conf"))
    except ConfigError as error:
        return REFUSED_FIRST if "codec can't decode" in str(error) or "at line" in str(error) else REFUSED
    return ACCEPTED


# --- headers ---------------------------------------------------------------------------------------------------------


HEADERS = (b"Authorization: Bearer x\n# no\n\nX-Scope-OrgID: 1\n", b"A:b", b"Authorization: Basic YTpi\r\nX: y\r\n")


def _make_headers(chance: random.Random) -> bytes:
    return mutate.one_of(chance, HEADERS, mutate.lines)


def _parse_headers(data: bytes) -> str:
    try:
        found = _read_headers(written(data, ".headers"), "otlp.headers_file")
    except ConfigError as error:
        return REFUSED if "line" in str(error) else REFUSED_FIRST
    assert all(name and "\n" not in name + value and "\r" not in name + value for name, value in found.items())
    return ACCEPTED


TARGETS = (
    Target(
        "config-toml",
        _make_toml,
        _parse_toml,
        (
            "gangwatch.configuration.config_file:load",
            "gangwatch.configuration.config_file:_with_overrides",
            "gangwatch.configuration.config_file:_convert",
            "gangwatch.configuration.config_file:_section",
            "gangwatch.configuration.config_file:_policy",
            "gangwatch.configuration.config_file:_policy_value",
            "gangwatch.configuration.config_file:_check_queue_keys",
            "gangwatch.configuration.config_file:_policy_range",
            "gangwatch.configuration.config_file:_prepared",
            "gangwatch.configuration.config_file:_elsewhere",
            "gangwatch.configuration.config_file:_nearest",
            "gangwatch.configuration.config_file:_check_names",
            "gangwatch.configuration.config_file:_toml",
        ),
    ),
    Target("job-template", _make_template, _parse_template, ("gangwatch.job_templates.template",)),
    Target(
        "config-durations",
        _make_duration,
        _parse_duration,
        ("gangwatch.configuration.durations:parse_duration", "gangwatch.configuration.durations:_clock_seconds"),
    ),
    Target(
        "config-web",
        _make_web,
        _parse_web,
        ("exporter.security.web_config:load_web_config", "exporter.security.web_config:_Reading"),
    ),
    Target("config-topology", _make_topology, _parse_topology, ("scheduler_feedback.fabric_file",)),
    Target("config-headers", _make_headers, _parse_headers, ("exporter.push.target_files:_read_headers",)),
)
