"""Alerts on the counters and events of devices. They fire also for GPUs without a job and without a verdict."""

from __future__ import annotations

from agent.schema.xid_codes import XIDS
from dashboards.expressions import rose
from dashboards.rules.rule import Alert

_GPU = "GPU {{ $labels.gpu }} of node {{ $labels.node }} (cluster {{ $labels.cluster }})"
_PORT = "{{ $labels.device }} port {{ $labels.port }} of node {{ $labels.node }} (cluster {{ $labels.cluster }})"
_OWNER = "group_left (gang, rank) gpu:gangwatch_gpu_owner:topk1"


def _owned(expression: str) -> str:
    """Add labels to the expression of a GPU metric: the gang and the rank that use the GPU, if it is in use."""
    return f"({expression}) * on (cluster, node, gpu) {_OWNER} or ({expression})"


_WHOSE = "User: rank {{ $labels.rank }} of {{ $labels.gang }} (empty: unused)."

_OF_JOBS = ("", "IGNORE", "RESTART_APP", "WORKFLOW_XID_45", "UPDATE_SWFW")
"""Actions in NVIDIA's catalogue of XID errors that mean: caused by the application, or nothing to do."""

DEVICE_XIDS = tuple(str(code) for code, xid in sorted(XIDS.items()) if xid.action not in _OF_JOBS)
_XIDS = f'code=~"{"|".join(DEVICE_XIDS)}"'

_EACH_PORT = "on (cluster, node, device, port)"
_SAME_PORT = "by (cluster, device, port) (gangwatch_rdma_port_state"

_DOWN = f"""(gangwatch_rdma_port_state < 4)
and {_EACH_PORT} (
max_over_time(gangwatch_rdma_port_state[1h]) >= 4
or {_EACH_PORT} ALERTS{{alertname="GangwatchNicDown", alertstate="firing"}}
or {_EACH_PORT} (gangwatch_rdma_port_state unless on (cluster, device, port) (
count {_SAME_PORT} < 4) / count {_SAME_PORT}) > 0.5 and count {_SAME_PORT}) >= 3)))"""
"""PromQL expression that selects the inactive ports that should be active. An inactive port is selected if it was
active within the last hour, or if its alert GangwatchNicDown fires already. It is also selected unless the same port is
inactive on more than half of the nodes, because such a port probably has no cable. With fewer than three nodes, every
inactive port is selected."""

HARDWARE = (
    Alert(
        "GangwatchGpuLost",
        "critical",
        "gangwatch_gpu_up == 0",
        "0s",
        f"{_GPU} has fallen off the bus",
        "The driver cannot reach it, and its processes have failed. Restart the node; if that does not help, reseat or "
        "replace the board.",
        keep="2m",
    ),
    Alert(
        "GangwatchGpuXid",
        "critical",
        # A new agent also counts old XIDs. The count of all codes exists from the agent's start, so it shows a rise.
        f"""{rose(f"gangwatch_gpu_xid_total{{{_XIDS}}}", "10m")}
        and on (cluster, node, gpu) increase(gangwatch_gpu_xid_events_total[10m]) > 0""",
        "0s",
        f"XID {{{{ $labels.code }}}} of {_GPU}",
        "The driver has reported a device fault. The runbook lists the action for each code.",
    ),
    Alert(
        "GangwatchGpuMemoryErrors",
        "critical",
        'increase(gangwatch_gpu_ecc_errors_total{severity="uncorrected"}[10m]) > 0',
        "0s",
        f"Uncorrectable memory errors on {_GPU}",
        "{{ $value }} in ten minutes. The driver has ended the affected processes; their results may be wrong.",
    ),
    Alert(
        "GangwatchGpuRowRemap",
        "warning",
        "gangwatch_gpu_row_remap_pending == 1 or gangwatch_gpu_row_remap_failed == 1",
        "5m",
        f"Memory rows of {_GPU} need a reset, or could not be remapped",
        "The next GPU reset takes failed rows out of use. If remapping has failed, replace the board.",
    ),
    Alert(
        "GangwatchGpuThrottled",
        "warning",
        _owned('max by (cluster, node, gpu, reason) (gangwatch_gpu_throttle_state{reason=~"hw_.*|sw_thermal"}) == 1'),
        "5m",
        f"{_GPU} is throttled: {{{{ $labels.reason }}}}",
        f"It computes more slowly than its peers, and a gang is as fast as its slowest rank. {_WHOSE}",
        keep="2m",
    ),
    Alert(
        "GangwatchNicDown",
        "critical",
        _DOWN,
        "1m",
        f"{_PORT} is down",
        "A gang that uses it hangs, or uses another path. The runbook explains how to exclude an unused port.",
    ),
    Alert(
        "GangwatchNicFlapping",
        "warning",
        """increase(gangwatch_rdma_port_link_downed_total[10m]) >= 2
        or increase(gangwatch_rdma_physical_link_down_events_total[10m]) >= 2""",
        "0s",
        f"The link of {_PORT} is flapping",
        "It went down {{ $value }} times in ten minutes. The usual cause is a cable or transceiver.",
    ),
    Alert(
        "GangwatchNicSlowLink",
        "warning",
        """port:gangwatch_rdma_port_rate_bytes_per_second:active
        / port:gangwatch_rdma_port_rate_bytes_per_second:peers < 0.9""",
        "10m",
        f"{_PORT} is linked more slowly than its peers",
        "Its rate is {{ $value | humanizePercentage }} of the median of its peers, so each collective waits for it. "
        "The usual cause is a cable, a transceiver, or the setting of the switch port.",
    ),
    Alert(
        "GangwatchPauseStorm",
        "warning",
        'rate(gangwatch_rdma_pause_seconds_total{direction="receive"}[5m]) > 0.1',
        "5m",
        f"{_PORT} is paused for more than a tenth of the time",
        "{{ $value | humanizePercentage }} of the time, priority {{ $labels.priority }}: "
        "a receiver behind it drains too slowly, and pauses spread from there.",
    ),
)
