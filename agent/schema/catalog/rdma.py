"""RDMA devices: ports, the driver's hardware counters under one name for every driver, and the port's physical side.

Labels: ``device`` is the RDMA device (mlx5_0), ``port`` its port as sysfs numbers it ('' for what the driver counts for
the device and not for a port). PCI address, netdev and firmware stand in the ``_info`` series, to join on.
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
"""Data counters of a port are in words of four octets (InfiniBand Architecture 1.4, 16.1.3.5, PortXmitData)."""


OPERATIONS = ("write", "read", "atomic", "send")


def _port(name: str, help: str, compatibility: str, *, scale: float = 1.0, unit: str = "") -> Metric:
    """A counter of the port's counters folder; `compatibility` without node_exporter's prefix."""
    inside = "words of 4 bytes" if scale == WORDS else ""
    compatible = f"node_infiniband_{compatibility}" if compatibility else ""
    return Metric(
        f"gangwatch_rdma_port_{name}_total", "counter", help, unit, _PORT, _COUNTERS, scale, inside, compatible
    )


def _hardware(
    name: str, help: str, compatibility: str = "", *, labels: tuple[str, ...] = _PORT, unit: str = ""
) -> Metric:
    """A hardware counter; `compatibility` without node_exporter's prefix."""
    compatible = f"node_infiniband_{compatibility}" if compatibility else ""
    return Metric(f"gangwatch_rdma_{name}_total", "counter", help, unit, labels, _HW_COUNTERS, compatibility=compatible)


def _ethtool(name: str, help: str, labels: tuple[str, ...] = _PORT, *, unit: str = "") -> Metric:
    return Metric(f"gangwatch_rdma_{name}_total", "counter", help, unit, labels, _ETHTOOL)


_SATURATES = " Stays at its highest value once it is reached (InfiniBand Architecture, 16.1.3.5)."

