"""Mapping of the RDMA drivers' counter names to the metrics of the catalogue.

Names are those of the drivers in Linux 4.12 to 6.18: mlx5_ib (drivers/infiniband/hw/mlx5/counters.c), bnxt_re
(hw_counters.c; from 6.13 on with mlx5's names), irdma (verbs.c, generations 1 to 3), efa (efa_verbs.c), rxe
(rxe_hw_counters.c) and ionic. Other counters are published under their driver's name, so none is lost.
"""

from __future__ import annotations

from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]


class Meaning(NamedTuple):
    """Metric and labels of the series that contains a driver's counter."""

    metric: str
    labels: Labels = ()
    """Labels of the series besides `device` and `port`, as (name, value) pairs."""
    gauge: bool = False
    width: int = 64
    """Width of a counter in bits."""
    scale: float = 1.0
    """Factor that converts a gauge to the metric's base unit."""


PORT_COUNTERS = {
    "port_rcv_data": "receive_bytes",
    "port_xmit_data": "transmit_bytes",
    "port_rcv_packets": "receive_packets",
    "port_xmit_packets": "transmit_packets",
    "port_xmit_wait": "transmit_wait",
    "port_xmit_discards": "transmit_discards",
    "port_rcv_discards": "receive_discards",
    "port_rcv_errors": "receive_errors",
    "port_rcv_remote_physical_errors": "receive_remote_physical_errors",
    "port_rcv_switch_relay_errors": "receive_switch_relay_errors",
    "port_rcv_constraint_errors": "receive_constraint_errors",
    "port_xmit_constraint_errors": "transmit_constraint_errors",
    "unicast_rcv_packets": "unicast_receive_packets",
    "unicast_xmit_packets": "unicast_transmit_packets",
    "multicast_rcv_packets": "multicast_receive_packets",
    "multicast_xmit_packets": "multicast_transmit_packets",
    "symbol_error": "symbol_errors",
    "link_error_recovery": "link_error_recoveries",
    "link_downed": "link_downed",
    "local_link_integrity_errors": "link_integrity_errors",
    "excessive_buffer_overrun_errors": "buffer_overrun_errors",
    "VL15_dropped": "vl15_dropped",
}
"""Metric of each file in ports/*/counters (drivers/infiniband/core/sysfs.c). The value NAME stands for the metric
``gangwatch_rdma_port_NAME_total``."""

