"""Recording rules: aggregates of many series that dashboards and alerts use.

Rates are computed over two minutes, that is eight scrapes at intervals of 15 s.
"""

from __future__ import annotations

from dashboards.expressions import record
from dashboards.rules.rule import Group, Recording

_GPU = "cluster, node, gpu"

OWNERS = (
    # A GPU that several ranks share is assigned to one of them: a join may find only one owner.
    Recording(
        "gpu:gangwatch_gpu_owner:topk1",
        f'topk by ({_GPU}) (1, max by ({_GPU}, gang, rank) (gangwatch_gpu_owner_info{{gang!=""}}))',
    ),
    # A NIC that shares no PCIe switch with a GPU has no rail. "none" keeps it in panels and sums by rail.
    Recording(
        "nic:gangwatch_topology_rail:info",
        """max by (cluster, node, device, rail)
        (label_replace(gangwatch_topology_rail_info, "device", "$1", "nic", "(.+)"))
        or on (cluster, node, device) label_replace(
        max by (cluster, node, device) (gangwatch_rdma_device_info), "rail", "none", "", "")""",
    ),
    Recording(
        "nic:gangwatch_gpu_owner:topk1",
        f"""topk by (cluster, node, device) (1,
        label_replace(max by (cluster, node, nic, pci_address) (gangwatch_topology_rail_info),
        "device", "$1", "nic", "(.+)")
        * on (cluster, node, pci_address) group_left (gpu) max by ({_GPU}, pci_address) (gangwatch_gpu_info)
        * on ({_GPU}) group_left (gang, rank) gpu:gangwatch_gpu_owner:topk1)""",
    ),
    Recording(
        "gang:gangwatch_gang_info:name",
        "max by (cluster, gang, name, queue, state) (gangwatch_gang_info)",
    ),
)


def _sum(by: str, metric: str) -> str:
    return f"sum by ({by}) (rate({metric}[2m]))"


_RANK, _GANG = "cluster, gang, rank", "cluster, gang"
_STEPS, _STEP, _WAIT = (
    "gangwatch_rank_steps_total",
    "gangwatch_rank_step_seconds_total",
    "gangwatch_rank_wait_seconds_total",
)

STEPS = (
    Recording("gang:gangwatch_rank_steps:rate2m", f"max by ({_GANG}) (rate({_STEPS}[2m]))"),
    Recording("gang:gangwatch_rank_step_seconds:mean2m", f"{_sum(_GANG, _STEP)} / ({_sum(_GANG, _STEPS)} > 0)"),
    Recording("rank:gangwatch_rank_step_seconds:mean2m", f"{_sum(_RANK, _STEP)} / ({_sum(_RANK, _STEPS)} > 0)"),
    # A rank's own part of a step, without waiting. Step times hardly differ, since all ranks wait for the slowest.
    Recording(
        "rank:gangwatch_rank_own_seconds:mean2m",
        f"({_sum(_RANK, _STEP)} - {_sum(_RANK, _WAIT)}) / ({_sum(_RANK, _STEPS)} > 0)",
    ),
    Recording("gang:gangwatch_rank_wait:ratio2m", f"{_sum(_GANG, _WAIT)} / ({_sum(_GANG, _STEP)} > 0)"),
    Recording("gang:gangwatch_rank_tokens:rate2m", _sum(_GANG, "gangwatch_rank_tokens_total")),
    Recording(
        "rank:gangwatch_rank_slowdown:ratio",
        f"""max by ({_RANK}) (gangwatch_rank_slowdown_ratio)
        or rank:gangwatch_rank_own_seconds:mean2m
        / on ({_GANG}) group_left () (quantile by ({_GANG}) (0.5, rank:gangwatch_rank_own_seconds:mean2m) > 0)""",
    ),
)


def _by_gang(operation: str, metric: str) -> str:
    joined = f"{metric} * on ({_GPU}) group_left (gang) gpu:gangwatch_gpu_owner:topk1"
    return f"{operation} by ({_GANG}) ({joined})"


def _of_rank(metric: str) -> str:
    joined = f"{metric} * on ({_GPU}) group_left (gang, rank) gpu:gangwatch_gpu_owner:topk1"
    return f"max by ({_RANK}) ({joined})"


def _by_rank(metric: str) -> str:
    nic = f"rate({metric}[2m]) * on (cluster, node, device) group_left (gang, rank) nic:gangwatch_gpu_owner:topk1"
    return f"sum by ({_RANK}) ({nic})"


