"""Dashboard of one node: health of its GPUs, their counters, and the host."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.expressions import CLUSTER, busiest, rose, worst
from dashboards.panels import (
    A_SECOND,
    BYTES,
    BYTES_A_SECOND,
    CELSIUS,
    COUNT,
    HEALTH,
    HERTZ,
    ONE_IS_GOOD,
    RATIO,
    WATTS,
    ZERO_IS_GOOD,
    Query,
    number,
    rows,
    series,
    timeline,
)

dashboard = Board(
    "gangwatch-node-and-gpu",
    "Node and GPU",
    "One node: health of its GPUs, throttling, memory errors, XIDs, PCIe, NVLink and the host.",
)
dashboard.variable("node", "Node", f"label_values(gangwatch_agent_info{{{CLUSTER}}}, node)")
dashboard.annotation(
    "XIDs",
    rose(f'gangwatch_gpu_xid_total{{{CLUSTER}, node=~"$node"}}', "$__rate_interval"),
    "red",
    "XID {{code}}",
    "{{gpu}}",
)
dashboard.annotation(
    "Quarantine",
    f'gangwatch_node_state{{{CLUSTER}, node=~"$node", state="quarantine"}} == 1',
    "orange",
    "quarantine",
    "{{node}}",
)

_NODE = f'{CLUSTER}, node=~"$node"'


def _gpus(metric: str, matchers: str = "") -> Query:
    return Query(f"max by (gpu) ({metric}{{{_NODE}{matchers}}})", "{{gpu}}")


def _errors(metric: str, legend: str) -> Query:
    return Query(busiest(16, f"{metric}{{{_NODE}}}"), legend)


dashboard.row(
    "Now",
    number(
        "State",
        "State of the node in the scheduler.",
        COUNT,
        Query(f"gangwatch_node_state{{{_NODE}}} == 1", "{{state}}"),
        text=True,
    ).no_value("not in the scheduler"),
    number(
        "GPUs",
        "GPUs that respond to the driver.",
        COUNT,
        Query(f"sum by (cluster, node) (gangwatch_gpu_up{{{_NODE}}})"),
    ),
    number(
        "Agent",
        "1 if Prometheus can scrape it.",
        COUNT,
        Query(f'max by (cluster, node) (up{{{_NODE}, job="gangwatch-agent"}})'),
        thresholds=ONE_IS_GOOD,
    ),
    number(
        "XIDs in this time range",
        "XIDs with any code.",
        COUNT,
        Query(f"sum by (cluster, node) (increase(gangwatch_gpu_xid_events_total{{{_NODE}}}[$__range]))", instant=True),
        thresholds=ZERO_IS_GOOD,
    ).decimals(0),
    number(
        "Memory available",
        "Share of host memory that is available without swapping.",
        RATIO,
        Query(f"gangwatch_host_memory_available_bytes{{{_NODE}}} / gangwatch_host_memory_total_bytes{{{_NODE}}}"),
        thresholds=((None, "red"), (0.1, "yellow"), (0.2, "green")),
    ),
    number(
        "Load per processor",
        "Load average over one minute, divided by the number of online processors.",
        COUNT,
        Query(f"gangwatch_host_load1{{{_NODE}}} / gangwatch_host_cpus{{{_NODE}}}"),
        thresholds=((None, "green"), (1, "yellow"), (2, "red")),
    ).decimals(2),
)
dashboard.row(
    "GPUs",
    timeline(
        "Health",
        "Worst condition of each GPU. Green: healthy. Yellow: throttled. Orange: needs inspection. Red: lost.",
        Query(f"gpu:gangwatch_gpu_health:worst{{{_NODE}}}", "{{gpu}}"),
        HEALTH,
        width=12,
    ),
    rows(
        "Users of the GPUs",
        "Job and rank on each GPU.",
        COUNT,
        Query(
            f"gpu:gangwatch_gpu_owner:topk1{{{_NODE}}}"
            f" * on (cluster, gang) group_left (name, queue) gang:gangwatch_gang_info:name{{{CLUSTER}}}",
            instant=True,
            table=True,
        ),
        hidden=("cluster", "node", "Value"),
    ),
    series(
        "Tensor active",
        "Share of time with an active tensor pipe (GPM).",
        RATIO,
        _gpus("gangwatch_gpu_tensor_active_ratio"),
    ).max(1),
    series(
        "SM active",
        "Share of busy multiprocessors (GPM).",
        RATIO,
        _gpus("gangwatch_gpu_sm_active_ratio"),
    ).max(1),
    series(
        "Utilisation",
        "Share of time with any running kernel. It is also high while a job hangs in a collective.",
        RATIO,
        _gpus("gangwatch_gpu_utilization_ratio"),
    ).max(1),
    series("Device memory in use", "Memory allocated by programs.", BYTES, _gpus("gangwatch_gpu_memory_used_bytes")),
    series("Power", "Average of the driver.", WATTS, _gpus("gangwatch_gpu_power_watts")),
    series(
        "Temperature",
        "Temperature of the die.",
        CELSIUS,
        _gpus("gangwatch_gpu_temperature_celsius"),
        thresholds=((None, "green"), (85, "red")),
    ),
    series("SM clock", "Clock of the multiprocessors.", HERTZ, _gpus("gangwatch_gpu_sm_clock_hertz")),
    timeline(
        "Throttling",
        "By reason, without idle GPUs and clocks set by an administrator.",
        Query(
            worst(
                20, f'gangwatch_gpu_throttle_state{{{_NODE}, reason!~"gpu_idle|clocks_setting|display_clocks"}} == 1'
            ),
            "{{gpu}} {{reason}}",
        ),
        ((None, "yellow"),),
        width=12,
    ),
)
dashboard.row(
    "Errors",
    series(
        "ECC",
        "Memory errors per second. Uncorrected errors end the affected processes.",
        A_SECOND,
        _errors("gangwatch_gpu_ecc_errors_total", "{{gpu}} {{severity}}"),
    ),
    timeline(
        "XIDs",
        "XIDs that the driver reported within ten minutes, by code.",
        Query(worst(20, rose(f"gangwatch_gpu_xid_total{{{_NODE}}}", "10m")), "XID {{code}} {{gpu}}"),
        ((None, "red"),),
        width=12,
    ),
    rows(
        "Remapped memory rows",
        "Number of rows by cause.",
        COUNT,
        Query(f"topk(20, gangwatch_gpu_remapped_rows_total{{{_NODE}}})", instant=True, table=True),
        hidden=("cluster", "node", "instance", "job"),
        names={"Value": "rows"},
    ),
    rows(
        "Recovery action",
        "Action that the driver requests for a GPU.",
        COUNT,
        Query(f"gangwatch_gpu_recovery_action{{{_NODE}}} == 1", instant=True, table=True),
        hidden=("cluster", "node", "instance", "job", "Value"),
    ),
)
dashboard.row(
    "PCIe and NVLink",
    series(
        "PCIe traffic",
        "Bytes sent by the GPU per second, over the newest interval (GPM).",
        BYTES_A_SECOND,
        _gpus("gangwatch_gpu_pcie_transmit_bytes_per_second"),
    ),
    series(
        "PCIe replays",
        "Packets retransmitted per second. The usual cause is a bad slot, riser or board.",
        A_SECOND,
        _errors("gangwatch_gpu_pcie_replays_total", "{{gpu}}"),
    ),
    series(
        "PCIe lanes",
        "Lanes of each device, divided by the most lanes that it supports (profile `full`).",
        RATIO,
        Query(
            f"max by (pci_address) (gangwatch_pcie_link_lanes{{{_NODE}}})"
            f" / max by (pci_address) (gangwatch_pcie_link_lanes_maximum{{{_NODE}}})",
            "{{pci_address}}",
        ),
    ).max(1),
    series(
        "NVLink traffic",
        "Bytes sent by programs per second over all links.",
        BYTES_A_SECOND,
        Query(f"gpu:gangwatch_nvlink_transmit_bytes:rate2m{{{_NODE}}}", "{{gpu}}"),
    ),
    series(
        "NVLink errors",
        "Errors per second by kind, summed over a GPU's links. With profile `full`: by link.",
        A_SECOND,
        Query(busiest(8, f"gangwatch_gpu_nvlink_errors_total{{{_NODE}}}"), "{{gpu}} {{kind}}"),
        Query(
            busiest(8, f"gangwatch_nvlink_errors_total{{{_NODE}}}"),
            "{{gpu}} link {{link}} {{kind}}",
        ),
    ),
    timeline(
        "Inactive NVLinks",
        "0: inactive. 2: sleeping. 3: closed to traffic (profile `full`).",
        Query(worst(20, f"gangwatch_nvlink_state{{{_NODE}}} != 1"), "{{gpu}} link {{link}}"),
        ((None, "red"), (2, "yellow"), (3, "orange")),
        width=12,
    ),
)
dashboard.row(
    "Host",
    series(
        "Pressure",
        "Share of time in which some task waited, by resource.",
        RATIO,
        Query(f"rate(gangwatch_host_pressure_waiting_seconds_total{{{_NODE}}}[$__rate_interval])", "{{resource}}"),
    ).max(1),
    series(
        "Processors",
        "Processors in use, by mode.",
        COUNT,
        Query(f'rate(gangwatch_host_cpu_seconds_total{{{_NODE}, mode!="idle"}}[$__rate_interval])', "{{mode}}"),
        stacked=True,
    ),
)
