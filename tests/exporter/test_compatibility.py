"""Metric names of other exporters: values and labels as the other exporter prints them."""

from __future__ import annotations

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics

from agent.schema.catalog import BY_NAME, METRICS
from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from exporter.prometheus.compatibility import CLOCK_EVENTS, COMPATIBILITY, dcgm_address
from exporter.prometheus.derived_values import WINDOW_NS, Memory
from exporter.prometheus.exposition import Exposition, Settings, expose
from tests.exporter.test_exposition import owner, series_of

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def info(**labels: str) -> Column:
    named = dict.fromkeys(BY_NAME["gangwatch_gpu_info"].labels, "")
    return Column("gangwatch_gpu_info", tuple(sorted({**named, **labels}.items())))


GPU_INFO = info(gpu=UUID, index="3", minor="3", model="NVIDIA H100 80GB HBM3", pci_address="0000:1b:00.0")
DCGM_LABELS = {
    "gpu": "3",
    "UUID": UUID,
    "pci_bus_id": "00000000:1B:00.0",
    "device": "nvidia3",
    "modelName": "NVIDIA H100 80GB HBM3",
    "Hostname": "n0",
}


class Made:
    """Layout and frames from columns with values."""

    def __init__(self, gauges: dict[Column, float], counters: dict[Column, int]) -> None:
        self.gauges, self.counters = gauges, counters
        self.layout: Layout = make_layout("n0", [Tier("gpu", 1.0)], gauges, counters)
        self.seq = 0

    def frame(self, monotonic_ns: int = 5_000_000_000) -> Frame:
        import numpy as np

        self.seq += 1
        return Frame(
            *("n0", "boot", "agent", self.seq, self.layout.layout_id, 0, monotonic_ns),
            np.array([monotonic_ns], np.int64),
            np.array(list(self.gauges.values()), np.float64),
            np.array(list(self.counters.values()), np.uint64),
            np.ones(len(self.counters), np.bool_),
        )


def lines(body: bytes, beginning: str) -> list[str]:
    return [line for line in body.decode().splitlines() if line.startswith(beginning)]


DCGM = Settings(compatibility=("dcgm",))


def of(name: str, *more: tuple[str, str]) -> Column:
    return Column(name, tuple(sorted((("gpu", UUID), *more))))


@pytest.mark.parametrize(
    ("ours", "value", "theirs", "printed"),
    [
        ("gangwatch_gpu_utilization_ratio", 0.93, "DCGM_FI_DEV_GPU_UTIL", "93"),
        ("gangwatch_gpu_memory_used_bytes", 1234.0 * 1024 * 1024, "DCGM_FI_DEV_FB_USED", "1234"),
        ("gangwatch_gpu_sm_clock_hertz", 1.98e9, "DCGM_FI_DEV_SM_CLOCK", "1980"),
        ("gangwatch_gpu_temperature_celsius", 64.0, "DCGM_FI_DEV_GPU_TEMP", "64"),
        ("gangwatch_gpu_power_watts", 612.345, "DCGM_FI_DEV_POWER_USAGE", "612.345000"),
        ("gangwatch_gpu_energy_joules_total", 123_456_789, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "123456789"),
    ],
)
def test_series_have_the_names_units_and_labels_of_dcgm(ours: str, value: float, theirs: str, printed: str) -> None:
    is_counter = BY_NAME[ours].kind == "counter"
    made = Made(
        {GPU_INFO: 1.0, **({} if is_counter else {of(ours): value})}, {of(ours): int(value)} if is_counter else {}
    )
    body = expose(made.layout, made.frame(), DCGM)
    (line,) = lines(body, f"{theirs}{{")
    assert line.rpartition(" ")[2] == printed
    # The parser of the text format appends _total to every counter.
    ((_, labels),) = (key for key in series_of(body) if key[0].removesuffix("_total") == theirs)
    assert dict(labels) == DCGM_LABELS