RDMA: tuple[Metric, ...] = (
    # --- what there is ---
    Metric("gangwatch_rdma_device_info", "info",
           "Board, firmware, driver and place of the RDMA device; physical_function is the PCI address of a virtual "
           "function's physical one, empty for a device that is none.", "",
           ("board_id", "device", "driver", "firmware_version", "hca_type", "numa_node", "pci_address",
            "physical_function"), "/sys/class/infiniband/*", compatibility="node_infiniband_info"),
    Metric("gangwatch_rdma_port_info", "info", "Link layer and netdev of the port.", "",
           ("device", "link_layer", "netdev", "port"), "/sys/class/infiniband/*/ports/*"),
    Metric("gangwatch_rdma_devices", "gauge", "RDMA devices that are read.", "", (), "/sys/class/infiniband"),
    Metric("gangwatch_rdma_devices_excluded", "gauge",
           "RDMA devices that are not read: NVSwitch management NICs and those that the configuration names.", "", (),
           "/sys/class/infiniband"),
    Metric("gangwatch_rdma_files_unreadable", "gauge",
           "Counter files of the device that answer with an error or no number; they are tried again after ten "
           "minutes.", "", ("device",), "itself"),
    Metric("gangwatch_rdma_statistics_source_info", "info",
           "Where the device's hardware counters are read: netlink, files, or the namespace of a container.", "",
           ("device", "source"), "itself"),
    Metric("gangwatch_rdma_namespaces_exclusive", "gauge",
           "Whether a device that is given to a container leaves the host (`rdma system show`).", "", (),
           "netlink SYS_GET"),
    Metric("gangwatch_rdma_namespaces_unreadable", "gauge",
           "Containers' network namespaces that could not be entered to read their devices' counters.", "", (),
           "setns(2)"),

    # --- the port's state ---
    Metric("gangwatch_rdma_port_state", "gauge",
           "State of the port: 1 down, 2 initialising, 3 armed, 4 active, 5 active and deferring.", "", _PORT,
           "ports/*/state", compatibility="node_infiniband_state_id"),
    Metric("gangwatch_rdma_port_physical_state", "gauge",
           "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovering.", "",
           _PORT, "ports/*/phys_state", compatibility="node_infiniband_physical_state_id"),
    Metric("gangwatch_rdma_port_rate_bytes_per_second", "gauge", "Signalling rate of the port as it is linked now.",
           "bytes_per_second", _PORT, "ports/*/rate", compatibility="node_infiniband_rate_bytes_per_second"),
    Metric("gangwatch_rdma_port_lanes", "gauge", "Lanes of the port as it is linked now.", "", _PORT, "ports/*/rate"),
    Metric("gangwatch_rdma_statistics_lifespan_seconds", "gauge",
           "How old a hardware counter may be when it is read: the driver asks the device no more often.", "seconds",
           _PORT, "hw_counters/lifespan", compatibility="node_infiniband_lifespan_seconds"),

    # --- port counters ---
    _port("receive_bytes", "Bytes received by the port, RDMA traffic only where the link layer is Ethernet.",
          "port_data_received_bytes_total", scale=WORDS, unit="bytes"),
    _port("transmit_bytes", "Bytes sent by the port, RDMA traffic only where the link layer is Ethernet.",
          "port_data_transmitted_bytes_total", scale=WORDS, unit="bytes"),
    _port("receive_packets", "Packets received by the port, those with errors too.",
          "port_packets_received_total"),
    _port("transmit_packets", "Packets sent by the port, those with errors too.", "port_packets_transmitted_total"),
    _port("unicast_receive_packets", "Unicast packets received.", "unicast_packets_received_total"),
    _port("unicast_transmit_packets", "Unicast packets sent.", "unicast_packets_transmitted_total"),
    _port("multicast_receive_packets", "Multicast packets received.", "multicast_packets_received_total"),
    _port("multicast_transmit_packets", "Multicast packets sent.", "multicast_packets_transmitted_total"),
    _port("transmit_wait", "Ticks in which the port had something to send and could not: back-pressure. The tick is "
          "the device's own.", "port_transmit_wait_total"),
    _port("transmit_discards", "Packets not sent because the port was down or congested." + _SATURATES,
          "port_discards_transmitted_total"),
    _port("receive_discards", "Packets dropped on receipt because the port was down or congested." + _SATURATES,
          "port_discards_received_total"),
    _port("receive_errors", "Packets received with an error." + _SATURATES, "port_errors_received_total"),
    _port("receive_remote_physical_errors", "Packets received that were marked bad on their way." + _SATURATES,
          "port_receive_remote_physical_errors_total"),
    _port("receive_switch_relay_errors", "Packets that a switch could not forward." + _SATURATES,
          "port_receive_switch_relay_errors_total"),
    _port("receive_constraint_errors", "Packets dropped on receipt by a partition or version rule." + _SATURATES,
          "port_constraint_errors_received_total"),
    _port("transmit_constraint_errors", "Packets not sent because of a partition or version rule." + _SATURATES,
          "port_constraint_errors_transmitted_total"),
    _port("symbol_errors", "Minor errors on the lanes." + _SATURATES, "symbol_error_total"),
    _port("link_error_recoveries", "Times the link recovered from an error by itself." + _SATURATES,
          "link_error_recovery_total"),
    _port("link_downed", "Times the link could not recover and went down." + _SATURATES, "link_downed_total"),
    _port("link_integrity_errors", "Times local physical errors passed the threshold." + _SATURATES,
          "local_link_integrity_errors_total"),
    _port("buffer_overrun_errors", "Times buffers overran in consecutive flow-control periods." + _SATURATES,
          "excessive_buffer_overrun_errors_total"),
    _port("vl15_dropped", "Subnet-management packets dropped for want of resources." + _SATURATES,
          "vl15_dropped_total"),

    # --- hardware counters: congestion ---
    _hardware("ecn_marked_packets", "Packets received with the congestion mark: the way here is congested.",
              "np_ecn_marked_roce_packets_received_total"),
    _hardware("cnp_sent", "Congestion notifications sent, to tell a sender to slow down.",
              "np_cnp_packets_sent_total"),
    _hardware("cnp_handled", "Congestion notifications obeyed: this sender slowed down.",
              "rp_cnp_packets_handled_total"),
    _hardware("cnp_ignored", "Congestion notifications ignored: congestion control is off here.",
              "rp_cnp_ignored_packets_received_total"),
    _hardware("adaptive_retransmissions", "Retransmissions that the adapter timed by itself.",
              "roce_adp_retransmits_total"),
    _hardware("adaptive_retransmission_timeouts", "Timeouts of retransmissions that the adapter timed by itself.",
              "roce_adp_retransmits_timeout_total"),
    _hardware("slow_restarts", "Times sending was restarted slowly after loss.", "roce_slow_restart_used_total"),
    _hardware("slow_restart_cnps", "Congestion notifications raised by a slow restart.",
              "roce_slow_restart_cnps_total"),
    _hardware("slow_restart_transitions", "Changes into the slow-restart state.", "roce_slow_restart_total"),

    # --- hardware counters: loss, order, corruption ---
    _hardware("out_of_sequence", "Packets received out of order: some before them were lost or overtaken.",
              "out_of_sequence_packets_received_total"),
    _hardware("sequence_naks_received", "Refusals received for a packet out of order: ours were lost or overtaken.",
              "packet_sequence_errors_total"),
    _hardware("implied_naks", "Answers whose number implies that some were lost.", "implied_nak_seq_errors_total"),
    _hardware("ack_timeouts", "Times an acknowledgement did not come in time; retries were left.",
              "local_ack_timeout_errors_total"),
    _hardware("retransmitted_packets", "Packets sent again."),
    _hardware("retransmitted_bytes", "Bytes sent again.", unit="bytes"),
    _hardware("duplicate_requests", "Requests received that had been carried out before.",
              "duplicate_requests_packets_total"),
    _hardware("icrc_errors", "Packets whose invariant checksum was wrong: corrupted on the way.",
              "rx_icrc_encapsulated_errors_total"),

    # --- hardware counters: a receiver under pressure ---
    _hardware("out_of_buffer", "Packets dropped because the application had posted no receive buffer.",
              "out_of_buffer_drops_total"),
    _hardware("receive_drops", "Packets dropped on receipt by the adapter."),
    _hardware("rnr_naks_received", "Times the receiver was not ready; retries were left.",
              "rnr_nak_retry_packets_received_total"),
    _hardware("rnr_naks_sent", "Times this receiver was not ready."),

    # --- hardware counters: a queue pair that breaks ---
    _hardware("transport_retries_exceeded", "Queue pairs broken because no acknowledgement came after all retries."),
    _hardware("rnr_retries_exceeded", "Queue pairs broken because the receiver was never ready."),
    _hardware("unresponsive_remote", "Times the other end did not answer."),
    _hardware("impaired_connections", "Times a connection to another end was found impaired."),
    _hardware("requester_completion_errors", "Requests of this end that completed with an error.",
              "req_cqes_errors_total"),
    _hardware("responder_completion_errors", "Receives of this end that completed with an error.",
              "resp_cqes_errors_total"),
    _hardware("requester_flush_errors", "Requests flushed as their queue pair was torn down: rises at a job's end.",
              "req_cqes_flush_errors_total"),
    _hardware("responder_flush_errors", "Receives flushed as their queue pair was torn down: rises at a job's end.",
              "resp_cqes_flush_errors_total"),
    _hardware("requester_access_errors", "Requests of this end that the remote memory region did not allow.",
              "req_remote_access_errors_total"),
    _hardware("responder_access_errors", "Requests to this end that its memory region did not allow.",
              "resp_remote_access_errors_total"),
    _hardware("remote_invalid_requests", "Requests that the other end called invalid.",
              "req_remote_invalid_request_errors_total"),
    _hardware("local_length_errors", "Messages received that were longer than their buffer.",
              "resp_local_length_errors_total"),
    Metric("gangwatch_rdma_work_request_errors_total", "counter", "Work requests that ended with an error.", "",
           _OPERATION, _HW_COUNTERS),

    # --- hardware counters: volume ---
    *(
        _hardware(f"{operation}_requests_received", f"Requests of the other end: {operation}.",
                  f"rx_{operation}_requests_total" if operation != "send" else "")
        for operation in OPERATIONS
    ),
    *(_hardware(f"{operation}_requests_sent", f"Requests of this end: {operation}.") for operation in OPERATIONS),
    _hardware("dct_connects", "Requests for a dynamically connected transport.", "rx_dct_connect_requests_total"),
    _hardware("receive_bytes", "Bytes of RDMA traffic received, as the driver counts them.", unit="bytes"),
    _hardware("transmit_bytes", "Bytes of RDMA traffic sent, as the driver counts them.", unit="bytes"),
    _hardware("receive_packets", "Packets of RDMA traffic received, as the driver counts them."),
    _hardware("transmit_packets", "Packets of RDMA traffic sent, as the driver counts them."),
    Metric("gangwatch_rdma_operation_bytes_total", "counter",
           "Payload bytes by operation and by the side that this device has in it.", "bytes",
           ("device", "operation", "port", "side"), _HW_COUNTERS),
    Metric("gangwatch_rdma_resources", "gauge", "Objects of the driver that are open: queue pairs, memory regions.", "",
           ("device", "port", "resource"), _HW_COUNTERS),
    Metric("gangwatch_rdma_hw_counters_total", "counter",
           "Every other hardware counter, by the name that its driver gives it.", "", ("counter", "device", "port"),
           _HW_COUNTERS),

    # --- pause frames and priorities ---
    Metric("gangwatch_rdma_pause_frames_total", "counter",
           "Pause frames: received ones stop this sender, sent ones stop the network's. priority is 'global' for "
           "pause of the whole link.", "", _PRIORITY, _ETHTOOL, compatibility="rdma_roce_pfc_pause_frames_total"),
    Metric("gangwatch_rdma_pause_seconds_total", "counter",
           "Time for which sending was stopped: receive is this sender's, transmit the other end's.", "seconds",
           _PRIORITY, _ETHTOOL, MICROSECONDS, "us", "rdma_roce_pfc_pause_duration_total"),
    Metric("gangwatch_rdma_pause_transitions_total", "counter", "Changes from sending to paused.", "", _PRIORITY,
           _ETHTOOL, compatibility="rdma_roce_pfc_pause_transitions_total"),
    Metric("gangwatch_rdma_pause_storm_events_total", "counter",
           "Times this device held the network in pause for longer than the watermark.", "",
           ("device", "port", "severity"), _ETHTOOL),
    Metric("gangwatch_rdma_priority_discards_total", "counter",
           "Packets dropped on receipt by priority: for want of a buffer, by congestion control, or otherwise.", "",
           ("device", "port", "priority", "reason"), _ETHTOOL),
    Metric("gangwatch_rdma_priority_marked_packets_total", "counter",
           "Packets marked as having met congestion in this device's receive buffer.", "",
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
    Metric("gangwatch_rdma_physical_discards_total", "counter", "Good packets dropped by the port for want of room.",
           "", _DIRECTION, _ETHTOOL),
    _ethtool("physical_transmit_errors", "Packets that could not be sent for an error."),
    _ethtool("physical_symbol_errors", "Symbols received in error."),
    _ethtool("physical_uncorrected_symbols", "Symbols that forward error correction could not mend."),
    _ethtool("physical_corrected_bit_errors", "Bits mended by forward error correction."),
    _ethtool("physical_received_bit", "Bits received: corrected bits over these is the raw error rate."),
    Metric("gangwatch_rdma_physical_lane_errors_total", "counter", "Bits mended on the lane.", "",
           ("device", "lane", "port"), _ETHTOOL),
    _ethtool("physical_crc_errors", "Frames whose checksum was wrong."),
    _ethtool("physical_link_down_events", "Times the physical link went down."),
    _ethtool("physical_buffer_threshold_events", "Times the receive buffer passed its threshold."),
    Metric("gangwatch_rdma_module_events_total", "counter", "Events of the cable or transceiver.", "",
           ("device", "event", "port"), _ETHTOOL),
    Metric("gangwatch_rdma_vport_bytes_total", "counter", "Bytes of RDMA unicast traffic of this function.", "bytes",
           _DIRECTION, _ETHTOOL),
    Metric("gangwatch_rdma_vport_packets_total", "counter", "Packets of RDMA unicast traffic of this function.", "",
           _DIRECTION, _ETHTOOL),
    _ethtool("netdev_out_of_buffer", "Packets of the netdev dropped because its queue had no buffer."),

    # --- the device's own PCIe side ---
    _ethtool("pcie_buffer_overflow", "Packets dropped because the device could not get them over PCIe in time."),
    Metric("gangwatch_rdma_pcie_signal_integrity_errors_total", "counter",
           "PCIe physical-layer errors as the device counts them.", "", _DIRECTION, _ETHTOOL),
    Metric("gangwatch_rdma_pcie_stalled_ratio", "gauge",
           "Share of the last second in which the device wanted to read or write memory and PCIe had no credit.",
           "ratio", _OPERATION, _ETHTOOL),
    Metric("gangwatch_rdma_pcie_stall_events_total", "counter",
           "Seconds in which the device was stalled by PCIe for more than 30 %.", "", _OPERATION, _ETHTOOL),
)  # fmt: skip
