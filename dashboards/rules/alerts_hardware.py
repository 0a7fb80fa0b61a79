"""Alerts on devices, by their own counters and events: they need no job and no verdict."""

from __future__ import annotations

from agent.schema.xid_codes import XIDS
from dashboards.expressions import rose
from dashboards.rules.rule import Alert

_GPU = "GPU {{ $labels.gpu }} of node {{ $labels.node }} (cluster {{ $labels.cluster }})"
_PORT = "{{ $labels.device }} port {{ $labels.port }} of node {{ $labels.node }} (cluster {{ $labels.cluster }})"
_OWNER = "group_left (gang, rank) gpu:gangwatch_gpu_owner:topk1"


def _owned(expression: str) -> str:
    """The expression with the gang and rank that use the GPU as labels, where there are such."""
    return f"({expression}) * on (cluster, node, gpu) {_OWNER} or ({expression})"


_WHOSE = "Used by rank {{ $labels.rank }} of {{ $labels.gang }} (empty: by nobody)."

_OF_JOBS = ("", "IGNORE", "RESTART_APP", "WORKFLOW_XID_45", "UPDATE_SWFW")
"""What NVIDIA's catalogue says to do after an XID that accuses the application or nothing, not the device."""

DEVICE_XIDS = tuple(str(code) for code, xid in sorted(XIDS.items()) if xid.action not in _OF_JOBS)
_XIDS = f'code=~"{"|".join(DEVICE_XIDS)}"'

HARDWARE = (
    Alert(
        "GangwatchGpuLost",
        "critical",
        "gangwatch_gpu_up == 0",
        "0s",
        f"{_GPU} has fallen off the bus",
        "The driver gives it no more; what ran on it has failed. The node needs a restart, at times the board a hand.",
        keep="2m",
    ),
    Alert(
        "GangwatchGpuXid",
        "critical",
        # An agent that is new tells of old XIDs: the count of any code is there from its beginning on.
        f"""{rose(f"gangwatch_gpu_xid_total{{{_XIDS}}}", "10m")}
        and on (cluster, node, gpu) increase(gangwatch_gpu_xid_events_total[10m]) > 0""",
        "0s",
        f"XID {{{{ $labels.code }}}} of {_GPU}",
        "The driver has reported a fault of the device; the runbook says for each code what it asks for.",
    ),
    Alert(
        "GangwatchGpuMemoryErrors",
        "critical",
        'increase(gangwatch_gpu_ecc_errors_total{severity="uncorrected"}[10m]) > 0',
        "0s",
        f"Memory errors that could not be corrected on {_GPU}",
        "{{ $value }} in ten minutes: results that were computed with it may be wrong, and what ran has been ended.",
    ),
    Alert(
        "GangwatchGpuRowRemap",
        "warning",
        "gangwatch_gpu_row_remap_pending == 1 or gangwatch_gpu_row_remap_failed == 1",
        "5m",
        f"Rows of memory of {_GPU} wait for a reset, or could not be remapped",
        "Memory that failed is taken out of use at the next reset; where that has failed the board is to be changed.",
    ),
    Alert(
        "GangwatchGpuThrottled",
        "warning",
        _owned('max by (cluster, node, gpu, reason) (gangwatch_gpu_throttle_state{reason=~"hw_.*|sw_thermal"}) == 1'),
        "5m",
        f"The clock of {_GPU} is held down: {{{{ $labels.reason }}}}",
        f"It computes more slowly than its peers, and a gang is as fast as its slowest member. {_WHOSE}",
        keep="2m",
    ),
    Alert(
        "GangwatchNicDown",
        "critical",
        """(gangwatch_rdma_port_state < 4)
        and (max_over_time(gangwatch_rdma_port_state[1h]) >= 4)""",
        "1m",
        f"{_PORT} is down",
        "It was up within the last hour. A gang whose rank uses it hangs or goes by another way.",
    ),
    Alert(
        "GangwatchNicFlapping",
        "warning",
        """increase(gangwatch_rdma_port_link_downed_total[10m]) >= 2
        or increase(gangwatch_rdma_physical_link_down_events_total[10m]) >= 2""",
        "0s",
        f"The link of {_PORT} goes down again and again",
        "{{ $value }} times in ten minutes: a cable or transceiver, as a rule.",
    ),
    Alert(
        "GangwatchPauseStorm",
        "warning",
        'rate(gangwatch_rdma_pause_seconds_total{direction="receive"}[5m]) > 0.1',
        "5m",
        f"{_PORT} may not send for a tenth of the time",
        "{{ $value | humanizePercentage }} of the time, priority {{ $labels.priority }}: "
        "somebody beyond it drains too slowly, and pauses spread from there.",
    ),
)
