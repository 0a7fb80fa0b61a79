"""Node and GPU: eight GPUs with the worst colour, and everything that their own counters say."""

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
    "One node: its GPUs with the worst colour, throttling, memory errors, XIDs, PCIe, NVLink and the host.",
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
        "What the scheduler thinks of the node.",
        COUNT,
        Query(f"gangwatch_node_state{{{_NODE}}} == 1", "{{state}}"),
        text=True,
        nothing="no node of the controller",
    ),
    number(
        "GPUs",
        "That answer.",
        COUNT,
        Query(f"sum by (cluster, node) (gangwatch_gpu_up{{{_NODE}}})"),
    ),
    number(
        "Agent",
        "Whether it answers Prometheus.",
        COUNT,
        Query(f'max by (cluster, node) (up{{{_NODE}, job="gangwatch-agent"}})'),
        thresholds=ONE_IS_GOOD,
    ),
    number(
        "XIDs in this time range",
        "Of any code.",
        COUNT,
        Query(f"sum by (cluster, node) (increase(gangwatch_gpu_xid_events_total{{{_NODE}}}[$__range]))", instant=True),
        thresholds=ZERO_IS_GOOD,
        decimals=0,
    ),
    number(
        "Memory available",
        "Of the host, without swapping.",
        RATIO,
        Query(f"gangwatch_host_memory_available_bytes{{{_NODE}}} / gangwatch_host_memory_total_bytes{{{_NODE}}}"),
        thresholds=((None, "red"), (0.1, "yellow"), (0.2, "green")),
    ),
    number(
        "Load a processor",
        "Load average over one minute, over the processors online.",
        COUNT,
        Query(f"gangwatch_host_load1{{{_NODE}}} / gangwatch_host_cpus{{{_NODE}}}"),
        thresholds=((None, "green"), (1, "yellow"), (2, "red")),
        decimals=2,
    ),
)
dashboard.row(
    "GPUs",
    timeline(
        "Health",
        "The worst of each GPU: green well, yellow held back, orange to be looked at, red lost or broken.",
        Query(f"gpu:gangwatch_gpu_health:worst{{{_NODE}}}", "{{gpu}}"),
        HEALTH,
        width=12,
    ),
    rows(
        "Who uses them",
        "Job and rank of each GPU.",
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
        "Share of time with a tensor pipe in use (GPM).",
        RATIO,
        _gpus("gangwatch_gpu_tensor_active_ratio"),
        maximum=1,
    ),
    series(
        "SM active",
        "Share of multiprocessors that were busy (GPM).",
        RATIO,
        _gpus("gangwatch_gpu_sm_active_ratio"),
        maximum=1,
    ),
    series(
        "Utilisation",
        "Share of time with any kernel running: high also while a job hangs in a collective.",
        RATIO,
        _gpus("gangwatch_gpu_utilization_ratio"),
        maximum=1,
    ),
    series("Device memory in use", "By programs.", BYTES, _gpus("gangwatch_gpu_memory_used_bytes")),
    series("Power", "As the driver averages it.", WATTS, _gpus("gangwatch_gpu_power_watts")),
    series(
        "Temperature",
        "Of the die.",
        CELSIUS,
        _gpus("gangwatch_gpu_temperature_celsius"),
        thresholds=((None, "green"), (85, "red")),
    ),
    series("SM clock", "Of the multiprocessors.", HERTZ, _gpus("gangwatch_gpu_sm_clock_hertz")),
    timeline(
        "Clock held down",
        "By reason; idle and set clocks are not shown.",
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
        "Memory errors a second; uncorrected ones end what runs.",
        A_SECOND,
        _errors("gangwatch_gpu_ecc_errors_total", "{{gpu}} {{severity}}"),
    ),
    timeline(
        "XIDs",
        "When the driver reported which, in ten minutes' windows.",
        Query(worst(20, rose(f"gangwatch_gpu_xid_total{{{_NODE}}}", "10m")), "XID {{code}} {{gpu}}"),
        ((None, "red"),),
        width=12,
    ),
    rows(
        "Rows of memory",
        "Remapped rows by cause.",
        COUNT,
        Query(f"topk(20, gangwatch_gpu_remapped_rows_total{{{_NODE}}})", instant=True, table=True),
        hidden=("cluster", "node", "instance", "job"),
        names={"Value": "rows"},
    ),
    rows(
        "What it needs to recover",
        "As the driver says it.",
        COUNT,
        Query(f"gangwatch_gpu_recovery_action{{{_NODE}}} == 1", instant=True, table=True),
        hidden=("cluster", "node", "instance", "job", "Value"),
    ),
)
dashboard.row(
    "PCIe and NVLink",
    series(
        "PCIe traffic",
        "From the GPU, over the newest interval (GPM).",
        BYTES_A_SECOND,
        _gpus("gangwatch_gpu_pcie_transmit_bytes_per_second"),
    ),
    series(
        "PCIe replays",
        "Packets sent again a second: a bad slot, riser or board.",
        A_SECOND,
        _errors("gangwatch_gpu_pcie_replays_total", "{{gpu}}"),
    ),
    series(
        "PCIe lanes",
        "Of each device, over the most that it can use (profile `full`).",
        RATIO,
        Query(
            f"max by (pci_address) (gangwatch_pcie_link_lanes{{{_NODE}}})"
            f" / max by (pci_address) (gangwatch_pcie_link_lanes_maximum{{{_NODE}}})",
            "{{pci_address}}",
        ),
        maximum=1,
    ),
    series(
        "NVLink traffic",
        "Bytes that programs sent a second over all links.",
        BYTES_A_SECOND,
        Query(f"gpu:gangwatch_nvlink_transmit_bytes:rate2m{{{_NODE}}}", "{{gpu}}"),
    ),
    series(
        "NVLink errors",
        "By kind, on all of a GPU's links together; by link with profile `full`.",
        A_SECOND,
        Query(busiest(8, f"gangwatch_gpu_nvlink_errors_total{{{_NODE}}}"), "{{gpu}} {{kind}}"),
        Query(
            busiest(8, f"gangwatch_nvlink_errors_total{{{_NODE}}}"),
            "{{gpu}} link {{link}} {{kind}}",
        ),
    ),
    timeline(
        "NVLinks that are not active",
        "0 inactive, 2 asleep, 3 closed to traffic (profile `full`).",
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
        maximum=1,
    ),
    series(
        "Processors",
        "Processors in use, by mode.",
        COUNT,
        Query(f'rate(gangwatch_host_cpu_seconds_total{{{_NODE}, mode!="idle"}}[$__rate_interval])', "{{mode}}"),
        stacked=True,
    ),
)
