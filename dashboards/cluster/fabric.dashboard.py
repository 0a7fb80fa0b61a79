"""Dashboard of the fabric, InfiniBand and RoCE: links, traffic, back-pressure, congestion, pauses and shared links."""

from __future__ import annotations

from agent.schema.verdicts.kinds import Kind
from dashboards.board import Board
from dashboards.expressions import CLUSTER, busiest, least, worst
from dashboards.panels import (
    A_SECOND,
    BYTES_A_SECOND,
    COUNT,
    RATIO,
    ZERO_IS_GOOD,
    Query,
    number,
    rows,
    series,
    timeline,
)

dashboard = Board(
    "gangwatch-fabric",
    "Fabric",
    "Links and traffic of InfiniBand and RoCE by NIC, rail and switch, back-pressure, and the jobs that share links.",
)
dashboard.variable(
    "rail", "Rail", f"label_values(nic:gangwatch_topology_rail:info{{{CLUSTER}}}, rail)", many=True, every=True
)
dashboard.variable(
    "node", "Node", f"label_values(gangwatch_rdma_device_info{{{CLUSTER}}}, node)", many=True, every=True
)
dashboard.annotation(
    "Congestion",
    f'verdict:gangwatch_verdict_lost_slots:join{{{CLUSTER}, cause="congestion"}} >= 0',
    "orange",
    "{{aggressor}} congests {{gang}}",
    "{{resource}}",
)

_NIC = f'{CLUSTER}, node=~"$node"'
_RAIL = f'on (cluster, node, device) group_left (rail) nic:gangwatch_topology_rail:info{{{_NIC}, rail=~"$rail"}}'

_AGAINST_PEERS = (
    "port:gangwatch_rdma_port_rate_bytes_per_second:active{{{0}}}"
    " / port:gangwatch_rdma_port_rate_bytes_per_second:peers{{{0}}}"
)
"""PromQL expression: the rate of each port's link, divided by the median rate of the port's peers. {0} is replaced by
the label matchers that select the ports."""


def _nics(metric: str, matchers: str = "") -> str:
    return busiest(10, f"{metric}{{{_NIC}{matchers}}}", lambda rate: f"{rate} * {_RAIL}")


