"""Metrics under names of other exporters: values and labels equal those that the other exporter prints."""

from __future__ import annotations

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics

from agent.schema.catalog import BY_NAME, METRICS
from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from exporter.prometheus import dcgm_fields
from exporter.prometheus.compatibility import COMPATIBILITY, dcgm_address
from exporter.prometheus.dcgm_fields import CLOCK_EVENTS
from exporter.prometheus.derived_values import WINDOW_NS, Memory
from exporter.prometheus.exposition import Exposition, Settings, expose
from tests.exporter.dashboards import DCGM_EXPORTERS_LISTS
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
    """Layout with these gauges and counters, and frames of it."""

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
        ("gangwatch_gpu_memory_total_bytes", 81559.0 * 1024 * 1024, "DCGM_FI_DEV_FB_TOTAL", "81559"),
        ("gangwatch_gpu_row_remap_pending", 1.0, "DCGM_FI_DEV_ROW_REMAP_PENDING", "1"),
        ("gangwatch_gpu_retired_pages_pending", 0.0, "DCGM_FI_DEV_RETIRED_PENDING", "0"),
        ("gangwatch_gpu_pcie_transmit_bytes_per_second", 2.5e9, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "2500000"),
        ("gangwatch_gpu_pcie_receive_bytes_per_second", 2.5e9, "DCGM_FI_PROF_PCIE_RX_BYTES", "2500000000"),
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
        "DCGM_FI_DEV_POWER_VIOLATION": "5000999",
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
    without = expose(made.layout, made.frame(), Settings(compatibility=("dcgm",), pod_labels=False))
    ((_, labels),) = (key for key in series_of(without) if key[0].startswith("DCGM_FI"))
    assert dict(labels) == DCGM_LABELS
    made = Made({**gauges, owner(UUID, pod="q", namespace="ml", container="c"): 1.0}, {})
    ((_, labels),) = (key for key in series_of(expose(made.layout, made.frame(), DCGM)) if key[0].startswith("DCGM_FI"))
    assert dict(labels) == DCGM_LABELS


def pod_label(pod: str, label: str, value: str) -> Column:
    named = (("label", label), ("namespace", "ml"), ("pod", pod), ("value", value))
    return Column("gangwatch_pod_label_info", named)


def test_series_have_the_labels_of_the_pod_that_uses_the_gpu() -> None:
    team = pod_label("p", "example.com/team", "vision")
    gauges = {
        GPU_INFO: 1.0,
        of("gangwatch_gpu_power_watts"): 1.0,
        owner(UUID, pod="p", namespace="ml", container="c"): 1.0,
        team: 1.0,
        pod_label("q", "example.com/team", "speech"): 1.0,
    }
    made = Made(gauges, {})
    shown = Exposition(Settings(compatibility=("dcgm",), owner_labels=True))

    def labels(name: str) -> dict[str, str]:
        (found,) = (dict(key[1]) for key in series_of(shown.body(made.layout, made.frame())) if key[0] == name)
        return found

    pod = {"pod": "p", "namespace": "ml", "container": "c"}
    assert labels("DCGM_FI_DEV_POWER_USAGE") == DCGM_LABELS | pod | {"label_example_com_team": "vision"}
    assert labels("gangwatch_gpu_power_watts")["label_example_com_team"] == "vision"
    made.gauges[team] = math.nan  # the labels of the pod are no longer known
    assert labels("DCGM_FI_DEV_POWER_USAGE") == DCGM_LABELS | pod


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
        own = {name: value for (name, _), value in found.items() if name.startswith("DCGM_")}
        return {name: value for name, value in own.items() if name not in dcgm_fields.MASKS}

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

    assert set(CLOCK_EVENTS.items()) <= set(THROTTLE_REASONS)


def test_the_mask_of_clock_events_has_the_bits_of_the_active_reasons() -> None:
    """Bits as in dcgm_fields.h: 0x4 is the software power cap, 0x40 the hardware's thermal slowdown."""
    state = "gangwatch_gpu_throttle_state"
    states = {of(state, ("reason", reason)): float(reason in ("power_cap", "hw_thermal")) for reason in CLOCK_EVENTS}
    made = Made({GPU_INFO: 1.0, **states}, {})
    printed = [line.rpartition(" ")[2] for line in lines(expose(made.layout, made.frame(), DCGM), "DCGM_FI_DEV_CLOCK")]
    assert printed == ["68", "68"]
    made.gauges.update(dict.fromkeys(states, math.nan))
    assert not lines(expose(made.layout, made.frame(), DCGM), "DCGM_FI_DEV_CLOCK")
    made.gauges.update(dict.fromkeys(states, 0.0))
    assert [
        line.rpartition(" ")[2] for line in lines(expose(made.layout, made.frame(), DCGM), "DCGM_FI_DEV_CLOCKS")
    ] == ["0"]


@pytest.mark.parametrize("crc", [("crc_flit", "crc"), ("crc",)])
def test_nvlink_errors_and_power_limits_have_the_names_of_dcgm(crc: tuple[str, ...]) -> None:
    """Ampere counts CRC errors of flits and of data separately; Hopper has one count."""
    errors, limit = "gangwatch_gpu_nvlink_errors_total", "gangwatch_gpu_power_limit_watts"
    kinds = {"replay": 1, "recovery": 2, "crc_data": 3} | dict.fromkeys(crc, 4)
    made = Made(
        {GPU_INFO: 1.0, of(limit, ("limit", "requested")): 650.0, of(limit, ("limit", "current")): 700.0},
        {of(errors, ("kind", kind)): count for kind, count in kinds.items()},
    )
    printed = [line.partition("{")[::2] for line in lines(expose(made.layout, made.frame(), DCGM), "DCGM_FI_")]
    assert sorted((name, float(rest.rpartition(" ")[2])) for name, rest in printed) == [
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 700.0),
        ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 3.0),
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 4.0),
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 2.0),
        ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1.0),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 650.0),
    ]


def test_every_field_of_dcgm_exporters_lists_is_published_or_left_out_with_a_reason() -> None:
    names = {name for name, _ in dcgm_fields.published()}
    assert not names & set(dcgm_fields.LEFT_OUT)
    assert names | set(dcgm_fields.LEFT_OUT) >= set(DCGM_EXPORTERS_LISTS)


def test_published_fields_are_those_that_the_exporter_prints() -> None:
    """Expose all GPU metrics, with each label value that DCGM distinguishes."""
    gauges: dict[Column, float] = {GPU_INFO: 1.0}
    counters: dict[Column, int] = {}
    for metric in METRICS:
        if metric.name.startswith("gangwatch_gpu_") and metric.labels and metric.kind != "info":
            label, named = dcgm_fields.SPLIT.get(metric.name, ("reason", {"gpu_idle": ""}))
            for value in named:
                own = (
                    dict.fromkeys(metric.labels, "1")
                    | {"gpu": UUID}
                    | ({label: value} if label in metric.labels else {})
                )
                column = Column(metric.name, tuple(sorted(own.items())))
                if metric.kind == "counter":
                    counters[column] = 1
                else:
                    gauges[column] = 1.0
    made = Made(gauges, counters)
    body = expose(made.layout, made.frame(), DCGM)
    assert {line.partition("{")[0] for line in lines(body, "DCGM_")} == {name for name, _ in dcgm_fields.published()}


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