def test_one_metric_may_give_several_dcgm_metrics() -> None:
    made = Made(
        {GPU_INFO: 1.0},
        {
            of("gangwatch_gpu_ecc_errors_total", ("severity", "uncorrected")): 3,
            of("gangwatch_gpu_remapped_rows_total", ("cause", "corrected")): 4,
            of("gangwatch_gpu_throttle_seconds_total", ("reason", "power_cap")): 5_000_999,
            of("gangwatch_gpu_throttle_seconds_total", ("reason", "hw_thermal")): 9,
        },
    )
    body = expose(made.layout, made.frame(), DCGM)
    printed = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines(body, "DCGM_FI_")}
    assert printed == {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "3",
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "4",
        "DCGM_FI_DEV_POWER_VIOLATION": "5000",
    }


def test_a_mig_instance_has_the_dcgm_labels_of_an_instance() -> None:
    mig = ("mig", "MIG-1")
    instance = of(
        "gangwatch_gpu_mig_info", mig, ("compute_instance", "0"), ("gpu_instance", "9"), ("profile", "1g.10gb")
    )
    made = Made(
        {
            GPU_INFO: 1.0,
            instance: 1.0,
            of("gangwatch_gpu_mig_memory_used_bytes", mig): 5.0 * 1024 * 1024,
            of("gangwatch_gpu_mig_tensor_active_ratio", mig): 0.25,
            owner(UUID, mig="MIG-1", pod="p", namespace="ml", container="c"): 1.0,
        },
        {},
    )
    body = expose(made.layout, made.frame(), DCGM)
    found = {
        name: (value, dict(labels)) for (name, labels), value in series_of(body).items() if name.startswith("DCGM")
    }
    labels = DCGM_LABELS | {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "9"}
    labels |= {"pod": "p", "namespace": "ml", "container": "c"}
    assert found == {"DCGM_FI_DEV_FB_USED": (5.0, labels), "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.25, labels)}


def test_nvlink_bandwidth_sums_both_directions_in_the_unit_of_dcgm() -> None:
    rates = {of(f"gangwatch_gpu_nvlink_{way}_bytes_per_second"): 1024e6 for way in ("transmit", "receive")}
    made = Made({GPU_INFO: 1.0, **rates}, {})
    (line,) = lines(expose(made.layout, made.frame(), DCGM), "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{")
    assert line.endswith(" 2000")


def test_the_hostname_label_follows_the_dcgm_release() -> None:
    made = Made({GPU_INFO: 1.0, of("gangwatch_gpu_power_watts"): 1.0}, {})
    body = expose(made.layout, made.frame(), Settings(compatibility=("dcgm",), hostname_label="hostname"))
    assert 'hostname="n0"' in lines(body, "DCGM_FI_DEV_POWER_USAGE")[0]
    assert "Hostname" not in body.decode()


def test_dcgm_series_have_a_pod_label_unless_pods_share_the_gpu() -> None:
    gauges = {
        GPU_INFO: 1.0,
        of("gangwatch_gpu_power_watts"): 1.0,
        owner(UUID, pod="p", namespace="ml", container="c"): 1.0,
    }
    made = Made(gauges, {})
    ((_, labels),) = (key for key in series_of(expose(made.layout, made.frame(), DCGM)) if key[0].startswith("DCGM_FI"))
    assert dict(labels) == DCGM_LABELS | {"pod": "p", "namespace": "ml", "container": "c"}
    made = Made({**gauges, owner(UUID, pod="q", namespace="ml", container="c"): 1.0}, {})
    ((_, labels),) = (key for key in series_of(expose(made.layout, made.frame(), DCGM)) if key[0].startswith("DCGM_FI"))
    assert dict(labels) == DCGM_LABELS


def test_a_gpu_without_info_has_no_dcgm_series() -> None:
    made = Made({of("gangwatch_gpu_power_watts"): 1.0}, {})
    assert b"DCGM_" not in expose(made.layout, made.frame(), DCGM)


def test_counters_without_total_have_unknown_type_in_open_metrics() -> None:
    made = Made({GPU_INFO: 1.0}, {of("gangwatch_gpu_energy_joules_total"): 7})
    body = expose(made.layout, made.frame(), DCGM, open_metrics=True)
    assert b"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n" in body
    assert {family.name for family in parse_open_metrics(body.decode())} >= {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"}
    assert b"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in expose(made.layout, made.frame(), DCGM)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("0000:1b:00.0", "00000000:1B:00.0"), ("00000000:1B:00.0", "00000000:1B:00.0"), ("", ""),
     ("10000:e1:00.0", "00010000:E1:00.0")],
)  # fmt: skip
def test_addresses_have_the_format_of_dcgm(ours: str, theirs: str) -> None:
    assert dcgm_address(ours) == theirs


