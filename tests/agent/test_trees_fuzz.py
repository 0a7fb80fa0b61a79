"""Collectors on a sysfs and proc tree with garbage in some files: only the values of these files are absent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.collectors.block import Block, Collector
from agent.collectors.host.gpu_nic_topology import TopologyCollector
from agent.collectors.host.host import HostCollector
from agent.collectors.host.host_devices import HostDeviceCollector
from agent.collectors.host.network import NetworkCollector
from agent.collectors.host.nfs import NfsCollector
from agent.collectors.host.pcie import PcieCollector
from agent.collectors.rdma.rdma import RdmaCollector
from agent.schema.errors import SourceError
from agent.sources.counter_files import parse_number
from agent.sources.rdma.ethtool import RECORDED
from tests.fakes.sysfs.tree import Tree, build

GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\n", b"-1\n", b"18446744073709551616\n", b"1e3\n", b"0x10\n", b"1_000\n", b"9" * 400,
                     b"N/A (no PMA)\n", b"4: ACTIVE", b"99999999 Gb/sec (4X)", b"Unknown\n", b"\xff" * 40, b"1 " * 30,
                     b"7\n7\n", "٣".encode()]),
    st.integers(0, 2**64 - 1).map(lambda number: b"%d\n" % number),
)  # fmt: skip

WORD_BYTES = 4

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float | int]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return build(tmp_path_factory.mktemp("node"), nics=1, gpus=1)


def make_all(root: str) -> Iterator[Callable[[], Collector]]:
    yield lambda: HostCollector(root)
    yield lambda: HostDeviceCollector(root, root)
    yield lambda: RdmaCollector.of(root, 1.0)
    yield lambda: NetworkCollector(root)
    yield lambda: PcieCollector(root)
    yield lambda: TopologyCollector(root, ())
    yield lambda: NfsCollector(root)


def values_of(block: Block) -> Values:
    gauges = {
        (column.metric, column.labels): value
        for column, value in zip(block.gauge_columns, block.gauges.tolist(), strict=True)
        if not math.isnan(value)
    }
    counters = zip(block.counter_columns, block.counters.tolist(), block.counters_valid.tolist(), strict=True)
    return {**gauges, **{(column.metric, column.labels): value for column, value, valid in counters if valid}}


def read_all(root: str) -> Values:
    """Return every value of the collectors' first run. A collector may raise only SourceError."""
    values: Values = {}
    for make in make_all(root):
        try:
            parent = make()
        except SourceError:
            continue
        members: tuple[Collector, ...] = ()
        try:
            values |= values_of(parent.collect())
            members = parent.members() if isinstance(parent, RdmaCollector) else ()
        except SourceError:
            pass
        for member in members:
            try:
                values |= values_of(member.collect())
            except SourceError:
                pass
        if isinstance(parent, RdmaCollector):
            values |= values_of(parent.collect())  # counts the files that its members could not read
        for member in members:
            member.close()
        parent.close()
    return values


class Damage:
    """Context manager that replaces the content of files, and restores it at the end."""

    def __init__(self, damage: dict[Path, bytes]) -> None:
        self._damage = damage
        self._before = {path: path.read_bytes() for path in damage}

    def __enter__(self) -> None:
        for path, content in self._damage.items():
            path.write_bytes(content)

    def __exit__(self, *_: object) -> None:
        for path, content in self._before.items():
            path.write_bytes(content)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), contents=st.lists(GARBAGE, min_size=1, max_size=8))
def test_garbage_in_any_files_causes_no_crash(tree: Tree, seed: int, contents: list[bytes]) -> None:
    chosen = random.Random(seed).sample(files_of(tree.root), len(contents))
    with Damage(dict(zip(chosen, contents, strict=True))):
        values = read_all(str(tree.root))
    assert values
    assert all(value >= 0 for (metric, _), value in values.items() if metric.endswith("_total"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), contents=st.lists(GARBAGE, min_size=1, max_size=8))
def test_a_damaged_counter_file_affects_only_its_own_series(tree: Tree, seed: int, contents: list[bytes]) -> None:
    port = tree.nics[0].port
    counters = [*files_of(port / "counters"), *files_of(port / "hw_counters")]
    before = read_all(str(tree.root))
    chosen = random.Random(seed).sample(counters, len(contents))
    with Damage(dict(zip(chosen, contents, strict=True))):
        values = read_all(str(tree.root))
    numbers: set[float] = set()
    for content in contents:
        try:
            # Stripping text removes more kinds of white space than stripping bytes.
            number = parse_number(content.decode("utf-8", "replace").strip().encode())
        except ValueError:
            continue
        if number < 1 << 64:
            numbers |= {number, number * WORD_BYTES, number * 0.001}
    own = {key for key in before if "files_unreadable" not in key[0]}
    assert values.keys() <= before.keys(), "garbage creates no new series"
    lost = own - values.keys()
    other = {key for key in own & values.keys() if values[key] != before[key]}
    assert len(lost | other) <= len(contents), "one file affects one series"
    assert all(values[key] in numbers for key in other), {key: values[key] for key in other}
    unreadable = [value for (metric, _), value in values.items() if metric == "gangwatch_rdma_files_unreadable"]
    assert unreadable == [len(lost)], "every file without a number is counted"


def test_a_tree_of_garbage_causes_no_crash(tree: Tree) -> None:
    noise = random.Random(1)
    for _ in range(3):
        damage = {
            path: noise.choice([b"", b"\0" * 10, noise.randbytes(30), b"-5\n", b"9" * 400])
            for path in files_of(tree.root)
        }
        with Damage(damage):
            read_all(str(tree.root))
    statistics = tree.root / "class" / "net" / tree.nics[0].netdev / RECORDED
    assert statistics.exists() and read_all(str(tree.root))