DEVICES = (
    # GPM's gauge if the GPU has one, otherwise the counters of the links.
    Recording(
        "gpu:gangwatch_nvlink_transmit_bytes:rate2m",
        f"""sum by ({_GPU}) (gangwatch_gpu_nvlink_transmit_bytes_per_second)
        or {_sum(_GPU, "gangwatch_nvlink_transmit_bytes_total")}""",
    ),
    Recording("gang:gangwatch_gpu_tensor_active_ratio:mean", _by_gang("avg", "gangwatch_gpu_tensor_active_ratio")),
    Recording("gang:gangwatch_gpu_utilization_ratio:mean", _by_gang("avg", "gangwatch_gpu_utilization_ratio")),
    Recording("gang:gangwatch_gpu_power_watts:sum", _by_gang("sum", "gangwatch_gpu_power_watts")),
    # A join over all GPUs of a cluster takes seconds at every point of a panel; here it runs once.
    *(
        Recording(f"rank:{metric}:max", _of_rank(metric))
        for metric in (
            "gangwatch_gpu_sm_clock_hertz",
            "gangwatch_gpu_power_watts",
            "gangwatch_gpu_temperature_celsius",
            "gangwatch_gpu_memory_used_bytes",
        )
    ),
    Recording("rank:gangwatch_nvlink_transmit_bytes:rate2m", _of_rank("gpu:gangwatch_nvlink_transmit_bytes:rate2m")),
    Recording("rank:gangwatch_rdma_port_transmit_bytes:rate2m", _by_rank("gangwatch_rdma_port_transmit_bytes_total")),
    Recording("rank:gangwatch_rdma_cnp_handled:rate2m", _by_rank("gangwatch_rdma_cnp_handled_total")),
    # 3: lost or broken, 2: needs inspection, 1: throttled, 0: healthy. `or` keeps the first, the worst.
    Recording(
        "gpu:gangwatch_gpu_health:worst",
        f"""max by ({_GPU}) (
        (gangwatch_gpu_up == 0) + 3
        or (gangwatch_gpu_row_remap_failed == 1) + 2
        or (increase(gangwatch_gpu_ecc_errors_total{{severity="uncorrected"}}[10m]) > 0) * 0 + 3
        or (increase(gangwatch_gpu_xid_events_total[10m]) > 0) * 0 + 2
        or (gangwatch_gpu_row_remap_pending == 1) + 1
        or (gangwatch_gpu_throttle_state{{reason=~"hw_thermal|sw_thermal|hw_power_brake|hw_slowdown"}} == 1)
        or gangwatch_gpu_up * 0)""",
    ),
    Recording("node:gangwatch_gpu_health:worst", "max by (cluster, node) (gpu:gangwatch_gpu_health:worst)"),
    Recording(
        "node:gangwatch_gpu_temperature_celsius:max", "max by (cluster, node) (gangwatch_gpu_temperature_celsius)"
    ),
)


def _by_rail(metric: str, *labels: str) -> str:
    rail = "* on (cluster, node, device) group_left (rail) nic:gangwatch_topology_rail:info"
    return f"sum by ({', '.join(('cluster', 'rail', *labels))}) (rate({metric}[2m]) {rail})"


def _by_rack(metric: str) -> str:
    rack = "* on (cluster, node) group_left (rack) max by (cluster, node, rack) (gangwatch_node_place_info)"
    return f"sum by (cluster, rack) (sum by (cluster, node) (rate({metric}[2m])) {rack})"


_PORT = "cluster, node, device, port, board_id"
_RATE = "port:gangwatch_rdma_port_rate_bytes_per_second:active"


def _median(by: str) -> str:
    """Return an expression that gives each port the median rate of its peers.

    by: names of labels, separated by commas. Ports with equal values of these labels are peers. A group of fewer
    than three ports gets no value.
    """
    peers = f"quantile by ({by}) (0.5, {_RATE}) and count by ({by}) ({_RATE}) >= 3"
    return f"{_RATE} * 0 + on ({by}) group_left () ({peers})"


LINKS = (
    # An inactive port reports a rate that it does not have.
    Recording(
        _RATE,
        f"""max by ({_PORT}) ((gangwatch_rdma_port_rate_bytes_per_second
        and on (cluster, node, device, port) gangwatch_rdma_port_state >= 4)
        * on (cluster, node, device) group_left (board_id)
        max by (cluster, node, device, board_id) (gangwatch_rdma_device_info))""",
    ),
    # Peers are the same port of the same board on all nodes. On fewer than three nodes they are the ports of one board
    # and node.
    Recording(
        "port:gangwatch_rdma_port_rate_bytes_per_second:peers",
        f"{_median('cluster, device, port, board_id')} or {_median('cluster, node, board_id')}",
    ),
)

FABRIC = (
    Recording("rail:gangwatch_rdma_port_transmit_bytes:rate2m", _by_rail("gangwatch_rdma_port_transmit_bytes_total")),
    Recording("rail:gangwatch_rdma_cnp_handled:rate2m", _by_rail("gangwatch_rdma_cnp_handled_total")),
    Recording("rail:gangwatch_rdma_pause_frames:rate2m", _by_rail("gangwatch_rdma_pause_frames_total", "direction")),
    Recording("rack:gangwatch_rdma_cnp_handled:rate2m", _by_rack("gangwatch_rdma_cnp_handled_total")),
    Recording("rack:gangwatch_rdma_port_transmit_bytes:rate2m", _by_rack("gangwatch_rdma_port_transmit_bytes_total")),
    Recording(
        "rack:gangwatch_gpu_owner:count",
        """count by (cluster, rack, gang) (gpu:gangwatch_gpu_owner:topk1
        * on (cluster, node) group_left (rack) max by (cluster, node, rack) (gangwatch_node_place_info))""",
    ),
)

_VERDICT = "cluster, gang, verdict"

VERDICTS = (
    # Work that an active verdict costs, in slots, with the verdict's details as labels.
    Recording(
        "verdict:gangwatch_verdict_lost_slots:join",
        f"""max by ({_VERDICT}) (gangwatch_verdict_lost_slots)
        * on ({_VERDICT}) group_left (name, node, device, aggressor, resource)
        max by ({_VERDICT}, name, node, device, aggressor, resource) (gangwatch_verdict_info)
        * on ({_VERDICT}) group_left (kind, cause, rank)
        (max by ({_VERDICT}, kind, cause, rank) (gangwatch_verdict_active) > bool -1)""",
    ),
)

GROUPS = (
    Group("gangwatch-owners", OWNERS),
    Group("gangwatch-steps", STEPS),
    Group("gangwatch-devices", DEVICES),
    Group("gangwatch-links", LINKS),
    Group("gangwatch-fabric", FABRIC),
    Group("gangwatch-verdicts", VERDICTS),
)
"""Groups of recording rules. A group comes after the groups whose results its rules read."""

for _group in GROUPS:
    for _rule in _group.rules:
        assert isinstance(_rule, Recording)
        record(_rule.name, _rule.expression)
