"""File names of each RDMA driver, from its source in Linux 6.12, and names of mlx5's statistics."""

from __future__ import annotations

PORT_COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets", "port_rcv_constraint_errors",
    "port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards",
    "port_xmit_packets", "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
)  # fmt: skip

MLX5 = (
    "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "out_of_buffer",
    "out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err",
    "local_ack_timeout_err", "resp_local_length_error", "resp_cqe_error", "req_cqe_error",
    "req_remote_invalid_request", "req_remote_access_errors", "resp_remote_access_errors", "resp_cqe_flush_error",
    "req_cqe_flush_error", "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans",
    "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps", "roce_slow_restart_trans",
    "rp_cnp_ignored", "rp_cnp_handled", "np_ecn_marked_roce_packets", "np_cnp_sent", "rx_icrc_encapsulated",
)  # fmt: skip
BNXT_RE = (
    "active_pds", "active_ahs", "active_qps", "active_srqs", "active_cqs", "active_mrs", "active_mws", "rx_pkts",
    "rx_bytes", "tx_pkts", "tx_bytes", "recoverable_errors", "rx_roce_errors", "rx_roce_discards", "to_retransmits",
    "seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd", "missing_resp", "unrecoverable_err", "bad_resp_err",
    "local_qp_op_err", "local_protection_err", "mem_mgmt_op_err", "remote_invalid_req_err", "remote_access_err",
    "remote_op_err", "dup_req", "res_exceed_max", "res_length_mismatch", "res_exceeds_wqe", "res_opcode_err",
    "res_rx_invalid_rkey", "res_tx_pci_err", "res_rx_pci_err", "oos_drop_count", "tx_atomic_req", "tx_read_req",
    "tx_read_resp", "tx_write_req", "tx_send_req", "rx_atomic_req", "rx_read_req", "rx_read_resp", "rx_write_req",
    "rx_send_req", "rx_roce_good_pkts", "rx_roce_good_bytes", "rx_out_of_buffer", "tx_cnp_pkts", "rx_cnp_pkts",
    "rx_ecn_marked_pkts", "pacing_reschedule", "pacing_complete", "pacing_alerts", "db_fifo_register",
)  # fmt: skip
IRDMA = (
    "ip4InDiscards", "ip4InTruncatedPkts", "ip4OutNoRoutes", "rxVlanErrors", "ip4InOctets", "ip4InPkts",
    "ip4OutOctets", "ip4OutPkts", "InRdmaReads", "InRdmaSends", "InRdmaWrites", "OutRdmaReads", "OutRdmaSends",
    "OutRdmaWrites", "RdmaBnd", "RdmaInv", "cnpHandled", "cnpIgnored", "cnpSent", "RxUDP", "TxUDP", "RxECNMrkd",
    "RetransSegs", "InOptErrors", "InProtoErrors", "RNR sent", "RNR received", "Nak Sequence Error", "RTO",
    "Rcvd Out of order packets", "CRC errors",
)  # fmt: skip
EFA = (
    "tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
    "rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wrs",
    "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes", "retrans_bytes", "retrans_pkts",
    "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events",
)  # fmt: skip
EFA_DEVICE = (
    "submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err",
    "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err",
)  # fmt: skip
RXE = (
    "sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err",
    "rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
    "send_err", "link_downed", "rdma_sends", "rdma_recvs",
)  # fmt: skip

HARDWARE = {"mlx5_core": MLX5, "bnxt_en": BNXT_RE, "bnxt_re": BNXT_RE, "irdma": IRDMA, "ice": IRDMA, "efa": EFA,
            "rxe": RXE}  # fmt: skip
PREFIX = {"mlx5_core": "mlx5_", "bnxt_en": "bnxt_re", "bnxt_re": "bnxt_re", "irdma": "irdma", "ice": "irdma",
          "efa": "rdmap", "rxe": "rxe"}  # fmt: skip

LOSSLESS_PRIORITY = 3
"""Priority of RoCE traffic, with flow control, as in most fabrics."""


def mlx5_statistics() -> tuple[str, ...]:
    """Return the 200 names that ``ethtool -S`` prints for a ConnectX-7 port with flow control and four queues."""
    names = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes", "tx_queue_stopped", "rx_out_of_buffer"]
    names += ["rx_vport_rdma_unicast_packets", "rx_vport_rdma_unicast_bytes"]
    names += ["tx_vport_rdma_unicast_packets", "tx_vport_rdma_unicast_bytes"]
    names += ["tx_packets_phy", "rx_packets_phy", "rx_crc_errors_phy", "tx_bytes_phy", "rx_bytes_phy"]
    names += ["rx_symbol_err_phy", "rx_discards_phy", "tx_discards_phy", "tx_errors_phy", "link_down_events_phy"]
    names += ["rx_pcs_symbol_err_phy", "rx_corrected_bits_phy", "rx_bits_phy"]
    names += [f"rx_err_lane_{lane}_phy" for lane in range(4)]
    names += ["rx_buffer_passed_thres_phy", "rx_pci_signal_integrity", "tx_pci_signal_integrity"]
    names += ["outbound_pci_buffer_overflow", "outbound_pci_stalled_rd", "outbound_pci_stalled_wr"]
    names += ["outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events"]
    for priority in range(8):
        names += [f"rx_prio{priority}_{what}" for what in ("buf_discard", "cong_discard", "marked")]
    for priority in range(8):
        names += [f"rx_prio{priority}_{what}" for what in ("bytes", "packets", "discards")]
        names += [f"tx_prio{priority}_{what}" for what in ("bytes", "packets")]
    for direction in ("rx", "tx"):
        names += [f"{direction}_prio{LOSSLESS_PRIORITY}_pause", f"{direction}_prio{LOSSLESS_PRIORITY}_pause_duration"]
    names += [f"rx_prio{LOSSLESS_PRIORITY}_pause_transition"]
    names += ["tx_pause_storm_warning_events", "tx_pause_storm_error_events"]
    names += [f"module_{event}" for event in ("unplug", "bus_stuck", "high_temp", "bad_shorted")]
    for queue in range(4):
        names += [
            f"{kind}{queue}_{what}" for kind in ("rx", "tx") for what in ("packets", "bytes", "csum_none", "cqes")
        ]
        names += [f"ch{queue}_{what}" for what in ("events", "poll", "arm", "aff_change")]
    return tuple(names)
