"""Power limits on lease: set through the driver, renewed, ended, restored after a kill, and refused with a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.block import Block
from agent.collectors.gpu.gpu_power_limits import METRIC
from agent.power_leases import LEASE_SECONDS, Allowed, PowerLeases, parse_allowed
from agent.schema.clock import ManualClock
from agent.schema.errors import ConfigError
from tests.agent.catalogued import gauge
from tests.agent.gpus import Machine, uuid
from tests.fakes.nvml.control import INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED, FakeNvml

GPU = uuid(1, 0)
ALLOWED = Allowed(250.0, 650.0)


@pytest.fixture
def one(nvml_library: Path, nvml: FakeNvml, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(nvml_library, nvml, power=(ALLOWED, tmp_path / "power" / "n.json"))
    made.parent.collect()
    yield made
    made.close()


def collect(one: Machine, gpu: int = 0) -> Block:
    return one.member("gpu-power-limit", gpu).collect()


def limit_of(block: Block, limit: str = "current", gpu: str = GPU) -> float:
    return gauge(block, METRIC, gpu=gpu, limit=limit)


def order(one: Machine, watts: float, gpu: str = GPU) -> None:
    assert one.leases is not None
    one.leases.order({gpu: watts})


def test_an_ordered_limit_is_set_published_and_restored_when_its_lease_ends(one: Machine, tmp_path: Path) -> None:
    block = collect(one)
    assert [limit_of(block, limit) for limit in ("least", "most", "current")] == [250.0, 650.0, 700.0]
    assert gauge(block, "gangwatch_gpu_power_limit_lease_active", gpu=GPU) == 0
    order(one, 300.0)
    block = collect(one)
    assert limit_of(block) == 300.0
    assert gauge(block, "gangwatch_gpu_power_limit_lease_active", gpu=GPU) == 1
    assert json.loads((tmp_path / "power" / "n.json").read_bytes())["restore"] == {GPU: 700_000}
    one.advance(LEASE_SECONDS - 1)
    assert limit_of(collect(one)) == 300.0
    order(one, 300.0)
    one.advance(LEASE_SECONDS - 1)
    assert limit_of(collect(one)) == 300.0, "it was renewed"
    one.advance(2)
    assert limit_of(collect(one)) == 700.0
    assert not (tmp_path / "power" / "n.json").exists(), "nothing is left to restore"


def test_gpus_that_the_newest_order_does_not_name_get_back_their_own_limit(one: Machine) -> None:
    order(one, 300.0)
    assert limit_of(collect(one)) == 300.0
    order(one, 400.0, uuid(1, 1))
    assert limit_of(collect(one)) == 700.0
    assert limit_of(collect(one, 1), gpu=uuid(1, 1)) == 400.0


def test_an_agent_that_stops_restores_the_limit(one: Machine, nvml: FakeNvml) -> None:
    order(one, 300.0)
    collect(one)
    one.member("gpu-power-limit").close()
    nvml.set_call("nvmlDeviceSetPowerManagementLimit", NO_PERMISSION)
    assert limit_of(collect(one, 1), gpu=uuid(1, 1)) == 700.0
    nvml.set_call("nvmlDeviceSetPowerManagementLimit", 0)
    assert limit_of(collect(one)) == 300.0, "the lease is still there, if the agent only released the GPU"


def test_a_killed_agent_restores_the_limit_after_its_next_start(
    one: Machine, nvml_library: Path, nvml: FakeNvml, tmp_path: Path
) -> None:
    order(one, 300.0)
    collect(one)
    file = tmp_path / "power" / "n.json"
    saved = file.read_bytes()
    again = Machine(nvml_library, nvml, power=(ALLOWED, file), clock=one.clock)
    again.parent.collect()
    assert limit_of(collect(again)) == 300.0, "the lease has not ended: the scheduler still counts on it"
    again.advance(LEASE_SECONDS + 1)
    assert limit_of(collect(again)) == 700.0
    again.close()
    file.write_bytes(saved.replace(b'"boot"', b'"earlier"'))
    PowerLeases(ALLOWED, file, "boot")
    assert not file.exists(), "the driver has restored all limits at the reboot"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"boot_id": "boot"}', b'{"boot_id":"boot","restore":{"g":0},"leases":{}}',
     b'{"boot_id":"boot","restore":{"g":1},"leases":{"g":[]}}'],
)  # fmt: skip
def test_a_damaged_file_is_reported_and_counts_as_empty(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "n.json"
    file.write_bytes(content)
    leases = PowerLeases(ALLOWED, file, "boot", ManualClock())
    assert leases.to_restore("g") is None
    assert "power limits that an earlier agent has set stay" in caplog.text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (NO_PERMISSION, "reason=no-permission: power limits cannot be set: setting a power limit needs root"),
        (NOT_SUPPORTED, "reason=unsupported: power limits cannot be set: the GPU has no settable power limit"),
        (INVALID_ARGUMENT, "reason=outside: power limits cannot be set: the driver refuses 300 W"),
        (999, "reason=failed: power limits cannot be set: the driver has failed"),
    ],
)
def test_a_driver_that_refuses_is_reported_once_and_the_possible_limits_end(
    one: Machine, nvml: FakeNvml, caplog: pytest.LogCaptureFixture, code: int, text: str
) -> None:
    nvml.set_call("nvmlDeviceSetPowerManagementLimit", code)
    order(one, 300.0)
    for _ in range(3):
        block = collect(one)
    assert math.isnan(limit_of(block, "least"))
    assert limit_of(block) == 700.0
    assert gauge(block, "gangwatch_gpu_power_limit_lease_active", gpu=GPU) == 0
    assert caplog.text.count(text) == 1


def test_mig_and_ranges_outside_of_the_gpus_own_are_refused(
    nvml_library: Path, nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.set_mig(1, 1)
    made = Machine(nvml_library, nvml, power=(Allowed(100.0, 150.0), tmp_path / "n.json"))
    made.parent.collect()
    assert math.isnan(limit_of(collect(made), "most"))
    assert "allows 100 to 150 W, and the GPU 200 to 700 W" in caplog.text
    assert math.isnan(limit_of(collect(made, 1), "most", uuid(1, 1)))
    assert "MIG is on" in caplog.text
    made.close()


def test_an_order_outside_of_the_allowed_range_is_refused(one: Machine, caplog: pytest.LogCaptureFixture) -> None:
    order(one, 300.0)
    for watts in (100.0, 700.0):
        order(one, watts)
        assert limit_of(collect(one)) == 300.0
        assert f"asked for a power limit of {watts:g} W; agent.power_limits allows 250 to 650 W" in caplog.text


def test_no_limit_is_set_if_what_to_restore_cannot_be_saved(
    nvml_library: Path, nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    made = Machine(nvml_library, nvml, power=(ALLOWED, tmp_path / "file" / "n.json"))
    made.parent.collect()
    order(made, 300.0)
    assert limit_of(collect(made)) == 700.0
    assert "what to restore cannot be saved" in caplog.text
    made.close()


def test_the_range_in_the_configuration() -> None:
    assert parse_allowed("") is None
    assert parse_allowed("300..700") == Allowed(300.0, 700.0)
    for text in ("300", "700..300", "0..300", "a..b", "300..inf", "-1..300"):
        with pytest.raises(ConfigError, match=r"agent\.power_limits: "):
            parse_allowed(text)
