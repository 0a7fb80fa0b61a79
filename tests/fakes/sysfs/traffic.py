"""Model of a NIC's counters: a rate, the share lost to congestion, and the effect on each counter.

The model is plausible, not measured: there is no published tree with changing congestion counters of mlx5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.fakes.sysfs.names import LOSSLESS_PRIORITY

PACKET_BYTES = 4096
"""RoCE's largest path MTU, which bulk traffic uses fully."""

WRITE_BYTES = 1 << 20
"""Size of an RDMA write: one chunk of a collective."""


@dataclass(slots=True)
class Traffic:
    """Traffic of one NIC. load: share of the full rate; congestion: share of marked packets, 0 to 1. Both may be
    changed."""

    rate_bytes_per_second: float
    load: float = 0.5
    congestion: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)

    def advance(self, seconds: float) -> dict[str, int]:
        """Advance by this time. Return the new value of each changed counter, by name of the file or statistic."""
        sent = self.rate_bytes_per_second * self.load * (1 - 0.4 * self.congestion) * seconds
        packets = sent / PACKET_BYTES
        marked = packets * self.congestion * 0.05
        paused_us = seconds * 1e6 * self.congestion * 0.2
        lossless = f"prio{LOSSLESS_PRIORITY}"
        moved = {
            "port_xmit_data": sent / 4,
            "port_rcv_data": sent / 4,
            "port_xmit_packets": packets,
            "port_rcv_packets": packets,
            "unicast_xmit_packets": packets,
            "unicast_rcv_packets": packets,
            "port_xmit_wait": paused_us * 10,
            "rx_write_requests": sent / WRITE_BYTES,
            "rx_read_requests": sent / WRITE_BYTES / 100,
            "np_ecn_marked_roce_packets": marked,
            "np_cnp_sent": marked / 4,
            "rp_cnp_handled": marked / 4,
            "roce_slow_restart_cnps": marked / 1000,
            "out_of_sequence": marked / 500,
            "packet_seq_err": marked / 500,
            "roce_adp_retrans": marked / 2000,
            "local_ack_timeout_err": marked / 20000,
            # The same values under other drivers' names.
            "rx_bytes": sent, "tx_bytes": sent, "rx_pkts": packets, "tx_pkts": packets,
            "sent_pkts": packets, "rcvd_pkts": packets, "rx_ecn_marked_pkts": marked, "tx_cnp_pkts": marked / 4,
            "rx_cnp_pkts": marked / 4, "cnpSent": marked / 4, "cnpHandled": marked / 4, "RxECNMrkd": marked,
            "InRdmaWrites": sent / WRITE_BYTES, "OutRdmaWrites": sent / WRITE_BYTES,
            "rdma_write_bytes": sent, "rdma_write_recv_bytes": sent, "rdma_write_wrs": sent / WRITE_BYTES,
            # Statistics of the network driver.
            "rx_bytes_phy": sent, "tx_bytes_phy": sent, "rx_packets_phy": packets, "tx_packets_phy": packets,
            "rx_bits_phy": sent * 8, "rx_corrected_bits_phy": sent * 8e-8,
            "rx_vport_rdma_unicast_bytes": sent, "tx_vport_rdma_unicast_bytes": sent,
            "rx_vport_rdma_unicast_packets": packets, "tx_vport_rdma_unicast_packets": packets,
            f"rx_{lossless}_bytes": sent, f"tx_{lossless}_bytes": sent,
            f"rx_{lossless}_packets": packets, f"tx_{lossless}_packets": packets,
            f"rx_{lossless}_pause": paused_us / 50, f"rx_{lossless}_pause_duration": paused_us,
            f"tx_{lossless}_pause": paused_us / 100, f"tx_{lossless}_pause_duration": paused_us / 2,
            f"rx_{lossless}_pause_transition": paused_us / 60, f"rx_{lossless}_marked": marked,
        }  # fmt: skip
        return {name: self._add(name, amount) for name, amount in moved.items() if amount}

    def _add(self, name: str, amount: float) -> int:
        self.totals[name] = self.totals.get(name, 0.0) + amount
        return int(self.totals[name])
