"""Fabric: NICs, rails and switches: who is marked, who is paused, and who shares with whom."""

from __future__ import annotations

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
    "NICs by counter, congestion marks and pauses by rail and switch, and which jobs share what.",
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


def _nics(metric: str, matchers: str = "") -> str:
    return busiest(10, f"{metric}{{{_NIC}{matchers}}}", lambda rate: f"{rate} * {_RAIL}")


dashboard.row(
    "Now",
    number(
        "NICs",
        "Ports that the agents read.",
        COUNT,
        Query(f"count by (cluster) (gangwatch_rdma_port_transmit_bytes_total{{{CLUSTER}}})"),
        width=6,
    ),
    number(
        "Ports not active",
        "State below 4.",
        COUNT,
        Query(f"count(gangwatch_rdma_port_state{{{CLUSTER}}} < 4) or vector(0)"),
        thresholds=ZERO_IS_GOOD,
        width=6,
    ),
    number(
        "Congestion verdicts",
        "Jobs that another one's traffic slows down now.",
        COUNT,
        Query(f'count(gangwatch_verdict_active{{{CLUSTER}, kind="interference"}}) or vector(0)'),
        thresholds=ZERO_IS_GOOD,
        width=6,
    ),
    number(
        "Traffic",
        "RDMA bytes sent a second by all NICs.",
        BYTES_A_SECOND,
        Query(f"sum by (cluster) (rail:gangwatch_rdma_port_transmit_bytes:rate2m{{{CLUSTER}}})"),
        width=6,
    ),
)
dashboard.row(
    "By rail and switch",
    series(
        "Traffic by rail",
        "Bytes sent a second. A rail that carries less than the others holds them up.",
        BYTES_A_SECOND,
        Query(
            worst(16, f'rail:gangwatch_rdma_port_transmit_bytes:rate2m{{{CLUSTER}, rail=~"$rail"}}'), "rail {{rail}}"
        ),
    ),
    series(
        "Congestion notifications by rail",
        "Obeyed a second: senders were slowed down for a full link.",
        A_SECOND,
        Query(worst(16, f'rail:gangwatch_rdma_cnp_handled:rate2m{{{CLUSTER}, rail=~"$rail"}}'), "rail {{rail}}"),
    ),
    series(
        "Pause frames by rail",
        "Received ones stop our senders, sent ones stop the network's: where more are sent than received is the cause.",
        A_SECOND,
        Query(
            worst(16, f'rail:gangwatch_rdma_pause_frames:rate2m{{{CLUSTER}, rail=~"$rail"}}'),
            "rail {{rail}} {{direction}}",
        ),
    ),
    series(
        "Congestion notifications by switch",
        "Of all NICs below a switch: nodes of one rack share its uplinks. '' where the rack is not known.",
        A_SECOND,
        Query(worst(20, f"rack:gangwatch_rdma_cnp_handled:rate2m{{{CLUSTER}}}"), "{{rack}}"),
    ),
    series(
        "Traffic by switch",
        "Bytes sent a second by the NICs below it; what of it crosses the uplinks is not counted anywhere on nodes.",
        BYTES_A_SECOND,
        Query(worst(20, f"rack:gangwatch_rdma_port_transmit_bytes:rate2m{{{CLUSTER}}}"), "{{rack}}"),
    ),
    rows(
        "Who shares a switch",
        "GPUs of each job below each switch: jobs in one rack share what leaves it.",
        COUNT,
        Query(f"topk(20, rack:gangwatch_gpu_owner:count{{{CLUSTER}}})", instant=True, table=True),
        hidden=("cluster",),
        names={"Value": "GPUs"},
    ),
    rows(
        "Who disturbs whom",
        "Interference that stands: the job that suffers, the one that disturbs, and what both share.",
        COUNT,
        Query(
            f'topk(20, verdict:gangwatch_verdict_lost_slots:join{{{CLUSTER}, kind="interference"}})',
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
        "Congestion notifications obeyed",
        "This sender was slowed down for a full link on its way.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_cnp_handled_total"), "{{node}} {{device}}"),
    ),
    series(
        "Packets marked on their way here",
        "ECN: the way to this receiver is congested.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_ecn_marked_packets_total"), "{{node}} {{device}}"),
    ),
    series(
        "Pause received",
        "Frames a second that stop this sender.",
        A_SECOND,
        Query(
            _nics("gangwatch_rdma_pause_frames_total", ', direction="receive"'),
            "{{node}} {{device}} priority {{priority}}",
        ),
    ),
    series(
        "Pause sent",
        "Frames a second by which this NIC stops the network: it drains too slowly.",
        A_SECOND,
        Query(
            _nics("gangwatch_rdma_pause_frames_total", ', direction="transmit"'),
            "{{node}} {{device}} priority {{priority}}",
        ),
    ),
    series(
        "Time paused",
        "Share of time for which sending was stopped.",
        RATIO,
        Query(
            _nics("gangwatch_rdma_pause_seconds_total", ', direction="receive"'),
            "{{node}} {{device}} priority {{priority}}",
        ),
        maximum=1,
    ),
    series(
        "Out of order",
        "Packets a second that arrived before others which were lost or overtaken.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_out_of_sequence_total"), "{{node}} {{device}}"),
    ),
    series(
        "Sent again",
        "Packets a second, and acknowledgements that did not come in time.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_retransmitted_packets_total"), "{{node}} {{device}} sent again"),
        Query(_nics("gangwatch_rdma_ack_timeouts_total"), "{{node}} {{device}} timeouts"),
    ),
    series(
        "Errors on the wire",
        "Symbols in error a second: a cable or transceiver.",
        A_SECOND,
        Query(_nics("gangwatch_rdma_physical_symbol_errors_total"), "{{node}} {{device}}"),
    ),
    timeline(
        "Ports that are not active",
        "1 down, 2 initialising, 3 armed.",
        Query(least(20, f"gangwatch_rdma_port_state{{{_NIC}}}", "< 4"), "{{node}} {{device}}"),
        ((None, "red"), (2, "yellow")),
    ),
)