def test_xids_and_clock_events_are_counted_within_the_window() -> None:
    thermal = of("gangwatch_gpu_throttle_state", ("reason", "hw_thermal"))
    xid = of("gangwatch_gpu_xid_total", ("code", "31"))
    newest = {
        of("gangwatch_gpu_xid_newest_timestamp_seconds", ("code", "31")): 1000.0,
        of("gangwatch_gpu_xid_newest_timestamp_seconds", ("code", "79")): 900.0,
    }
    made = Made({GPU_INFO: 1.0, thermal: 0.0, **newest}, {xid: 5})
    kept = Exposition(DCGM)
    second = 1_000_000_000

    def at(seconds: int) -> dict[str, float]:
        found = series_of(kept.body(made.layout, made.frame(seconds * second)))
        return {name: value for (name, _), value in found.items() if name.startswith("DCGM_")}

    assert at(1000) == {
        "DCGM_EXP_XID_ERRORS_COUNT": 0, "DCGM_EXP_CLOCK_EVENTS_COUNT": 0, "DCGM_FI_DEV_XID_ERRORS": 31,
    }  # fmt: skip
    made.counters[xid], made.gauges[thermal] = 7, 1.0
    assert at(1010)["DCGM_EXP_XID_ERRORS_COUNT"] == 2
    assert at(1020)["DCGM_EXP_CLOCK_EVENTS_COUNT"] == 2
    made.gauges[thermal] = 0.0
    made.gauges[of("gangwatch_gpu_xid_newest_timestamp_seconds", ("code", "79"))] = 1020.0
    assert at(1100) == {
        "DCGM_EXP_XID_ERRORS_COUNT": 2, "DCGM_EXP_CLOCK_EVENTS_COUNT": 2, "DCGM_FI_DEV_XID_ERRORS": 79,
    }  # fmt: skip
    later = at(1400)
    assert (later["DCGM_EXP_XID_ERRORS_COUNT"], later["DCGM_EXP_CLOCK_EVENTS_COUNT"]) == (0, 0)
    body = kept.body(made.layout, made.frame(1500 * second))
    ((_, labels),) = (key for key in series_of(body) if key[0] == "DCGM_EXP_XID_ERRORS_COUNT")
    assert dict(labels) == DCGM_LABELS | {"xid": "31", "window_size_in_ms": "300000"}


def test_a_new_xid_counts_fully_and_a_reset_counts_from_zero() -> None:
    memory = Memory()
    assert memory.rise("old", 0, 9) == 0
    assert memory.rise("new", 10, 1) == 1
    assert memory.rise("new", 20, 3) == 3
    assert memory.rise("new", 30, 2) == 2, "the counter restarted"
    assert memory.rise("new", 30 + WINDOW_NS, 2) == 0


def test_throttle_reasons_have_the_names_of_dcgm_clock_events() -> None:
    from agent.collectors.gpu.gpu import THROTTLE_REASONS

    assert set(CLOCK_EVENTS) <= {reason for reason, _ in THROTTLE_REASONS}


