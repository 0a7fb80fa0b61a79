"""Scale of each feature, and the direction in which a fault changes it."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES
from scheduler_feedback.detectors.counters.feature_scales import BAD, FLOOR, on_scale

NAN = float("nan")


def scaled(name: str, *values: float) -> list[float]:
    out = np.full(len(values), 99.0, np.float32)
    on_scale(FEATURE[name], np.array(values, np.float32), out)
    return out.tolist()


@pytest.mark.parametrize("values", [(0.0, 3.0, 0.0, 0.0, 0.0, -1.0), (3.0, 3.0, 3.0, -1.0)])
def test_error_counts_have_a_scale_with_zero_for_none(values: tuple[float, ...]) -> None:
    """The scale is the same whether most values are zero or not."""
    expected = [np.log1p(max(value, 0.0)) for value in values]
    assert scaled("memory_errors", *values) == pytest.approx(expected)


def test_rates_have_a_log_scale_and_shares_are_unchanged() -> None:
    assert scaled("sm_clock", 2.0, 1.0, 0.0) == pytest.approx([np.log(2.0), 0.0, np.log(1e-6)])
    assert scaled("cpu_waiting", 0.0, 0.25, -0.5) == [0.0, 0.25, -0.5]


@pytest.mark.parametrize("name", ["sm_clock", "cpu_waiting", "memory_errors"])
def test_unknown_values_stay_unknown(name: str) -> None:
    assert np.isnan(scaled(name, NAN, 1.0, NAN)).tolist() == [True, False, True]
    assert np.isnan(scaled(name, NAN, 0.0, 0.0)).tolist() == [True, False, False]


def test_less_clock_link_and_traffic_is_bad_and_more_errors_and_waits_are() -> None:
    bad = {feature.name: BAD[row] for row, feature in enumerate(FEATURES)}
    assert {name for name, side in bad.items() if side < 0} == {
        "sm_clock", "pcie_link", "nvlink_bytes", "nic_transmit_bytes", "nic_receive_bytes",
    }  # fmt: skip
    assert {name for name, side in bad.items() if not side} == {
        "sm_active", "tensor_active", "dram_active", "power", "processor", "tcp_bytes", "tcp_busy", "transmit_queue",
    }, "the direction of these has no meaning"  # fmt: skip
    assert all(bad[feature.name] > 0 for feature in FEATURES if feature.unit == "1/s")
    assert (FLOOR > 0).all()
