"""Metrics of RDMA devices: ports, hardware counters with the same name for every driver, and the physical port.

Labels: ``device`` is the RDMA device (mlx5_0), ``port`` its port number in sysfs ('' if the driver counts for the whole
device). PCI address, netdev and firmware are labels of the ``_info`` series, with which queries can be joined.
"""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_PORT = ("device", "port")
_OPERATION = ("device", "operation", "port")
_DIRECTION = ("device", "direction", "port")
_PRIORITY = ("device", "direction", "port", "priority")

_COUNTERS = "/sys/class/infiniband/*/ports/*/counters"
_HW_COUNTERS = "/sys/class/infiniband/*/ports/*/hw_counters, or RDMA netlink STAT_GET"
_ETHTOOL = "ethtool statistics of the port's netdev"

MICROSECONDS = 1e-6
WORDS = 4.0
"""Number of bytes in a word, the unit of a port's data counters. See InfiniBand Architecture 1.4, 16.1.3.5,
PortXmitData."""


OPERATIONS = ("write", "read", "atomic", "send")


def _port(name: str, help: str, compatibility: str, *, scale: float = 1.0, unit: str = "") -> Metric:
    """Return the catalogue entry of a counter in a port's folder ``counters``.

    compatibility: node_exporter's name of the counter, without its prefix.
    """
    inside = "words of 4 bytes" if scale == WORDS else ""
    compatible = f"node_infiniband_{compatibility}" if compatibility else ""
    return Metric(
        f"gangwatch_rdma_port_{name}_total", "counter", help, unit, _PORT, _COUNTERS, scale, inside, compatible
    )


def _hardware(
    name: str, help: str, compatibility: str = "", *, labels: tuple[str, ...] = _PORT, unit: str = ""
) -> Metric:
    """Return the catalogue entry of a hardware counter. compatibility: node_exporter's name, without its prefix."""
    compatible = f"node_infiniband_{compatibility}" if compatibility else ""
    return Metric(f"gangwatch_rdma_{name}_total", "counter", help, unit, labels, _HW_COUNTERS, compatibility=compatible)


def _ethtool(name: str, help: str, labels: tuple[str, ...] = _PORT, *, unit: str = "") -> Metric:
    return Metric(f"gangwatch_rdma_{name}_total", "counter", help, unit, labels, _ETHTOOL)


_SATURATES = " The counter stops at its maximum and does not wrap (InfiniBand Architecture, 16.1.3.5)."