_SAME_THING = {
    # Congestion.
    "ecn_marked_packets": ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd", "rx_rdma_ecn_pkts"),
    "cnp_sent": ("np_cnp_sent", "np_cnp_pkts", "tx_cnp_pkts", "cnpSent", "tx_rdma_cnp_pkts"),
    "cnp_handled": ("rp_cnp_handled", "rx_cnp_pkts", "cnpHandled", "rx_rdma_cnp_pkts"),
    "cnp_ignored": ("rp_cnp_ignored", "cnpIgnored"),
    "adaptive_retransmissions": ("roce_adp_retrans",),
    "adaptive_retransmission_timeouts": ("roce_adp_retrans_to",),
    "slow_restarts": ("roce_slow_restart",),
    "slow_restart_cnps": ("roce_slow_restart_cnps",),
    "slow_restart_transitions": ("roce_slow_restart_trans",),
    # Loss, order, corruption.
    "out_of_sequence": (
        "out_of_sequence",
        "oos_drop_count",
        "out_of_seq_request",
        "Rcvd_Out_of_order_packets",
        "resp_rx_outouf_seq",
    ),
    "sequence_naks_received": (
        "packet_seq_err",
        "seq_err_naks_rcvd",
        "rcvd_seq_err",
        "Nak_Sequence_Error",
        "req_rx_pkt_seq_err",
    ),
    "implied_naks": ("implied_nak_seq_err", "Nak_Sequence_Error_Implied", "req_rx_impl_nak_seq_err"),
    "ack_timeouts": (
        "local_ack_timeout_err",
        "to_retransmits",
        "RTO",
        "retrans_timeout_events",
        "tx_rdma_ack_timeout",
    ),
    "retransmitted_packets": ("retrans_pkts", "RetransSegs", "tcpRetransSegs", "tx_rdma_retx_pkts"),
    "retransmitted_bytes": ("retrans_bytes", "tx_rdma_retx_bytes"),
    "duplicate_requests": ("duplicate_request", "dup_req"),
    "icrc_errors": ("rx_icrc_encapsulated", "CRC_errors"),
    # A receiver under pressure.
    "out_of_buffer": ("out_of_buffer", "rx_out_of_buffer", "resp_rx_outof_buf"),
    "receive_drops": ("rx_drops", "rx_roce_discards"),
    "rnr_naks_received": (
        "rnr_nak_retry_err",
        "rnr_naks_rcvd",
        "rcvd_rnr_err",
        "RNR_received",
        "req_rx_rnr_retry_err",
    ),
    "rnr_naks_sent": ("send_rnr_err", "RNR_sent"),
    # Queue-pair failures.
    "transport_retries_exceeded": (
        "req_transport_retries_exceeded",
        "max_retry_exceeded",
        "retry_exceeded_err",
        "req_tx_retry_excd_err",
    ),
    "rnr_retries_exceeded": ("req_rnr_retries_exceeded", "retry_rnr_exceeded_err"),
    "unresponsive_remote": ("unresponsive_remote_events",),
    "impaired_connections": ("impaired_remote_conn_events",),
    "requester_completion_errors": ("req_cqe_error", "req_rx_cqe_err"),
    "responder_completion_errors": ("resp_cqe_error",),
    "requester_flush_errors": ("req_cqe_flush_error", "req_rx_cqe_flush"),
    "responder_flush_errors": ("resp_cqe_flush_error",),
    "requester_access_errors": ("req_remote_access_errors", "remote_access_err", "req_rx_rmt_acc_err"),
    "responder_access_errors": ("resp_remote_access_errors",),
    "remote_invalid_requests": ("req_remote_invalid_request", "remote_invalid_req_err"),
    "local_length_errors": ("resp_local_length_error", "res_length_mismatch"),
    # Volume.
    "write_requests_received": ("rx_write_requests", "rx_write_req", "InRdmaWrites", "iwInRdmaWrites"),
    "read_requests_received": ("rx_read_requests", "rx_read_req", "InRdmaReads", "iwInRdmaReads"),
    "atomic_requests_received": ("rx_atomic_requests", "rx_atomic_req", "Rx_atomics"),
    "send_requests_received": ("rx_send_req", "InRdmaSends", "iwInRdmaSends", "recv_wrs", "rdma_recvs"),
    "write_requests_sent": ("tx_write_req", "OutRdmaWrites", "iwOutRdmaWrites", "rdma_write_wrs"),
    "read_requests_sent": ("tx_read_req", "OutRdmaReads", "iwOutRdmaReads", "rdma_read_wrs"),
    "atomic_requests_sent": ("tx_atomic_req", "Tx_atomics"),
    "send_requests_sent": ("tx_send_req", "OutRdmaSends", "iwOutRdmaSends", "send_wrs", "rdma_sends"),
    "dct_connects": ("rx_dct_connect",),
    "receive_bytes": ("rx_bytes", "rdma_rx_bytes", "rx_rdma_ucast_bytes"),
    "transmit_bytes": ("tx_bytes", "rdma_tx_bytes", "tx_rdma_ucast_bytes"),
    "receive_packets": ("rx_pkts", "rdma_rx_packets", "rcvd_pkts", "rx_rdma_ucast_pkts"),
    "transmit_packets": ("tx_pkts", "rdma_tx_packets", "sent_pkts", "tx_rdma_ucast_pkts"),
}
"""Names that different drivers use for the same counter, by gangwatch's name for it. The metric is
``gangwatch_rdma_NAME_total``."""

