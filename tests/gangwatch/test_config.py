"""Configuration: errors name file, key and reason; no value is guessed; the printed configuration can be read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.errors import ConfigError, GangwatchError
from gangwatch.cli import cli
from gangwatch.configuration import config_file
from gangwatch.configuration.config_file import as_toml, changes, flatten, load
from gangwatch.configuration.durations import parse_duration
from gangwatch.configuration.in_force import read_in_force
from gangwatch.configuration.node_plan import NODE_NAME, oversubscribed, plan_nodes
from gangwatch.configuration.sections import ClusterSection, parse_listen
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core.state import Mode


def write(folder: Path, text: str) -> Path:
    file = folder / "gangwatch.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[policy]\nquarantine_secnds = 1", "policy.quarantine_secnds: unknown key (did you mean quarantine_seconds?)"),
        ("[polcy]\n", "polcy: unknown section (did you mean policy?)"),
        ("policy = 3", "policy: 3 is not a section: write [policy]"),
        ("[cluster]\nnodes = 'four'", "cluster.nodes: expected a whole number, not 'four'"),
        ("[cluster]\nnodes = 0", "cluster.nodes: expected a whole number >= 1, not 0"),
        ("[cluster]\nnodes = true", "cluster.nodes: expected a whole number, not True"),
        ("[cluster]\ngpus = 1", "cluster.gpus: expected true or false, not 1"),
        ("[cluster]\nnodes = 2\nnames = ['a', 'b c']", "cluster.names: 'b c' is not a valid node name"),
        ("[cluster]\nnodes = 2\nnames = ['a', 'a']", "cluster.names: duplicate name"),
        ("[cluster]\nnodes = 3\nnames = ['a', 'b']", "cluster.names: 2 names for cluster.nodes = 3"),
        ("[controller]\nmode = 'watch'", "controller.mode: expected 'observe' or 'act', not 'watch'"),
        ("[controller]\nport = 70000", "controller.port: expected a whole number <= 65535, not 70000"),
        ("[policy]\nmode = 'act'", "policy.mode: unknown key (use controller.mode)"),
        ("[policy]\nquarantine_seconds = 'soon'", "policy.quarantine_seconds: 'soon' is not a duration"),
        ("[policy]\nminimum_confidence = 1.5", "policy.minimum_confidence: expected a number between 0 and 1, not 1.5"),
        ("[policy]\nmigration_margin = -1", "policy.migration_margin: expected a number >= 0, not -1"),
        ("[policy]\nstart_timeout_seconds = 0", "policy.start_timeout_seconds: expected a number >= 1, not 0"),
        ("[policy]\nmigration_margin = nan", "policy.migration_margin: expected a finite number, not nan"),
        ("[policy]\nmigration_margin = true", "policy.migration_margin: expected a number, not True"),
        ("[policy]\nquarantine_seconds = '2d'", "policy.quarantine_max_seconds: 86400 s is less than"),
        (
            "[policy]\nnetwork_classes = 9\nuplink_slowdown = 0.1",
            "network_classes: expected a whole number from 0 to 8",
        ),
        ("[policy]\nuplink_rails = 0", "policy.uplink_rails: expected a whole number from 1 to 64, not 0"),
        ("[policy]\nuplink_gangs = 0", "policy.uplink_gangs: expected a number above 0, not 0"),
        ("[policy]\nnetwork_classes = 4", "policy.network_classes: has no effect without policy.uplink_slowdown"),
        ("[policy]\nnetwork_classes = 4\nuplink_slowdown = 0.1\n[slurm]\nenabled = true", "Slurm starts the jobs"),
        ("[policy]\nslice_seconds = 0", "policy.slice_seconds: expected a number >= 1"),
        ("[agent]\ninterval_seconds = '1ms'", "agent.interval_seconds: expected a number >= 0.05, not '1ms'"),
        ("[agent", "not TOML"),
        ("[agent]\nlisten = '9400'", "agent.listen: expected HOST:PORT or [IPV6]:PORT, not '9400'"),
        ("[agent]\nlisten = '::1:9400'", "agent.listen: expected HOST:PORT"),
        ("[agent]\nlisten = 'host:99999'", "agent.listen: expected HOST:PORT"),
        ("[agent]\npod_label_names = ['a b']", "agent.pod_label_names: 'a b' is not the key of a Kubernetes label"),
        ("[agent]\npod_label_names = ['a', 'a']", "agent.pod_label_names: 'a' is listed twice"),
        (
            "[agent]\npod_label_names = ['x.y', 'x-y']",
            "agent.pod_label_names: 'x.y' and 'x-y' would both become label_x_y: remove one of them",
        ),
        (f"[agent]\npod_label_names = {[f'a{i}' for i in range(17)]}", "agent.pod_label_names: 17 names: at most 16"),
        ("[exporter]\nprofile = 'tiny'", "exporter.profile: expected 'default' or 'full', not 'tiny'"),
        (
            "[exporter]\ncompatibility = ['prometheus']",
            "exporter.compatibility: expected a list of 'dcgm' or 'node_exporter' or 'rdma_exporter', not ['prom",
        ),
        ("[exporter]\nseries_limit = 5", "exporter.series_limit: expected a whole number >= 100, not 5"),
        ("[otlp]\ninterval_seconds = '0s'", "otlp.interval_seconds: expected a number >= 1"),
        ("[remote_write]\nurl = 'x'", "remote_write.url: unknown key"),
    ],
)
def test_invalid_values_are_refused_with_file_key_and_reason(tmp_path: Path, text: str, complaint: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        load(file)
    assert str(refusal.value).startswith(f"{file}: ")
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml")


def test_values_and_durations_are_read(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "[cluster]\nnodes = 4\nslots = 2\n[controller]\nport = 0\nmode = 'observe'\n"
        "[policy]\nquarantine_seconds = '10m'\nmigration_margin = 1\n[agent]\ninterval_seconds = '500ms'\n",
    )
    loaded = load(file)
    assert (loaded.cluster.nodes, loaded.cluster.slots, loaded.controller.port) == (4, 2, 0)
    assert loaded.policy.quarantine_seconds == 600.0
    assert loaded.policy.migration_margin == 1.0
    assert loaded.policy.mode is Mode.OBSERVE
    assert loaded.agent.interval_seconds == 0.5
    assert loaded.source == str(file)


def test_the_command_line_overrides_the_file_and_errors_name_their_source(tmp_path: Path) -> None:
    file = write(tmp_path, "[cluster]\nnodes = 4\nslots = 2\n")
    assert load(file, {"cluster.nodes": 2, "controller.port": None}).cluster == ClusterSection(nodes=2, slots=2)
    with pytest.raises(ConfigError, match=r"^command line: controller\.port: expected a whole number <= 65535"):
        load(file, {"controller.port": 70000})
    with pytest.raises(ConfigError, match=rf"^{write(tmp_path, '[cluster]' + chr(10) + 'slots = -1')}: cluster\.slots"):
        load(file, {"cluster.nodes": 2})


def test_the_file_is_found_by_variable_and_by_default_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANGWATCH_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load(None).source == ""
    (tmp_path / "gangwatch").mkdir()
    usual = write(tmp_path / "gangwatch", "[controller]\nport = 1\n")
    assert load(None).source == str(usual)
    named = write(tmp_path, "[controller]\nport = 2\n")
    monkeypatch.setenv("GANGWATCH_CONFIG", str(named))
    assert load(None).controller.port == 2


def test_the_effective_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    first = load(write(tmp_path, "[cluster]\nnodes = 2\nnames = ['a', 'b']\n[policy]\nsuspect_seconds = '90s'\n"))
    again = load(write(tmp_path, as_toml(first)))
    assert flatten(again) == flatten(first)
    assert flatten(first)["policy.suspect_seconds"] == 90.0
    assert not changes(first, again)


def test_changes_report_which_keys_a_reload_applies(tmp_path: Path) -> None:
    before = load(write(tmp_path, ""))
    after = load(
        write(tmp_path, "[cluster]\nnodes = 2\n[controller]\nmode = 'observe'\n[policy]\nsuspect_seconds = 1\n")
    )
    assert [(one.key, one.restart) for one in changes(before, after)] == [
        ("cluster.nodes", True),
        ("controller.mode", False),
        ("policy.suspect_seconds", False),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("2 d", 172800.0), ("250ms", 0.25)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1s", "1 week", "1h30m", "inf", "1e3", ":30", "1:", "1:2:3:4", "1-", "-1:00", "1:0.5", "1-2-3"],
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), st.lists, max_leaves=4)
)
def test_any_invalid_value_raises_only_config_error(value: object) -> None:
    for key in flatten(config_file.Config()):
        section, _, name = key.partition(".")
        try:
            config_file._convert({section: {name: value}}, "file")
        except ConfigError as error:
            assert str(error).startswith("file: ")


def test_the_exporters_sections_are_read_and_printed_back(tmp_path: Path) -> None:
    first = load(
        write(
            tmp_path,
            "[agent]\nlisten = '[::]:9400'\nweb_config = '/etc/web.yml'\nrdma_excluded = ['mlx5_9']\n"
            "[exporter]\nprofile = 'full'\ncompatibility = ['dcgm', 'node_exporter']\ndeny = ['*_bits_total']\n"
            "[otlp]\nendpoint = 'http://c:4318/v1/metrics'\ninterval_seconds = '30s'\n",
        )
    )
    assert first.exporter.compatibility == ("dcgm", "node_exporter")
    assert (first.otlp.interval_seconds, first.remote_write.endpoint) == (30.0, "")
    assert parse_listen(first.agent.listen or "", "") == ("[::]", 9400)
    again = load(write(tmp_path, as_toml(first)))
    assert flatten(again) == flatten(first)


# --- nodes -----------------------------------------------------------------------------------------------------------

GPUS = tuple(f"GPU-{index}" for index in range(8))


@pytest.mark.parametrize(
    ("processors", "nodes", "slots"),
    [(1, 2, 4), (2, 2, 4), (4, 2, 4), (8, 2, 4), (15, 2, 7), (16, 4, 4), (48, 4, 12), (64, 8, 8), (128, 8, 16)],
)
def test_a_machine_without_gpus_is_divided_by_its_processors(processors: int, nodes: int, slots: int) -> None:
    planned = plan_nodes(ClusterSection(), "host.example.org", processors, ())
    assert [(node.name, node.slots, node.devices) for node in planned] == [
        (f"node-{index}", slots, ()) for index in range(nodes)
    ]
    assert bool(oversubscribed(planned, processors)) == (nodes * slots > processors)


@pytest.mark.parametrize("processors", range(1, 257))
def test_two_nodes_can_each_hold_a_gang_of_four(processors: int) -> None:
    planned = plan_nodes(ClusterSection(), "host", processors, ())
    assert len(planned) >= 2
    assert all(node.slots >= 4 for node in planned)


def test_given_numbers_of_nodes_and_slots_override_the_defaults() -> None:
    assert [node.slots for node in plan_nodes(ClusterSection(nodes=4), "host", 6, ())] == [1, 1, 1, 1]
    (node,) = plan_nodes(ClusterSection(nodes=1), "host.example.org", 6, ())
    assert (node.name, node.slots) == ("host", 6)
    assert [node.slots for node in plan_nodes(ClusterSection(slots=3), "host", 6, ())] == [3, 3]
    assert [node.slots for node in plan_nodes(ClusterSection(slots=3), "host", 1, ())] == [3, 3]
    assert [node.name for node in plan_nodes(ClusterSection(names=("a", "b", "c")), "host", 2, ())] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("gpus", "sizes"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (4, [2, 2]), (8, [4, 4]), (16, [4, 4, 4, 4])]
)
def test_each_slot_is_one_gpu_and_each_gpu_belongs_to_one_node(gpus: int, sizes: list[int]) -> None:
    names = tuple(f"GPU-{index}" for index in range(gpus))
    planned = plan_nodes(ClusterSection(), "host", 2, names)
    assert [node.slots for node in planned] == sizes
    assert [device for node in planned for device in node.devices] == list(names), "each GPU once, neighbours together"
    assert oversubscribed(planned, 2) == ""


@pytest.mark.parametrize(("nodes", "slots"), [(None, None), (3, None), (2, 2), (None, 3), (8, 1), (1, None)])
def test_no_gpu_is_assigned_to_two_nodes(nodes: int | None, slots: int | None) -> None:
    planned = plan_nodes(ClusterSection(nodes=nodes, slots=slots), "host", 64, GPUS)
    devices = [device for node in planned for device in node.devices]
    assert len(set(devices)) == len(devices) == sum(node.slots for node in planned)
    assert all(len(node.devices) == node.slots >= 1 for node in planned)
    if slots is None:
        assert devices == list(GPUS), "every GPU is assigned"


def test_cpu_slots_can_be_requested_on_a_gpu_machine() -> None:
    nodes = plan_nodes(ClusterSection(nodes=2, slots=2, gpus=False), "host", 64, GPUS)
    assert [(node.slots, node.devices) for node in nodes] == [(2, ()), (2, ())]


def test_more_slots_than_gpus_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"4 nodes of 2 slots need 8 GPUs, this machine has 1.*--no-gpus"):
        plan_nodes(ClusterSection(nodes=4, slots=2), "host", 64, GPUS[:1])


@pytest.mark.parametrize("host", ["", "...", "_x_", "h" * 80, "ä", "a b"])
def test_any_host_name_gives_a_node_name(host: str) -> None:
    (node,) = plan_nodes(ClusterSection(nodes=1), host, 1, ())
    assert NODE_NAME.fullmatch(node.name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[policy.queues]]\nname = "a"\nlimt = 4\n',
            r"policy\.queues\[0\]\.limt: unknown key \(did you mean limit\?\)",
        ),
        (
            '[policy]\nqueues = [{name = "a"}, {name = "b", weigth = 2}]\n',
            r"queues\[1\]\.weigth: .*did you mean weight\?",
        ),
        ('[policy]\nqueues = [{name = "a", kwota = 2}]\n', r"queues\[0\]\.kwota: unknown key \(did you mean quota\?\)"),
        ("[policy.queues.a]\nquota = 2\n", r"expected a list, not .*: write \[\[policy\.queues\]\]"),
        ('[[queues]]\nname = "a"\n', r"queues: unknown section \(did you mean policy\.queues\?\)"),
        ("[policy]\nqueues = [3]\n", r"policy\.queues: expected a table at \[0\], not \[3\]"),
        ('[agent]\nmode = "act"\n', r"agent\.mode: unknown key \(did you mean controller\.mode or slurm\.mode\?\)"),
        ("[controller]\nminimum_confidence = 0.5\n", r"\(did you mean policy\.minimum_confidence\?\)"),
        (
            "[agent]\nzzz = 1\n",
            r"agent\.zzz: unknown key \(known keys: interval_seconds, .*; releases newer than ",
        ),
        ("[polcy]\n", r"polcy: unknown section \(did you mean policy\?\)"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path, text: str, message: str) -> None:
    """Refuse unknown keys at every level: a misspelt limit of a queue must not be ignored."""
    file = tmp_path / "gangwatch.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        config_file.load(file)
    assert str(file) in str(refused.value)


def test_a_truncated_file_or_keys_of_another_release_are_refused_with_a_message(tmp_path: Path) -> None:
    """The file is cut at any position. The error has no traceback, and no part of the configuration is used."""
    recorded = Path(__file__).parents[1] / "fixtures" / "releases" / "0.1.0" / "gangwatch.toml"
    text = recorded.read_text()
    file = tmp_path / "gangwatch.toml"
    for at in range(0, len(text), 17):
        file.write_text(text[:at])
        try:
            config_file.load(file)
        except ConfigError as error:
            assert str(file) in str(error)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        key, equals, value = line.partition(" = ")
        if not equals:
            continue
        file.write_text("\n".join([*lines[:number], f"{key}_of_later = {value}", *lines[number + 1 :]]))
        with pytest.raises(ConfigError, match=rf"{key}_of_later: unknown key|cluster\.n"):
            config_file.load(file)
        for other in ('"x"', "[[1]]", "nan"):
            file.write_text("\n".join([*lines[:number], f"{key} = {other}", *lines[number + 1 :]]))
            try:
                config_file.load(file)
            except ConfigError as error:
                assert str(file) in str(error) and "Traceback" not in str(error)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"pid": 1, "start_time": 1, "url": "\xff", "node": "\xff", "config": "\xff", "file": "\xff"}',
        b"[]",
        b'{"pid": "x"}',
        b"\x00" * 64,
    ],
)
def test_errors_name_damaged_files_of_the_state_folder(tmp_path: Path, content: bytes) -> None:
    state = StateFolder(tmp_path / "state")
    state.prepare()
    for file in (state.controller_file, state.agent_file("n0"), state.supervisor_file, state.config_file):
        file.write_bytes(content)
    for read in (state.controller, lambda: state.agent("n0"), state.supervisor_left, lambda: read_in_force(state)):
        with pytest.raises(GangwatchError, match=r"(controller|n0|supervisor|config)\.json: "):
            read()


def test_rails_are_refused_on_kubernetes_before_it_is_asked(tmp_path: Path) -> None:
    """The API server does not exist: the configuration is checked first."""
    file, access = write(tmp_path, "[policy]\nuplink_rails = 8"), tmp_path / "kubeconfig"
    access.write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
        'clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]\nusers: [{name: u, user: {token: x}}]\n'
    )
    arguments = ["kubernetes", "controller", "--kubeconfig", str(access), "--config", str(file)]
    result = CliRunner().invoke(cli, [*arguments, "--state", str(tmp_path / "state")])
    assert isinstance(result.exception, ConfigError) and "policy.uplink_rails: on Kubernetes" in str(result.exception)
