"""Batches of driver fields: code and type of each entry, dropped fields, retries and fallbacks."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.collectors.gpu.nvlink import bit_error_ratio
from agent.schema.frame import Column
from agent.sources.nvml import nvml_fields
from agent.sources.nvml.nvml import Device, GpuLostError, Library, LibraryDeadError, Values
from agent.sources.nvml.nvml_enumeration import find_devices
from agent.sources.nvml.nvml_fields import (
    FieldBatch,
    Source,
    Wanted,
    counter,
    decoded,
    field_answers,
    field_number,
    gauge,
)
from tests.fakes.nvml.control import (
    DOUBLE,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SIGNED_INT,
    SIGNED_LONG_LONG,
    TIMEOUT,
    UNKNOWN,
    UNSIGNED_INT,
    UNSIGNED_LONG,
    UNSIGNED_LONG_LONG,
    UNSIGNED_SHORT,
    FakeNvml,
)

ENERGY, LINK_BYTES, POWER = 83, 138, 186


@pytest.fixture
def device(nvml_library: Path, nvml: FakeNvml) -> Iterator[Device]:
    library = Library(str(nvml_library))
    yield find_devices(library)[0]
    library.close()


class Read:
    """Batch of fields with the array for its values."""

    def __init__(self, device: Device, *wanted: Wanted) -> None:
        self.batch = FieldBatch(device, wanted)
        self.gauges = np.full(len(self.batch.gauges), np.nan)
        self.counters = np.zeros(len(self.batch.counters), np.uint64)
        self.valid = np.zeros(len(self.batch.counters), np.bool_)
        self.batch.place(Values(self.gauges, self.counters, self.valid))

    def again(self) -> Read:
        self.gauges.fill(np.nan)
        self.valid.fill(False)
        self.batch.read()
        return self


def one(name: str) -> Column:
    return Column(name)


def as_bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


@pytest.mark.parametrize(
    ("kind", "bits", "value"),
    [
        (DOUBLE, as_bits(-12.5), -12.5),
        (UNSIGNED_INT, 0xDEADBEEF_00000007, 7),
        (UNSIGNED_LONG, 1 << 40, 1 << 40),
        (UNSIGNED_LONG_LONG, 3 << 40, 3 << 40),
        (SIGNED_LONG_LONG, -5 & 0xFFFF_FFFF_FFFF_FFFF, -5),
        (SIGNED_INT, 0xFFFF_FFFE, -2),
        (SIGNED_INT, 41, 41),
        (UNSIGNED_SHORT, 0xABCD_0009, 9),
    ],
)
def test_each_value_type_is_decoded(device: Device, nvml: FakeNvml, kind: int, bits: int, value: float) -> None:
    nvml.set_field(POWER, bits, kind=kind)
    assert Read(device, gauge(one("g"), Source(POWER))).again().gauges.tolist() == [value]


def test_a_narrow_value_does_not_keep_bytes_of_the_previous_value(device: Device, nvml: FakeNvml) -> None:
    """The driver writes only four of the eight bytes, and the array is reused."""
    nvml.set_field(POWER, (1 << 64) - 1)
    read = Read(device, gauge(one("g"), Source(POWER)), counter(one("c"), Source(POWER))).again()
    nvml.set_field(POWER, 5, kind=UNSIGNED_INT)
    read.again()
    assert (read.gauges.tolist(), read.counters.tolist()) == ([5], [5])


def test_a_type_may_change_from_run_to_run(device: Device, nvml: FakeNvml) -> None:
    nvml.set_field(POWER, 300, kind=UNSIGNED_INT)
    read = Read(device, gauge(one("g"), Source(POWER, 0.5)))
    assert read.again().gauges.tolist() == [150]
    nvml.set_field(POWER, as_bits(2.5), kind=DOUBLE)
    assert read.again().gauges.tolist() == [1.25]


def test_counters_are_exact_and_have_the_width_of_their_type(device: Device, nvml: FakeNvml) -> None:
    nvml.set_field(ENERGY, 2**63 + 1)
    nvml.set_field(94, 2**32 - 1, kind=UNSIGNED_INT)
    read = Read(device, counter(one("wide"), Source(ENERGY)), counter(one("narrow"), Source(94))).again()
    assert read.counters.tolist() == [2**63 + 1, 2**32 - 1]
    assert [column.width for column in read.batch.counters] == [64, 32]


def test_a_32_bit_counter_that_wraps_too_fast_is_left_out(device: Device, nvml: FakeNvml) -> None:
    narrow = counter(one("bytes"), Source(197), wide_only=True)
    assert Read(device, narrow).batch.counters == []
    nvml.set_field(197, 7, kind=UNSIGNED_LONG_LONG)
    assert Read(device, narrow).again().counters.tolist() == [7]


def test_a_scope_selects_one_link_and_the_factor_is_exact(device: Device, nvml: FakeNvml) -> None:
    nvml.set_field(LINK_BYTES, 2**50 + 1, scope=17)
    nvml.set_field(LINK_BYTES, 3, scope=0)
    read = Read(
        device, counter(one("a"), Source(LINK_BYTES, 1024, 17)), counter(one("b"), Source(LINK_BYTES, 1024, 0))
    ).again()
    assert read.counters.tolist() == [(2**50 + 1) * 1024, 3 * 1024]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_an_unsupported_field_has_no_column_and_is_not_requested(device: Device, nvml: FakeNvml, code: int) -> None:
    nvml.set_field(POWER, code=code)
    read = Read(device, gauge(one("power"), Source(POWER)), gauge(one("other"), Source(190))).again()
    assert [column.metric for column in read.batch.gauges] == ["other"]
    nvml.clear_fields()
    assert len(read.again().gauges) == 1, "not requested again with this handle"


def test_the_second_source_is_used_if_the_first_is_unsupported(device: Device, nvml: FakeNvml) -> None:
    nvml.set_field(185, code=NOT_SUPPORTED)
    nvml.set_field(186, 9)
    assert Read(device, gauge(one("power"), Source(185), Source(186))).again().gauges.tolist() == [9]


@pytest.mark.parametrize("code", [TIMEOUT, UNKNOWN])
def test_a_field_is_absent_during_a_temporary_failure(device: Device, nvml: FakeNvml, code: int) -> None:
    nvml.set_field(POWER, code=code)
    wanted = (gauge(one("power"), Source(POWER)), counter(one("energy"), Source(ENERGY)))
    read = Read(device, *wanted).again()
    assert math.isnan(read.gauges[0])
    assert read.valid.tolist() == [True]
    nvml.set_field(POWER, 7)
    nvml.set_field(ENERGY, code=code)
    read.again()
    assert read.gauges.tolist() == [7]
    assert read.valid.tolist() == [False]


def test_a_field_that_becomes_unsupported_is_dropped_alone(device: Device, nvml: FakeNvml) -> None:
    for field in (186, 187, 188):
        nvml.set_field(field, field)
    read = Read(
        device,
        gauge(one("a"), Source(186)),
        counter(one("n"), Source(ENERGY)),
        gauge(one("b"), Source(187)),
        gauge(one("c"), Source(188)),
    ).again()
    assert read.gauges.tolist() == [186, 187, 188]
    before = nvml.call_count("nvmlDeviceGetFieldValues", 0)
    nvml.set_field(187, code=NOT_SUPPORTED)
    read.again()
    assert read.gauges[[0, 2]].tolist() == [186, 188]
    assert math.isnan(read.gauges[1])
    assert read.valid.tolist() == [True]
    nvml.set_field(187, 187)
    assert math.isnan(read.again().gauges[1])
    assert nvml.call_count("nvmlDeviceGetFieldValues", 0) == before + 3, "requested once more when it was dropped"


def test_all_fields_are_absent_if_the_whole_call_fails(device: Device, nvml: FakeNvml) -> None:
    read = Read(device, gauge(one("power"), Source(POWER)), counter(one("energy"), Source(ENERGY))).again()
    nvml.set_call("nvmlDeviceGetFieldValues", TIMEOUT, 0)
    read.again()
    assert math.isnan(read.gauges[0])
    assert read.valid.tolist() == [False]


def test_the_code_of_a_field_can_report_a_lost_gpu_or_driver(device: Device, nvml: FakeNvml) -> None:
    read = Read(device, gauge(one("power"), Source(POWER)))
    nvml.set_field(POWER, code=GPU_IS_LOST)
    with pytest.raises(GpuLostError, match="field 186"):
        read.again()
    nvml.set_field(POWER, code=DRIVER_NOT_LOADED)
    with pytest.raises(LibraryDeadError, match="NVML_ERROR_DRIVER_NOT_LOADED"):
        read.again()
    assert device.library.dead


def test_one_field_is_unsupported_only_by_its_permanent_codes(device: Device, nvml: FakeNvml) -> None:
    nvml.set_field(POWER, 7 << 32 | 5, kind=UNSIGNED_INT)
    assert (field_answers(device, POWER), field_number(device, POWER)) == (True, 5)
    nvml.set_field(POWER, code=TIMEOUT)
    assert (field_answers(device, POWER), field_number(device, POWER)) == (True, None)
    nvml.set_field(POWER, code=NOT_SUPPORTED)
    assert (field_answers(device, POWER), field_number(device, POWER)) == (False, None)
    nvml.set_call("nvmlDeviceGetFieldValues", TIMEOUT, 0)
    assert (field_answers(device, POWER), field_number(device, POWER)) == (True, None)
    nvml.set_call("nvmlDeviceGetFieldValues", NOT_SUPPORTED, 0)
    assert (field_answers(device, POWER), field_number(device, POWER)) == (False, None)
    nvml.set_call("nvmlDeviceGetFieldValues", GPU_IS_LOST, 0)
    with pytest.raises(GpuLostError, match="nvmlDeviceGetFieldValues"):
        field_answers(device, POWER)


def test_a_field_can_be_decoded_into_several_gauges(device: Device, nvml: FakeNvml) -> None:
    nvml.set_field(230, 5, kind=UNSIGNED_INT)
    states = decoded([one("low"), one("high")], lambda raw: (raw & 1, raw >> 1), Source(230))
    read = Read(device, gauge(one("power"), Source(190)), states)
    assert read.again().gauges.tolist()[1:] == [1, 2]
    nvml.set_field(230, code=TIMEOUT)
    assert np.isnan(read.again().gauges[1:]).all()


def test_many_fields_are_requested_in_several_calls(
    device: Device, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_fields, "CALL_FIELDS", 5)
    nvml.set_pattern()
    read = Read(device, *(counter(one(str(link)), Source(LINK_BYTES, 1, link)) for link in range(18)))
    before = nvml.call_count("nvmlDeviceGetFieldValues", 0)
    assert read.again().counters.tolist() == [138000 + link for link in range(18)]
    assert nvml.call_count("nvmlDeviceGetFieldValues", 0) == before + 4


def test_bit_error_ratios_are_unpacked() -> None:
    assert bit_error_ratio(1 << 8 | 15) == (pytest.approx(1e-15),)
    assert bit_error_ratio(15 << 8 | 8) == (pytest.approx(15e-8),)
    assert bit_error_ratio(0) == (0.0,)
