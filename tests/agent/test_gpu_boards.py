"""Every value of every server model, compared with the reviewed files tests/agent/golden/gpu-BOARD.txt.

The fake gives each field a distinct number (field x 1000 + GPU x 100 + link), so swapped values are detected.
GANGWATCH_UPDATE_GOLDEN=1 rewrites the files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.collectors.block import Block
from tests.agent.catalogued import assert_catalogued
from tests.agent.gpus import Machine, lines, machine
from tests.fakes.nvml.control import BOARDS, FakeNvml

GOLDEN = Path(__file__).with_name("golden")


def read_all(one: Machine) -> list[Block]:
    """Run every member twice, a second apart, because profiling needs two samples. Then run the parent collector."""
    one.parent.collect()
    for _ in range(2):
        one.advance(1.0)
        blocks = [member.collect() for member in one.parent.members()]
    return [one.parent.collect(), *blocks]


@pytest.mark.parametrize("board", BOARDS)
def test_every_value_equals_the_golden_file(nvml_library: Path, nvml: FakeNvml, board: str) -> None:
    nvml.reset(board)
    nvml.set_pattern()
    nvml.set_gpus(2 if board in ("h100", "h100-mig", "a100-bridge") else 1)
    with machine(nvml_library, nvml, burst=True) as one:
        blocks = read_all(one)
        for block in blocks:
            assert_catalogued(block)
        found = lines(blocks)
    golden = GOLDEN / f"gpu-{board}.txt"
    if os.environ.get("GANGWATCH_UPDATE_GOLDEN"):
        golden.write_text("\n".join(found) + "\n")
    assert found == golden.read_text().splitlines()


@pytest.mark.parametrize("board", BOARDS)
def test_a_healthy_board_has_no_absent_and_no_duplicate_series(nvml_library: Path, nvml: FakeNvml, board: str) -> None:
    nvml.reset(board)
    with machine(nvml_library, nvml) as one:
        found = lines(read_all(one))
        seen = [column for block in read_all(one) for column in (*block.gauge_columns, *block.counter_columns)]
    assert [line for line in found if "absent" in line] == []
    names = [(column.metric, column.labels) for column in seen]
    assert len(names) == len(set(names))


def test_eight_h100_have_more_than_two_thousand_series(nvml_library: Path, nvml: FakeNvml) -> None:
    with machine(nvml_library, nvml) as one:
        columns = [
            column
            for block in read_all(one)
            for column in (*block.gauge_columns, *block.counter_columns)
            if not column.metric.endswith("_info")
        ]
    assert len(columns) > 2500


def test_a_fast_run_makes_few_driver_calls(nvml_library: Path, nvml: FakeNvml) -> None:
    """Expect one batch of fields, and no call that makes the driver start a measurement."""
    with machine(nvml_library, nvml) as one:
        one.parent.collect()
        fast = one.member("gpu")
        fast.collect()
        before = {symbol: nvml.call_count(symbol, 0) for symbol in ("nvmlDeviceGetFieldValues", "nvmlGpmSampleGet")}
        one.advance(1.0)
        fast.collect()
        assert nvml.call_count("nvmlDeviceGetFieldValues", 0) == before["nvmlDeviceGetFieldValues"] + 1
        assert nvml.call_count("nvmlGpmSampleGet", 0) == before["nvmlGpmSampleGet"] + 1
        assert nvml.call_count("nvmlDeviceGetPcieThroughput", 0) == 0