RDMA: tuple[Metric, ...] = (
    # --- inventory ---
    Metric("gangwatch_rdma_device_info", "info",
           "Board, firmware, driver and location of the RDMA device. For a virtual function, physical_function is the "
           "PCI address of its physical function; otherwise it is empty.", "",
           ("board_id", "device", "driver", "firmware_version", "hca_type", "numa_node", "pci_address",
            "physical_function"), "/sys/class/infiniband/*", compatibility="node_infiniband_info"),
    Metric("gangwatch_rdma_port_info", "info", "Link layer and netdev of the port.", "",
           ("device", "link_layer", "netdev", "port"), "/sys/class/infiniband/*/ports/*"),
    Metric("gangwatch_rdma_devices", "gauge", "RDMA devices read by the agent.", "", (), "/sys/class/infiniband"),
    Metric("gangwatch_rdma_devices_excluded", "gauge",
           "RDMA devices not read by the agent: NVSwitch management NICs and devices excluded by configuration.", "",
           (),
           "/sys/class/infiniband"),
    Metric("gangwatch_rdma_files_unreadable", "gauge",
           "Counter files of the device that return an error or no number. Absent until the agent has read them all. "
           "It retries an unsupported file after 10 minutes.", "", ("device",), "the agent"),
    Metric("gangwatch_rdma_statistics_source_info", "info",
           "Source of the device's hardware counters: netlink, files, or the namespace of a container.", "",
           ("device", "source"), "the agent"),
    Metric("gangwatch_rdma_namespaces_exclusive", "gauge",
           "1 if RDMA devices assigned to a container are no longer visible on the host (`rdma system show`).", "", (),
           "netlink SYS_GET"),
    Metric("gangwatch_rdma_namespaces_unreadable", "gauge",
           "Network namespaces of containers that the agent could not enter to read RDMA counters.", "", (),
           "setns(2)"),

    # --- the port's state ---
    Metric("gangwatch_rdma_port_state", "gauge",
           "State of the port: 1 down, 2 initialising, 3 armed, 4 active, 5 active-defer.", "", _PORT,
           "ports/*/state", compatibility="node_infiniband_state_id"),
    Metric("gangwatch_rdma_port_physical_state", "gauge",
           "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovering.", "",
           _PORT, "ports/*/phys_state", compatibility="node_infiniband_physical_state_id"),
    Metric("gangwatch_rdma_port_rate_bytes_per_second", "gauge", "Current signalling rate of the port.",
           "bytes_per_second", _PORT, "ports/*/rate", compatibility="node_infiniband_rate_bytes_per_second"),
    Metric("gangwatch_rdma_port_lanes", "gauge", "Current number of lanes of the port.", "", _PORT, "ports/*/rate"),
    Metric("gangwatch_rdma_statistics_lifespan_seconds", "gauge",
           "Maximum age of a hardware counter: the driver's interval between queries of the device.", "seconds",
           _PORT, "hw_counters/lifespan", compatibility="node_infiniband_lifespan_seconds"),

    # --- port counters ---
    _port("receive_bytes", "Bytes received by the port; with an Ethernet link layer only RDMA traffic.",
          "port_data_received_bytes_total", scale=WORDS, unit="bytes"),
    _port("transmit_bytes", "Bytes sent by the port; with an Ethernet link layer only RDMA traffic.",
          "port_data_transmitted_bytes_total", scale=WORDS, unit="bytes"),
    _port("receive_packets", "Packets received by the port, including those with errors.",
          "port_packets_received_total"),
    _port("transmit_packets", "Packets sent by the port, including those with errors.",
          "port_packets_transmitted_total"),
    _port("unicast_receive_packets", "Unicast packets received.", "unicast_packets_received_total"),
    _port("unicast_transmit_packets", "Unicast packets sent.", "unicast_packets_transmitted_total"),
    _port("multicast_receive_packets", "Multicast packets received.", "multicast_packets_received_total"),
    _port("multicast_transmit_packets", "Multicast packets sent.", "multicast_packets_transmitted_total"),
    _port("transmit_wait", "Ticks in which the port had data to send and could not send it: back-pressure. The "
          "length of a tick depends on the device.", "port_transmit_wait_total"),
    _port("transmit_discards", "Packets not sent because the port was down or congested." + _SATURATES,
          "port_discards_transmitted_total"),
    _port("receive_discards", "Packets dropped on receipt because the port was down or congested." + _SATURATES,
          "port_discards_received_total"),
    _port("receive_errors", "Packets received with an error." + _SATURATES, "port_errors_received_total"),
    _port("receive_remote_physical_errors",
          "Packets received with the mark that another port found them damaged." + _SATURATES,
          "port_receive_remote_physical_errors_total"),
    _port("receive_switch_relay_errors", "Packets that a switch could not forward." + _SATURATES,
          "port_receive_switch_relay_errors_total"),
    _port("receive_constraint_errors",
          "Packets dropped on receipt because of a partition or version rule." + _SATURATES,
          "port_constraint_errors_received_total"),
    _port("transmit_constraint_errors", "Packets not sent because of a partition or version rule." + _SATURATES,
          "port_constraint_errors_transmitted_total"),
    _port("symbol_errors", "Minor errors on the lanes." + _SATURATES, "symbol_error_total"),
    _port("link_error_recoveries", "Times the link recovered from an error without going down." + _SATURATES,
          "link_error_recovery_total"),
    _port("link_downed", "Times the link could not recover and went down." + _SATURATES, "link_downed_total"),
    _port("link_integrity_errors", "Times local physical errors passed the threshold." + _SATURATES,
          "local_link_integrity_errors_total"),
    _port("buffer_overrun_errors", "Times buffers overran in consecutive flow-control periods." + _SATURATES,
          "excessive_buffer_overrun_errors_total"),
    _port("vl15_dropped", "Subnet-management packets dropped because of insufficient resources." + _SATURATES,
          "vl15_dropped_total"),

    # --- hardware counters: congestion ---
    _hardware("ecn_marked_packets", "Packets received with the ECN mark: the path to this port is congested.",
              "np_ecn_marked_roce_packets_received_total"),
    _hardware("cnp_sent", "Congestion notifications (CNP) sent, to request that a sender slows down.",
              "np_cnp_packets_sent_total"),
    _hardware("cnp_handled", "Congestion notifications (CNP) handled: this sender slowed down.",
              "rp_cnp_packets_handled_total"),
    _hardware("cnp_ignored", "Congestion notifications (CNP) ignored because congestion control is off on this port.",
              "rp_cnp_ignored_packets_received_total"),
    _hardware("adaptive_retransmissions", "Adaptive retransmissions, with a timeout set by the adapter.",
              "roce_adp_retransmits_total"),
    _hardware("adaptive_retransmission_timeouts", "Timeouts of adaptive retransmissions.",
              "roce_adp_retransmits_timeout_total"),
    _hardware("slow_restarts", "Times slow restart was used after packet loss.", "roce_slow_restart_used_total"),
    _hardware("slow_restart_cnps", "Congestion notifications (CNP) generated by a slow restart.",
              "roce_slow_restart_cnps_total"),
    _hardware("slow_restart_transitions", "Changes into the slow-restart state.", "roce_slow_restart_total"),

    # --- hardware counters: loss, order, corruption ---
    _hardware("out_of_sequence", "Packets received out of order because earlier packets were lost or reordered.",
              "out_of_sequence_packets_received_total"),
    _hardware("sequence_naks_received",
              "Sequence-error NAKs received: packets sent by this port were lost or reordered.",
              "packet_sequence_errors_total"),
    _hardware("implied_naks", "Acknowledgements whose sequence number implies that packets were lost.",
              "implied_nak_seq_errors_total"),
    _hardware("ack_timeouts", "Acknowledgement timeouts with retries left.",
              "local_ack_timeout_errors_total"),
    _hardware("retransmitted_packets", "Packets retransmitted."),
    _hardware("retransmitted_bytes", "Bytes retransmitted.", unit="bytes"),
    _hardware("duplicate_requests", "Duplicate requests received.",
              "duplicate_requests_packets_total"),
    _hardware("icrc_errors", "Packets received with a wrong invariant CRC: corrupted in transit.",
              "rx_icrc_encapsulated_errors_total"),

    # --- hardware counters: a receiver under pressure ---
    _hardware("out_of_buffer", "Packets dropped because the application had posted no receive buffer.",
              "out_of_buffer_drops_total"),
    _hardware("receive_drops", "Packets dropped by the adapter on receipt."),
    _hardware("rnr_naks_received", "Receiver-not-ready NAKs received, with retries left.",
              "rnr_nak_retry_packets_received_total"),
    _hardware("rnr_naks_sent", "Receiver-not-ready NAKs sent."),

    # --- hardware counters: queue-pair failures ---
    _hardware("transport_retries_exceeded", "Queue pairs failed because no acknowledgement arrived after all retries."),
    _hardware("rnr_retries_exceeded", "Queue pairs failed because the receiver was not ready after all retries."),
    _hardware("unresponsive_remote", "Times the remote end did not respond."),
    _hardware("impaired_connections", "Connections to a remote end found impaired."),
    _hardware("requester_completion_errors", "Requests sent that completed with an error.",
              "req_cqes_errors_total"),
    _hardware("responder_completion_errors", "Receives that completed with an error.",
              "resp_cqes_errors_total"),
    _hardware("requester_flush_errors",
              "Requests flushed when their queue pair was closed. Increases at the end of a job.",
              "req_cqes_flush_errors_total"),
    _hardware("responder_flush_errors",
              "Receives flushed when their queue pair was closed. Increases at the end of a job.",
              "resp_cqes_flush_errors_total"),
    _hardware("requester_access_errors", "Requests sent and denied by the remote memory region.",
              "req_remote_access_errors_total"),
    _hardware("responder_access_errors", "Requests received and denied by the local memory region.",
              "resp_remote_access_errors_total"),
    _hardware("remote_invalid_requests", "Requests sent and rejected as invalid by the remote end.",
              "req_remote_invalid_request_errors_total"),
    _hardware("local_length_errors", "Messages received that exceed their buffer.",
              "resp_local_length_errors_total"),
    Metric("gangwatch_rdma_work_request_errors_total", "counter", "Work requests that ended with an error.", "",
           _OPERATION, _HW_COUNTERS),

    # --- hardware counters: volume ---
    *(
        _hardware(f"{operation}_requests_received", f"RDMA {operation} requests received.",
                  f"rx_{operation}_requests_total" if operation != "send" else "")
        for operation in OPERATIONS
    ),
    *(_hardware(f"{operation}_requests_sent", f"RDMA {operation} requests sent.") for operation in OPERATIONS),
    _hardware("dct_connects", "Connection requests of the dynamically connected transport (DCT) received.",
              "rx_dct_connect_requests_total"),
    _hardware("receive_bytes", "Bytes of RDMA traffic received, counted by the driver.", unit="bytes"),
    _hardware("transmit_bytes", "Bytes of RDMA traffic sent, counted by the driver.", unit="bytes"),
    _hardware("receive_packets", "Packets of RDMA traffic received, counted by the driver."),
    _hardware("transmit_packets", "Packets of RDMA traffic sent, counted by the driver."),
    Metric("gangwatch_rdma_operation_bytes_total", "counter",
           "Payload bytes by operation and by the role of this device (side).", "bytes",
           ("device", "operation", "port", "side"), _HW_COUNTERS),
    Metric("gangwatch_rdma_resources", "gauge", "Open driver objects, such as queue pairs and memory regions.", "",
           ("device", "port", "resource"), _HW_COUNTERS),
    Metric("gangwatch_rdma_hw_counters_total", "counter",
           "All other hardware counters, with the driver's name as label counter.", "", ("counter", "device", "port"),
           _HW_COUNTERS),

    # --- pause frames and priorities ---
    Metric("gangwatch_rdma_pause_frames_total", "counter",
           "Pause frames. A received frame pauses this port, a sent frame pauses the remote port. priority is 'global' "
           "for pauses of the whole link.", "", _PRIORITY, _ETHTOOL,
           compatibility="rdma_roce_pfc_pause_frames_total"),
    Metric("gangwatch_rdma_pause_seconds_total", "counter",
           "Time for which transmission was paused: receive, of this port; transmit, of the remote port.", "seconds",
           _PRIORITY, _ETHTOOL, MICROSECONDS, "us", "rdma_roce_pfc_pause_duration_total"),
    Metric("gangwatch_rdma_pause_transitions_total", "counter", "Transitions from transmitting to paused.", "",
           _PRIORITY,
           _ETHTOOL, compatibility="rdma_roce_pfc_pause_transitions_total"),
    Metric("gangwatch_rdma_pause_storm_events_total", "counter",
           "Times this device paused the network for longer than the watermark.", "",
           ("device", "port", "severity"), _ETHTOOL),
    Metric("gangwatch_rdma_priority_discards_total", "counter",
           "Packets dropped on receipt by priority and reason: no buffer, congestion control, or other.", "",
           ("device", "port", "priority", "reason"), _ETHTOOL),
    Metric("gangwatch_rdma_priority_marked_packets_total", "counter",
           "Packets ECN-marked because of congestion in this device's receive buffer.", "",
           ("device", "port", "priority"), _ETHTOOL),
    Metric("gangwatch_rdma_priority_bytes_total", "counter", "Bytes by direction and priority.", "bytes", _PRIORITY,
           _ETHTOOL),
    Metric("gangwatch_rdma_priority_packets_total", "counter", "Packets by direction and priority.", "", _PRIORITY,
           _ETHTOOL),

    # --- the physical port ---
    Metric("gangwatch_rdma_physical_bytes_total", "counter", "Bytes on the wire, all traffic.", "bytes", _DIRECTION,
           _ETHTOOL),
    Metric("gangwatch_rdma_physical_packets_total", "counter", "Packets on the wire, all traffic.", "", _DIRECTION,
           _ETHTOOL),
    Metric("gangwatch_rdma_physical_discards_total", "counter",
           "Good packets dropped by the port because a buffer was full.",
           "", _DIRECTION, _ETHTOOL),
    _ethtool("physical_transmit_errors", "Packets not sent because of an error."),
    _ethtool("physical_symbol_errors", "Symbols received in error."),
    _ethtool("physical_uncorrected_symbols", "Symbols that forward error correction could not correct."),
    _ethtool("physical_corrected_bit_errors", "Bits corrected by forward error correction."),
    _ethtool("physical_received_bit",
             "Bits received. Divide the corrected bits by this counter for the raw bit error rate."),
    Metric("gangwatch_rdma_physical_lane_errors_total", "counter", "Bits corrected on the lane.", "",
           ("device", "lane", "port"), _ETHTOOL),
    _ethtool("physical_crc_errors", "Frames received with a wrong checksum."),
    _ethtool("physical_link_down_events", "Times the physical link went down."),
    _ethtool("physical_buffer_threshold_events", "Times the receive buffer exceeded its threshold."),
    Metric("gangwatch_rdma_module_events_total", "counter", "Events of the cable or transceiver.", "",
           ("device", "event", "port"), _ETHTOOL),
    Metric("gangwatch_rdma_vport_bytes_total", "counter", "Bytes of RDMA unicast traffic of this function.", "bytes",
           _DIRECTION, _ETHTOOL),
    Metric("gangwatch_rdma_vport_packets_total", "counter", "Packets of RDMA unicast traffic of this function.", "",
           _DIRECTION, _ETHTOOL),
    _ethtool("netdev_out_of_buffer", "Packets dropped by the netdev because its queue had no buffer."),

    # --- the device's own PCIe side ---
    _ethtool("pcie_buffer_overflow", "Packets dropped because the device could not transfer them over PCIe in time."),
    Metric("gangwatch_rdma_pcie_signal_integrity_errors_total", "counter",
           "PCIe physical-layer errors counted by the device.", "", _DIRECTION, _ETHTOOL),
    Metric("gangwatch_rdma_pcie_stalled_ratio", "gauge",
           "Share of the last second in which memory reads or writes of the device had no PCIe credits.",
           "ratio", _OPERATION, _ETHTOOL),
    Metric("gangwatch_rdma_pcie_stall_events_total", "counter",
           "Seconds in which PCIe stalled the device for more than 30 % of the time.", "", _OPERATION, _ETHTOOL),
)  # fmt: skip