dashboard.row(
    "Now",
    number(
        "NICs",
        "Ports whose counters agents report.",
        COUNT,
        Query(f"count by (cluster) (gangwatch_rdma_port_transmit_bytes_total{{{CLUSTER}}})"),
    ),
    number(
        "Inactive ports",
        "Ports with a state below 4.",
        COUNT,
        Query(f"count(gangwatch_rdma_port_state{{{CLUSTER}}} < 4) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Slow links",
        "Active ports with less than 90 % of the median rate of their peers.",
        COUNT,
        Query(f"count({_AGAINST_PEERS.format(CLUSTER)} < 0.9) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Link failures",
        "Number of times that links went down in the displayed time range.",
        COUNT,
        Query(
            f"sum(round((increase(gangwatch_rdma_port_link_downed_total{{{CLUSTER}}}[$__range]) > 0) or "
            f"increase(gangwatch_rdma_physical_link_down_events_total{{{CLUSTER}}}[$__range]))) or vector(0)"
        ),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Congestion verdicts",
        "Active interference verdicts: jobs that another job slows down.",
        COUNT,
        Query(f'count(gangwatch_verdict_active{{{CLUSTER}, kind="{Kind.INTERFERENCE}"}}) or vector(0)'),
        thresholds=ZERO_IS_GOOD,
    ),
    number(
        "Traffic",
        "RDMA bytes sent per second by all NICs.",
        BYTES_A_SECOND,
        Query(f"sum by (cluster) (rail:gangwatch_rdma_port_transmit_bytes:rate2m{{{CLUSTER}}})"),
    ),
)
dashboard.row(
    "By rail and switch",
    series(
        "Traffic by rail",
        "Bytes sent per second. A rail with less traffic than the others delays them. 'none': NICs that share no PCIe "
        "switch with a GPU.",
        BYTES_A_SECOND,
        Query(
            worst(16, f'rail:gangwatch_rdma_port_transmit_bytes:rate2m{{{CLUSTER}, rail=~"$rail"}}'), "rail {{rail}}"
        ),
    ),
    series(
        "Traffic by switch",
        "Bytes sent per second by the NICs below it. Nodes cannot measure how much of it crosses the uplinks.",
        BYTES_A_SECOND,
        Query(worst(20, f"rack:gangwatch_rdma_port_transmit_bytes:rate2m{{{CLUSTER}}}"), "{{rack}}"),
    ),
    rows(
        "Jobs below each switch",
        "Number of GPUs of each job. Jobs in one rack share its uplinks.",
        COUNT,
        Query(f"topk(20, rack:gangwatch_gpu_owner:count{{{CLUSTER}}})", instant=True, table=True),
        hidden=("cluster",),
        names={"Value": "GPUs"},
    ),
    rows(
        "Interference",
        "Active interference verdicts: the delayed job, the aggressor, and the resource that both share.",
        COUNT,
        Query(
            f'topk(20, verdict:gangwatch_verdict_lost_slots:join{{{CLUSTER}, kind="{Kind.INTERFERENCE}"}})',
            instant=True,
            table=True,
        ),
        hidden=("cluster", "verdict", "kind"),
        names={"Value": "slots lost"},
    ),
)
dashboard.row(
    "By NIC",
    series(
        "Traffic by NIC",
        "Bytes sent per second by the busiest NICs.",
        BYTES_A_SECOND,
        Query(_nics("gangwatch_rdma_port_transmit_bytes_total"), "{{node}} {{device}}"),
    ),
    series(
        "Rate against peers",
        "Rate of the link divided by the median rate of its peers: the same port of all nodes with the same board, or "
        "the node's ports of one board. The slowest links are shown.",
        RATIO,
        Query(least(20, _AGAINST_PEERS.format(_NIC)), "{{node}} {{device}}"),
    ),
    series(
        "Transmit wait",
        "Ticks per second in which the port had data to send and could not send it (InfiniBand: no credits). The "
        "length of a tick depends on the device. Compare ports of one kind.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_port_transmit_wait_total"), "{{node}} {{device}}"),
    ),
    series(
        "Symbol errors",
        "Per second, counted by the InfiniBand port or by the Ethernet interface. The usual cause is a cable or "
        "transceiver.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_port_symbol_errors_total"), "{{node}} {{device}}"),
        Query(_nics("gangwatch_rdma_physical_symbol_errors_total"), "{{node}} {{device}} Ethernet"),
    ),
    series(
        "Link recoveries and failures",
        "Per second. A link recovers from errors (InfiniBand) or goes down. Each time, its traffic stops.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_port_link_error_recoveries_total"), "{{node}} {{device}} recovered"),
        Query(_nics("gangwatch_rdma_port_link_downed_total"), "{{node}} {{device}} went down"),
    ),
    series(
        "Out of order",
        "Packets per second that arrived out of sequence, because earlier ones were lost or delayed.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_out_of_sequence_total"), "{{node}} {{device}}"),
    ),
    series(
        "Retransmissions",
        "Retransmitted packets and acknowledgement timeouts per second.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_retransmitted_packets_total"), "{{node}} {{device}} retransmitted"),
        Query(_nics("gangwatch_rdma_ack_timeouts_total"), "{{node}} {{device}} timeouts"),
    ),
    timeline(
        "States of inactive ports",
        "1: down. 2: initialising. 3: armed.",
        Query(least(20, f"gangwatch_rdma_port_state{{{_NIC}}}", "< 4"), "{{node}} {{device}}"),
        ((None, "red"), (2, "yellow")),
        width=12,
    ),
)
dashboard.row(
    "RoCE only: congestion notifications and pauses",
    series(
        "Congestion notifications by rail",
        "Notifications handled per second: senders reduced their rate because of a full link.",
        A_SECOND,
        Query(worst(16, f'rail:gangwatch_rdma_cnp_handled:rate2m{{{CLUSTER}, rail=~"$rail"}}'), "rail {{rail}}"),
    ),
    series(
        "Congestion notifications by switch",
        "Sum over all NICs below a switch. Nodes of one rack share its uplinks. '' if the rack is unknown.",
        A_SECOND,
        Query(worst(20, f"rack:gangwatch_rdma_cnp_handled:rate2m{{{CLUSTER}}}"), "{{rack}}"),
    ),
    series(
        "Pause frames by rail",
        "Received frames pause the NICs' sending; sent frames pause the network. The cause is a rail that sends more "
        "than it receives.",
        A_SECOND,
        Query(
            worst(16, f'rail:gangwatch_rdma_pause_frames:rate2m{{{CLUSTER}, rail=~"$rail"}}'),
            "rail {{rail}} {{direction}}",
        ),
    ),
    series(
        "Congestion notifications handled",
        "The NIC reduced its sending rate because of a full link on the path.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_cnp_handled_total"), "{{node}} {{device}}"),
    ),
    series(
        "Received packets with a congestion mark",
        "ECN: the path to this NIC is congested.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_ecn_marked_packets_total"), "{{node}} {{device}}"),
    ),
    series(
        "Pause received",
        "Frames per second that pause this NIC's sending.",
        A_SECOND,
        Query(
            _nics("gangwatch_rdma_pause_frames_total", ', direction="receive"'),
            "{{node}} {{device}} priority {{priority}}",
        ),
    ),
    series(
        "Pause sent",
        "Frames per second by which this NIC pauses the network because it drains too slowly.",
        A_SECOND,
        Query(
            _nics("gangwatch_rdma_pause_frames_total", ', direction="transmit"'),
            "{{node}} {{device}} priority {{priority}}",
        ),
    ),
    series(
        "Time paused",
        "Share of time in which sending was paused.",
        RATIO,
        Query(
            _nics("gangwatch_rdma_pause_seconds_total", ', direction="receive"'),
            "{{node}} {{device}} priority {{priority}}",
        ),
    ).max(1),
)
