"""Cases for `promtool test rules`: input series, and the expected alerts or recorded values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.dashboards.accelerated import seconds_of


@dataclass(frozen=True, slots=True)
class Case:
    """Case of one rule. series: name with labels -> values in promtool's notation, one per 15 s.

    alert: fires at `at` and not at `not_at`, with these labels; '' for no check. expected: name and matchers -> sum of
    values at 10m.
    """

    series: dict[str, str]
    alert: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    not_at: str = ""
    at: str = "40m"
    expected: dict[str, float] = field(default_factory=dict)

    @property
    def recorded(self) -> list[str]:
        return [name.partition("{")[0] for name in self.expected]

    def document(self) -> dict[str, Any]:
        tests = [
            {"expr": f"sum({name})", "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": value}]}
            for name, value in self.expected.items()
        ]
        if self.alert:
            matchers = {"alertname": self.alert, "alertstate": "firing", **self.labels}
            selector = ", ".join(f'{name}="{value}"' for name, value in matchers.items())
            expression = f"count(ALERTS{{{selector}}})"
            if self.not_at:
                assert not self.at or seconds_of(self.not_at) < seconds_of(self.at)
                tests.append({"expr": expression, "eval_time": self.not_at, "exp_samples": []})
            if self.at:
                tests.append({"expr": expression, "eval_time": self.at, "exp_samples": [{"labels": "{}", "value": 1}]})
        return {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in self.series.items()],
            "promql_expr_test": tests,
        }


def _verdict(kind: str, cause: str, **more: str) -> dict[str, str]:
    """Return the three series of a verdict, which is active from the first minute on."""
    info = {"name": "train", "node": "n1", "device": "GPU-1", "aggressor": "", "resource": ""} | more
    key = 'cluster="c", gang="j-1", verdict="v"'
    labels = ", ".join(f'{name}="{value}"' for name, value in info.items())
    return {
        f'gangwatch_verdict_active{{{key}, kind="{kind}", cause="{cause}", rank="3"}}': "_x4 0.95x200",
        f"gangwatch_verdict_info{{{key}, {labels}}}": "_x4 1x200",
        f"gangwatch_verdict_lost_slots{{{key}}}": "_x4 4.5x200",
    }


_SAID = {"cluster": "c", "gang": "j-1", "name": "train", "node": "n1", "device": "GPU-1", "rank": "3"}
_G = 'cluster="c", node="n1", gpu="GPU-1"'
_P = 'cluster="c", node="n1", device="mlx5_0", port="1"'
_NODE = {"cluster": "c", "node": "n1"}


def _ups(down: int, of: int) -> dict[str, str]:
    return {
        f'up{{job="gangwatch-agent", cluster="c", node="n{number}"}}': "1x20 0x200" if number < down else "1x220"
        for number in range(of)
    }


def _ports(device: str, down: int, of: int, values: str) -> dict[str, str]:
    """Return the states of one port on `of` nodes: `values` on the first `down` nodes, active on all others."""
    return {
        f'gangwatch_rdma_port_state{{cluster="c", node="n{number}", device="{device}", port="1"}}': (
            values if number < down else "4x400"
        )
        for number in range(of)
    }


_LINK = 'device="mlx5_0", port="1"'


def _links(
    slow: dict[str, float], device: str = "mlx5_0", board: str = "compute", usual: float = 50e9
) -> dict[str, str]:
    """Return the series of one port on three nodes. slow: rate of each node whose link differs from `usual`, in
    bytes per second."""
    found: dict[str, str] = {}
    for node in ("n0", "n1", "n2"):
        of = f'cluster="c", node="{node}", device="{device}"'
        found[f'gangwatch_rdma_port_rate_bytes_per_second{{{of}, port="1"}}'] = f"{slow.get(node, usual):.0f}x200"
        found[f'gangwatch_rdma_port_state{{{of}, port="1"}}'] = "4x200"
        found[f'gangwatch_rdma_device_info{{{of}, board_id="{board}"}}'] = "1x200"
    return found


_ALERTS = (
    Case(_verdict("straggler", "thermal"), "GangwatchStraggler", _SAID | {"cause": "thermal"}, "1m", "3m"),
    Case(
        _verdict("interference", "host-contention", aggressor="j-2", resource="host:n1"),
        "GangwatchInterference",
        _SAID | {"aggressor": "j-2", "resource": "host:n1"},
        "1m",
        "3m",
    ),
    Case(
        _verdict("interference", "congestion", aggressor="j-2", resource="uplink:leaf-0"),
        "GangwatchCongestion",
        _SAID | {"aggressor": "j-2", "resource": "uplink:leaf-0"},
        "1m",
        "3m",
    ),
    Case(_verdict("hang", "never-arrived"), "GangwatchHang", _SAID, "1m", "3m"),
    Case(_verdict("health", "nic"), "GangwatchDeviceAccused", _SAID, "1m", "3m"),
    Case(
        {
            'gangwatch_rank_steps_total{cluster="c", gang="j-1", rank="0", attempt="1"}': "0+10x20 200x200",
            'gangwatch_gang_info{cluster="c", gang="j-1", name="train", queue="q", state="running"}': "1x220",
        },
        "GangwatchGangStalled",
        {"gang": "j-1", "name": "train", "queue": "q"},
        "15m",
        "20m",
    ),
    Case(
        {
            'gangwatch_gang_preemptions_total{cluster="c", gang="j-1"}': "0x20 1x200",
            'gangwatch_gang_info{cluster="c", gang="j-1", name="train", queue="q", state="pending"}': "1x220",
        },
        "GangwatchPreempted",
        {"gang": "j-1", "name": "train"},
        "5m",
        "6m",
    ),
    Case({'gangwatch_gangs_waiting{cluster="c", reason="capacity"}': "2x220"}, "GangwatchGangCannotStart", {}, "14m"),
    Case(
        {'gangwatch_node_state{cluster="c", node="n1", state="quarantine"}': "_x20 1x200"},
        "GangwatchNodeQuarantined",
        _NODE,
        "5m",
        "7m",
    ),
    Case({'gangwatch_frozen{cluster="c"}': "1x220"}, "GangwatchFrozen", {"cluster": "c"}, "14m", "16m"),
    Case(
        {'up{job="gangwatch-controller", cluster="c", instance="h:1"}': "1x20 0x200"},
        "GangwatchControllerDown",
        {"cluster": "c"},
        "6m",
        "8m",
    ),
    Case({'up{job="node", cluster="c"}': "1x220"}, "GangwatchControllerAbsent", {}, "4m", "6m"),
    Case(
        {
            'gangwatch_leads{cluster="c", instance="h:1"}': "1x20 0x200",
            'gangwatch_leads{cluster="c", instance="h:2"}': "0x220",
        },
        "GangwatchNobodyLeads",
        {"cluster": "c"},
        "6m",
        "8m",
    ),
    Case(
        {'gangwatch_missing_rights{cluster="c", instance="h:1"}': "0x20 1x200"},
        "GangwatchRightsMissing",
        {"cluster": "c", "instance": "h:1"},
        "9m",
        "11m",
    ),
    Case({'gangwatch_cycles_total{cluster="c"}': "0+15x20 300x200"}, "GangwatchCyclesStopped", {}, "8m", "10m"),
    Case({'gangwatch_store_failures_total{cluster="c"}': "0x20 1x200"}, "GangwatchJournalFailing", {}, "5m", "6m"),
    Case({'gangwatch_backend_failures_total{cluster="c"}': "0x20 1+1x200"}, "GangwatchBackendFailing", {}, "9m", "12m"),
    Case({'gangwatch_watch_frame_age_seconds{cluster="c"}': "0.5x20 12x200"}, "GangwatchDetectionLate", {}, "6m", "8m"),
    Case(
        {'gangwatch_detector_failures_total{cluster="c", detector="hang"}': "0x20 1x200"},
        "GangwatchDetectorBroken",
        {"detector": "hang"},
        "5m",
        "6m",
    ),
    Case(
        {
            'gangwatch_part_failures_total{cluster="c", part="feed"}': "0x20 1x200",
            'gangwatch_part_out_of_service{cluster="c", part="feed"}': "0x20 1x200",
        },
        "GangwatchPartBroken",
        {"part": "feed"},
        "5m",
        "6m",
    ),
    Case(_ups(1, 20), "GangwatchAgentDown", {"node": "n0"}, "6m", "8m"),
    Case(_ups(3, 20), "GangwatchAgentsLost", {"cluster": "c"}, "5m", "7m"),
    Case(
        {
            'gangwatch_cycles_total{cluster="c"}': "0+15x220",
            'gangwatch_agent_info{cluster="c", node="n1"}': "1x20 stale",
        },
        "GangwatchTelemetryAbsent",
        {"cluster": "c"},
        "9m",
        "15m",
    ),
    Case({'gangwatch_feed_connected{cluster="c", node="n1"}': "1x20 0x200"}, "GangwatchFeedLost", _NODE, "6m", "8m"),
    Case(
        {
            'gangwatch_watch_records_refused_total{cluster="c", node="n1", reason="not-placed"}': "0x20 0+1x200",
            'gangwatch_watch_records_refused_total{cluster="c", node="n2", reason="ended"}': "0x20 0+1x200",
        },
        "GangwatchForeignRanks",
        _NODE,
        "9m",
        "11m",
    ),
    Case(
        # 14 days after the start of promtool's time, minus half an hour.
        {
            'gangwatch_feed_certificate_expiry_seconds{cluster="c", node="n1"}': "1211400x1000",
            'gangwatch_feed_certificate_expiry_seconds{cluster="c", node="n2"}': "9999999x1000",
            'gangwatch_certificate_expiry_seconds{cluster="c", node="n2", use="server"}': "9999999x1000",
        },
        "GangwatchCertificateEnds",
        _NODE | {"use": "agent"},
        "59m",
        "95m",
    ),
    Case(
        {'gangwatch_collector_success{cluster="c", node="n1", collector="rdma"}': "1x20 0x200"},
        "GangwatchCollectorFailing",
        _NODE | {"collector": "rdma"},
        "14m",
        "16m",
    ),
    Case(
        {'gangwatch_exporter_series_left_out{cluster="c", node="n1", reason="limit"}': "0x20 7x200"},
        "GangwatchSeriesLimit",
        _NODE,
        "14m",
        "16m",
    ),
    Case({f"gangwatch_gpu_up{{{_G}}}": "1x20 0x200"}, "GangwatchGpuLost", _NODE | {"gpu": "GPU-1"}, "5m", "6m"),
    Case(
        # The first XID of a code starts its series; the rule must still detect it.
        {
            f'gangwatch_gpu_xid_total{{{_G}, code="79"}}': "_x20 1x200",
            f"gangwatch_gpu_xid_events_total{{{_G}}}": "0x20 1x200",
        },
        "GangwatchGpuXid",
        _NODE | {"gpu": "GPU-1", "code": "79"},
        "5m",
        "6m",
    ),
    Case(
        {f'gangwatch_gpu_ecc_errors_total{{{_G}, severity="uncorrected"}}': "0x20 1x200"},
        "GangwatchGpuMemoryErrors",
        _NODE | {"gpu": "GPU-1"},
        "5m",
        "6m",
    ),
    Case({f"gangwatch_gpu_row_remap_pending{{{_G}}}": "0x20 1x200"}, "GangwatchGpuRowRemap", _NODE, "9m", "12m"),
    Case(
        {
            f'gangwatch_gpu_throttle_state{{{_G}, reason="hw_thermal"}}': "0x20 1x200",
            f'gangwatch_gpu_owner_info{{{_G}, gang="j-1", rank="3"}}': "1x220",
        },
        "GangwatchGpuThrottled",
        _NODE | {"gpu": "GPU-1", "gang": "j-1", "rank": "3", "reason": "hw_thermal"},
        "9m",
        "12m",
    ),
    # Up for ten minutes, then down for good: the alert does not end when the port was last up an hour ago.
    Case({f"gangwatch_rdma_port_state{{{_P}}}": "4x40 1x400"}, "GangwatchNicDown", _NODE, "10m", "13m"),
    Case({f"gangwatch_rdma_port_state{{{_P}}}": "4x40 1x400"}, "GangwatchNicDown", _NODE, "", "40m"),
    Case({f"gangwatch_rdma_port_state{{{_P}}}": "4x40 1x400"}, "GangwatchNicDown", _NODE, "", "90m"),
    Case({f"gangwatch_rdma_port_state{{{_P}}}": "4x40 1x200 4x200"}, "GangwatchNicDown", _NODE, "65m", ""),
    # Down since the node's boot, alone and where other nodes use the same port.
    Case({f"gangwatch_rdma_port_state{{{_P}}}": "1x400"}, "GangwatchNicDown", _NODE, "", "3m"),
    Case(_ports("mlx5_0", down=1, of=3, values="1x400"), "GangwatchNicDown", {"node": "n0"}, "", "90m"),
    # Unused on every node; then on all nodes down at once, which is a switch.
    Case(_ports("mlx5_9", down=4, of=4, values="1x400"), "GangwatchNicDown", {"node": "n0"}, "90m", ""),
    Case(_ports("mlx5_0", down=4, of=4, values="4x40 1x400"), "GangwatchNicDown", {"node": "n0"}, "10m", "90m"),
    Case(
        {f"gangwatch_rdma_port_link_downed_total{{{_P}}}": "0x20 1 1 1 2 2 3x200"},
        "GangwatchNicFlapping",
        _NODE | {"device": "mlx5_0"},
        "5m",
        "8m",
    ),
    # One of three nodes has a slow link. The slower storage board of every node is normal.
    Case(
        _links({"n0": 25e9}) | _links({}, "mlx5_8", "storage", usual=25e9),
        "GangwatchNicSlowLink",
        {"cluster": "c", "node": "n0", "device": "mlx5_0", "port": "1"},
        "9m",
        "15m",
    ),
    Case(_links({"n0": 25e9}) | _links({}, "mlx5_8", "storage", usual=25e9), "GangwatchNicSlowLink", {}, "", "20m"),
    # An inactive port reports a low rate, but has no link.
    Case(
        _links({"n0": 5e9}) | {f'gangwatch_rdma_port_state{{cluster="c", node="n0", {_LINK}}}': "1x200"},
        "GangwatchNicSlowLink",
        {},
        "40m",
        "",
    ),
    Case(
        {f'gangwatch_rdma_pause_seconds_total{{{_P}, direction="receive", priority="3"}}': "0x20 0+6x200"},
        "GangwatchPauseStorm",
        _NODE | {"device": "mlx5_0", "priority": "3"},
        "9m",
        "18m",
    ),
)

_RANKS = {
    # Two ranks end steps of 2 s together; rank 1 waits for half of each step, rank 0 hardly waits.
    f'gangwatch_rank_{name}{{cluster="c", gang="j-1", rank="{rank}", attempt="1"}}': values
    for rank, waits in ((0, "0+1.5x80"), (1, "0+7.5x80"))
    for name, values in (
        ("steps_total", "0+7.5x80"),
        ("step_seconds_total", "0+15x80"),
        ("wait_seconds_total", waits),
        ("tokens_total", "0+750x80"),
    )
}
_OWNER = 'gangwatch_gpu_owner_info{cluster="c", node="n1", gpu="GPU-%d", gang="j-1", rank="%d"}'
_MACHINE = {
    _OWNER % (0, 0): "1x80",
    _OWNER % (1, 1): "1x80",
    **{
        f"gangwatch_{name}": values
        for gpu in (0, 1)
        for name, values in (
            (f'gpu_info{{cluster="c", node="n1", gpu="GPU-{gpu}", pci_address="0000:0{gpu}:00.0"}}', "1x80"),
            (
                f'topology_rail_info{{cluster="c", node="n1", nic="mlx5_{gpu}", pci_address="0000:0{gpu}:00.0", '
                f'rail="{gpu}"}}',
                "1x80",
            ),
            (f'gpu_tensor_active_ratio{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', f"0.{4 + 2 * gpu}x80"),
            (f'gpu_utilization_ratio{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', "0.9x80"),
            (f'gpu_power_watts{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', "500x80"),
            (f'gpu_temperature_celsius{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', f"{60 + gpu}x80"),
            (f'gpu_sm_clock_hertz{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', f"{1 + gpu}e9x80"),
            (f'gpu_memory_used_bytes{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', f"{3 + gpu}e9x80"),
            (f'gpu_up{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', "1x80"),
            (f'gpu_row_remap_pending{{cluster="c", node="n1", gpu="GPU-{gpu}"}}', f"{gpu}x80"),
            (f'nvlink_transmit_bytes_total{{cluster="c", node="n1", gpu="GPU-{gpu}", link="0"}}', "0+1500x80"),
            (f'rdma_port_transmit_bytes_total{{cluster="c", node="n1", device="mlx5_{gpu}", port="1"}}', "0+3000x80"),
            (f'rdma_cnp_handled_total{{cluster="c", node="n1", device="mlx5_{gpu}", port="1"}}', f"0+{150 * gpu}x80"),
            (
                f'rdma_pause_frames_total{{cluster="c", node="n1", device="mlx5_{gpu}", port="1", direction="receive", '
                'priority="3"}',
                "0+15x80",
            ),
        )
    },
    'gangwatch_node_place_info{cluster="c", node="n1", rack="r1"}': "1x80",
}
_JOB = '{cluster="c", gang="j-1"}'

_RECORDINGS = (
    Case(
        _RANKS,
        expected={
            f"gang:gangwatch_rank_steps:rate2m{_JOB}": 0.5,
            f"gang:gangwatch_rank_step_seconds:mean2m{_JOB}": 2.0,
            'rank:gangwatch_rank_step_seconds:mean2m{gang="j-1", rank="1"}': 2.0,
            'rank:gangwatch_rank_own_seconds:mean2m{gang="j-1", rank="0"}': 1.8,
            'rank:gangwatch_rank_own_seconds:mean2m{gang="j-1", rank="1"}': 1.0,
            f"gang:gangwatch_rank_wait:ratio2m{_JOB}": 0.3,
            f"gang:gangwatch_rank_tokens:rate2m{_JOB}": 100.0,
            # The longest time is 1.8 s, divided by the median of 1.8 and 1.0.
            'rank:gangwatch_rank_slowdown:ratio{gang="j-1", rank="0"}': 1.8 / 1.4,
        },
    ),
    Case(
        _MACHINE,
        expected={
            'gpu:gangwatch_gpu_owner:topk1{gang="j-1"}': 2.0,
            'nic:gangwatch_topology_rail:info{device="mlx5_1", rail="1"}': 1.0,
            'nic:gangwatch_gpu_owner:topk1{device="mlx5_1", gang="j-1", rank="1"}': 1.0,
            f"gang:gangwatch_gpu_tensor_active_ratio:mean{_JOB}": 0.5,
            f"gang:gangwatch_gpu_utilization_ratio:mean{_JOB}": 0.9,
            f"gang:gangwatch_gpu_power_watts:sum{_JOB}": 1000.0,
            'gpu:gangwatch_nvlink_transmit_bytes:rate2m{gpu="GPU-0"}': 100.0,
            'rank:gangwatch_gpu_sm_clock_hertz:max{rank="1"}': 2e9,
            'rank:gangwatch_gpu_power_watts:max{rank="1"}': 500.0,
            'rank:gangwatch_gpu_temperature_celsius:max{rank="1"}': 61.0,
            'rank:gangwatch_gpu_memory_used_bytes:max{rank="1"}': 4e9,
            'rank:gangwatch_nvlink_transmit_bytes:rate2m{rank="1"}': 100.0,
            'rank:gangwatch_rdma_port_transmit_bytes:rate2m{rank="1"}': 200.0,
            'rank:gangwatch_rdma_cnp_handled:rate2m{rank="1"}': 10.0,
            'gpu:gangwatch_gpu_health:worst{gpu="GPU-1"}': 2.0,
            'node:gangwatch_gpu_health:worst{node="n1"}': 2.0,
            'node:gangwatch_gpu_temperature_celsius:max{node="n1"}': 61.0,
            'rail:gangwatch_rdma_port_transmit_bytes:rate2m{rail="0"}': 200.0,
            'rail:gangwatch_rdma_cnp_handled:rate2m{rail="1"}': 10.0,
            'rail:gangwatch_rdma_pause_frames:rate2m{rail="1", direction="receive"}': 1.0,
            'rack:gangwatch_rdma_cnp_handled:rate2m{rack="r1"}': 10.0,
            'rack:gangwatch_rdma_port_transmit_bytes:rate2m{rack="r1"}': 400.0,
            'rack:gangwatch_gpu_owner:count{rack="r1", gang="j-1"}': 2.0,
        },
    ),
    Case(
        # Peers on one node: four ports of one board, of which one is slow; a board with two ports has no peers.
        {
            f'gangwatch_rdma_{name}{{cluster="c", node="n1", device="mlx5_{number}", {more}}}': f"{value:.0f}x80"
            for number, rate in enumerate((50e9, 25e9, 50e9, 50e9, 25e9, 25e9))
            for name, more, value in (
                ("port_rate_bytes_per_second", 'port="1"', rate),
                ("port_state", 'port="1"', 4),
                ("device_info", f'board_id="{"A" if number < 4 else "B"}"', 1),
            )
        },
        expected={
            'port:gangwatch_rdma_port_rate_bytes_per_second:active{device="mlx5_1"}': 25e9,
            'port:gangwatch_rdma_port_rate_bytes_per_second:peers{device="mlx5_1"}': 50e9,
            "port:gangwatch_rdma_port_rate_bytes_per_second:peers": 200e9,
            'nic:gangwatch_topology_rail:info{device="mlx5_1", rail="none"}': 1.0,
        },
    ),
    Case(
        {'gangwatch_gang_info{cluster="c", gang="j-1", name="train", queue="q", state="running"}': "1x80"},
        expected={'gang:gangwatch_gang_info:name{name="train", queue="q"}': 1.0},
    ),
    Case(
        _verdict("straggler", "thermal"),
        expected={'verdict:gangwatch_verdict_lost_slots:join{kind="straggler", node="n1", rank="3"}': 4.5},
    ),
)

CASES: tuple[Case, ...] = (*_ALERTS, *_RECORDINGS)