# --- node_exporter and rdma_exporter ---------------------------------------------------------------------------------


def test_node_exporter_names_have_only_its_labels() -> None:
    device, port = ("device", "mlx5_0"), ("port", "1")
    named = dict.fromkeys(BY_NAME["gangwatch_rdma_device_info"].labels, "x") | {"device": "mlx5_0", "board_id": "B"}
    made = Made(
        {
            Column("gangwatch_rdma_device_info", tuple(sorted(named.items()))): 1.0,
            Column("gangwatch_rdma_port_state", (device, port)): 4.0,
            Column("gangwatch_host_load1"): 0.5,
        },
        {
            Column("gangwatch_rdma_port_receive_bytes_total", (device, port)): 100,
            Column("gangwatch_host_pressure_waiting_seconds_total", (("resource", "memory"),)): 1_500_000_000,
            Column("gangwatch_host_pressure_waiting_seconds_total", (("resource", "cpu"),)): 2_000_000_000,
        },
    )
    body = expose(made.layout, made.frame(), Settings(compatibility=("node_exporter",)))
    theirs = {key: value for key, value in series_of(body).items() if key[0].startswith("node_")}
    assert theirs == {
        ("node_infiniband_info", (("board_id", "B"), device, ("firmware_version", "x"), ("hca_type", "x"))): 1.0,
        ("node_infiniband_state_id", (device, port)): 4.0,
        ("node_infiniband_port_data_received_bytes_total", (device, port)): 400.0,
        ("node_load1", ()): 0.5,
        ("node_pressure_memory_waiting_seconds_total", ()): 1.5,
        ("node_pressure_cpu_waiting_seconds_total", ()): 2.0,
    }  # fmt: skip


def test_pause_series_equal_those_of_rdma_exporter() -> None:
    port = (("device", "mlx5_0"), ("port", "1"))
    counters = {
        Column(
            f"gangwatch_rdma_pause_{what}_total", tuple(sorted((*port, ("direction", way), ("priority", level))))
        ): 30
        for what in ("frames", "seconds")
        for way in ("receive", "transmit")
        for level in ("3", "global")
    }
    netdev = Column(
        "gangwatch_rdma_port_info",
        (("device", "mlx5_0"), ("link_layer", "Ethernet"), ("netdev", "eth0"), ("port", "1")),
    )
    made = Made({netdev: 1.0}, counters)
    body = expose(made.layout, made.frame(), Settings(compatibility=("rdma_exporter",)))
    theirs = {key: value for key, value in series_of(body).items() if key[0].startswith("rdma_roce_")}
    assert theirs == {
        (f"rdma_roce_pfc_pause_{what}_total",
         (("device", "mlx5_0"), ("direction", way), ("netdev", "eth0"), ("port", "1"), ("priority", "3"))): 30.0
        for what in ("frames", "duration")
        for way in ("rx", "tx")
    }  # fmt: skip


def test_every_compatibility_name_of_the_catalogue_is_published() -> None:
    for metric in METRICS:
        if metric.compatibility:
            assert metric.compatibility.startswith(("DCGM_FI_", "node_", "rdma_roce_pfc_")), metric.name
            if "*" in metric.compatibility:
                assert len(metric.labels) == 1, metric.name
    names = [metric.compatibility for metric in METRICS if metric.compatibility]
    assert len(names) == len(set(names)), "two metrics must not share one compatibility name"
    assert set(COMPATIBILITY) == {"dcgm", "node_exporter", "rdma_exporter"}


def test_compatibility_names_are_printed_only_if_enabled() -> None:
    made = Made({GPU_INFO: 1.0, of("gangwatch_gpu_power_watts"): math.pi}, {})
    assert all(name.startswith("gangwatch_") for name, _ in series_of(expose(made.layout, made.frame())))