_LABELLED: dict[str, Meaning] = {
    file: Meaning("gangwatch_rdma_operation_bytes_total", (("operation", operation), ("side", side)))
    for file, operation, side in (
        ("send_bytes", "send", "requester"),
        ("recv_bytes", "send", "responder"),
        ("rdma_read_bytes", "read", "requester"),
        ("rdma_read_resp_bytes", "read", "responder"),
        ("rdma_write_bytes", "write", "requester"),
        ("rdma_write_recv_bytes", "write", "responder"),
    )
} | {
    f"rdma_{operation}_wr_err": Meaning("gangwatch_rdma_work_request_errors_total", (("operation", operation),))
    for operation in ("read", "write")
}

_LIFESPAN = Meaning("gangwatch_rdma_statistics_lifespan_seconds", gauge=True, scale=1e-3)

_OPEN = "active_"
"""Prefix of the bnxt_re values that are gauges instead of counters: numbers of open objects."""

_MLX5_NARROW = frozenset(
    {
        "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "out_of_buffer",
        "out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err",
        "local_ack_timeout_err", "resp_local_length_error", "resp_cqe_error", "req_cqe_error",
        "req_remote_invalid_request", "req_remote_access_errors", "resp_remote_access_errors", "resp_cqe_flush_error",
        "req_cqe_flush_error", "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans",
        "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps", "roce_slow_restart_trans",
    }
)  # fmt: skip
"""Counters of mlx5 that have 32 bits: the q-counters (mlx5_ib_query_q_counters). The other counters of mlx5 have 64
bits."""

MLX5 = frozenset({"mlx5", "mlx5_core", "mlx5_ib"})

FIRST = "rx_write_requests"
"""Counter of mlx5 that must be read first. When it is read, mlx5 queries all counters of the device. For the next 10 ms
it returns the others from memory. A read of another counter does not refresh the rest and is a separate firmware
command (hw_stat_port_show, lifespan)."""

_FAST_PORT = frozenset(
    f"gangwatch_rdma_port_{name}_total"
    for name in ("receive_bytes", "transmit_bytes", "transmit_wait", "transmit_discards")
)
_FAST = _FAST_PORT | frozenset(
    f"gangwatch_rdma_{name}_total"
    for name in (
        "write_requests_received",  # FIRST
        "ecn_marked_packets", "cnp_sent", "cnp_handled", "adaptive_retransmissions", "out_of_sequence",
        "sequence_naks_received", "ack_timeouts", "retransmitted_packets", "out_of_buffer", "receive_drops",
        "rnr_naks_received", "receive_bytes", "transmit_bytes",
    )
)  # fmt: skip
"""Metrics that are read every second: bytes, and counters of congestion and loss. Packets, requests and connection
failures are read less often."""

_BY_FILE: dict[str, Meaning] = {
    file: Meaning(f"gangwatch_rdma_{name}_total") for name, files in _SAME_THING.items() for file in files
} | _LABELLED


def port_counter(file: str) -> Meaning:
    """Return the metric and labels of a file of ports/*/counters.

    A counter without a metric in the catalogue is published under the file's name.
    """
    name = PORT_COUNTERS.get(file)
    return own_name(file) if name is None else Meaning(f"gangwatch_rdma_port_{name}_total")


def hardware_counter(driver: str, file: str) -> Meaning:
    """Return the metric and labels of a driver's hardware counter.

    A counter without a metric in the catalogue is published under the driver's name for it.
    """
    if file == "lifespan":
        return _LIFESPAN
    if file.startswith(_OPEN):
        return Meaning("gangwatch_rdma_resources", (("resource", file.removeprefix(_OPEN)),), gauge=True)
    # irdma's newest names have spaces in some kernels and underscores in others.
    meaning = _BY_FILE.get(file.replace(" ", "_")) or own_name(file)
    if driver in MLX5 and file.removeprefix("vport_") in _MLX5_NARROW:
        return meaning._replace(width=32)
    return meaning


def own_name(file: str) -> Meaning:
    """Return the metric and labels of a counter that is published under the driver's name for it."""
    return Meaning("gangwatch_rdma_hw_counters_total", (("counter", file),))


def is_fast(meaning: Meaning) -> bool:
    """Return whether the series is read every second."""
    return meaning.metric in _FAST
