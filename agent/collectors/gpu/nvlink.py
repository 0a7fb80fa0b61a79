"""NVML fields of each NVLink: bytes sent are read every second, all others every ten seconds.

The counters depend on the generation. Up to NVLink 4 there are replays, recoveries and CRC errors of the data link
layer. From NVLink 5 on there are packets, symbol errors, forward error correction and bit error ratios, some of them
by lane. Each link's series are those fields that the GPU supports (nvml.h, field ids 32-59, 91, 96-119, 138-168,
201-250 and 289-295). NVML does not have the CRC errors by lane that nvidia-smi prints for NVLink before version 5.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pynvml

from agent.collectors.gpu.device import series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Values
from agent.sources.nvml.nvml_fields import (
    FieldBatch,
    Source,
    Wanted,
    counter,
    decoded,
    field_answers,
    field_number,
    gauge,
)

LINK_COUNT: int = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
"""NVML field with the number of a GPU's NVLinks. The constant NVML_NVLINK_MAX_LINKS is not used, because it depends on
the version of pynvml."""

MOST_LINKS = 72
"""Maximum number of NVLinks of a GPU that are read. NVML_GPM_METRIC_NVLINK_L71 is the highest link in nvml.h 13.5."""

DATA_SENT: int = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
"""NVML field with the payload bytes that a link has sent."""

RAW_ERRORS_LANE0, RAW_ERRORS_LANE1 = 289, 290
RAW_BER_LANE0, RAW_BER_LANE1, RAW_BER = 291, 292, 293
BLOCKS, RETRANSMITTED_BLOCKS = 294, 295
"""NVML fields that pynvml names from 13.595 on, which is newer than the oldest supported one."""

KIBIBYTE = 1024.0

_ERRORS = {
    "replay": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    "crc": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    "malformed_packet": pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    "buffer_overrun": pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    "receive": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    "receive_remote": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    "receive_general": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    "link_integrity": pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    "transmit_discard": pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    "effective": pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
}
"""Kinds of link errors, each with its NVML field. One field serves all links: the query contains the number of the
link."""

_NUMBERED = {
    "crc_flit": (pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6),
    "crc_data": (pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6),
    "replay": (pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6),
    "recovery": (pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6),
}
"""Kinds of link errors that have one NVML field per link, on GPUs up to Ampere.

The first number is the field of link 0, and the fields of links 1 to 5 follow it. The second number is the field of
link 6, and the fields of the later links follow it (nvml.h calls the links lanes). From Hopper on, the fields of
_ERRORS replace these fields. Fields 38, 45, 52 and 59 are not used: they contain the totals of all links.
"""

_ECC_FIRST, _ECC_LINKS = pynvml.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0, 12
"""First NVML field of ECC errors, and count of these fields: one for each link of NVLink 3."""

FEC_FIRST, FEC_BINS = pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, 16
"""First NVML field of the forward error correction, and number of these fields. They have consecutive numbers: the
first counts codewords with no corrected symbol, the next those with one, and so on."""

# Series of each link. Each row: label or metric, NVML field.
_PACKETS = (
    ("transmit", pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS),
    ("receive", pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS),
)
_RECOVERIES = (
    ("succeeded", pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS),
    ("failed", pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS),
)
_ERROR_RATIOS = (
    ("raw", RAW_BER),
    ("effective", pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER),
    ("symbol", pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER),
)
_BLOCKS = (
    ("gangwatch_nvlink_retransmission_blocks_total", BLOCKS),
    ("gangwatch_nvlink_retransmitted_blocks_total", RETRANSMITTED_BLOCKS),
)


def bit_error_ratio(packed: int) -> tuple[float]:
    """Decode a field with a bit error ratio: mantissa x 10^-exponent.

    The mantissa is in bits 8-11 and the exponent in bits 0-7 (nvml.h, NVML_NVLINK_ERROR_COUNTER_BER_GET).
    """
    return ((packed >> 8 & 0xF) * 10.0 ** -(packed & 0xFF),)


def _sources(kind: str, link: int) -> Iterator[Source]:
    """Yield the NVML fields that may count this kind of error on the link. The field of newer GPUs comes first."""
    if kind in _ERRORS:
        yield Source(_ERRORS[kind], 1, link)
    if kind in _NUMBERED and link < 12:
        first, seventh = _NUMBERED[kind]
        yield Source(first + link if link < 6 else seventh + link - 6)


def link_count(device: Device) -> int:
    """Return the number of the GPU's NVLinks. Raise GpuLostError or LibraryDeadError."""
    return min(field_number(device, LINK_COUNT) or 0, MOST_LINKS)


def has_payload_counters(device: Device) -> bool:
    """Return whether the links count payload bytes without protocol overhead (up to NVLink 4).

    Raise GpuLostError or LibraryDeadError.
    """
    return field_answers(device, DATA_SENT)


TRANSMIT = (
    "transmit",
    DATA_SENT,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
)
"""Direction "transmit", with its NVML fields: payload bytes, all bytes on GPUs up to NVLink 4, and all bytes on GPUs
from NVLink 5 on."""

RECEIVE = (
    "receive",
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
)
"""Direction "receive", with its NVML fields: payload bytes, all bytes on GPUs up to NVLink 4, and all bytes on GPUs
from NVLink 5 on."""


def _data_fields(device: Device, links: int, direction: str, data: int, *_: int) -> Iterator[Wanted]:
    for link in range(links):
        column = series(f"gangwatch_nvlink_{direction}_bytes_total", device, link=str(link))
        yield counter(column, Source(data, KIBIBYTE, link))


def _raw_fields(device: Device, links: int, direction: str, _: int, raw: int, newer: int) -> Iterator[Wanted]:
    for link in range(links):
        column = series(f"gangwatch_nvlink_{direction}_raw_bytes_total", device, link=str(link))
        yield counter(column, Source(raw, KIBIBYTE, link), Source(newer, 1, link))


def fast_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the NVML fields of the bytes sent by each link: payload bytes, or all bytes if payload is not counted.

    The bytes received by each link are read only every ten seconds: the remote end of the link counts the same bytes as
    sent, and the profiling counters have the bytes received by the whole GPU. Raise GpuLostError or LibraryDeadError.
    """
    yield from (_data_fields if links and has_payload_counters(device) else _raw_fields)(device, links, *TRANSMIT)


def slow_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the NVML fields of the received bytes, state, speed and errors of each link.

    If ``fast_fields`` yields the payload bytes sent, also yield all bytes sent, which include the protocol overhead.
    Raise GpuLostError or LibraryDeadError.
    """
    if links and has_payload_counters(device):
        yield from _data_fields(device, links, *RECEIVE)
        yield from _raw_fields(device, links, *TRANSMIT)
    yield from _raw_fields(device, links, *RECEIVE)
    for link in range(links):
        label = str(link)
        state, speed = pynvml.NVML_FI_DEV_NVLINK_GET_STATE, pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
        yield gauge(series("gangwatch_nvlink_state", device, link=label), Source(state, 1, link))
        yield gauge(series("gangwatch_nvlink_speed_bytes_per_second", device, link=label), Source(speed, 1e6, link))
        for kind in {**_ERRORS, **_NUMBERED}:
            yield counter(series("gangwatch_nvlink_errors_total", device, kind=kind, link=label), *_sources(kind, link))
        if link < _ECC_LINKS:
            yield counter(
                series("gangwatch_nvlink_errors_total", device, kind="ecc_data", link=label),
                Source(_ECC_FIRST + link, 1, link),
            )
        for direction, packets in _PACKETS:
            yield counter(
                series(f"gangwatch_nvlink_{direction}_packets_total", device, link=label), Source(packets, 1, link)
            )
        for outcome, field in _RECOVERIES:
            yield counter(
                series("gangwatch_nvlink_recoveries_total", device, link=label, outcome=outcome),
                Source(field, 1, link),
            )
        attempts, symbols = (
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
            pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
        )
        yield counter(series("gangwatch_nvlink_recovery_attempts_total", device, link=label), Source(attempts, 1, link))
        yield counter(series("gangwatch_nvlink_symbol_errors_total", device, link=label), Source(symbols, 1, link))
        for bin_ in range(FEC_BINS):
            yield counter(
                series("gangwatch_nvlink_fec_codewords_total", device, corrected_symbols=str(bin_), link=label),
                Source(FEC_FIRST + bin_, 1, link),
            )
        for stage, field in _ERROR_RATIOS:
            yield decoded(
                [series("gangwatch_nvlink_bit_error_ratio", device, link=label, stage=stage)],
                bit_error_ratio,
                Source(field, 1, link),
            )
        for lane, errors, ratio in (("0", RAW_ERRORS_LANE0, RAW_BER_LANE0), ("1", RAW_ERRORS_LANE1, RAW_BER_LANE1)):
            yield counter(
                series("gangwatch_nvlink_lane_errors_total", device, lane=lane, link=label), Source(errors, 1, link)
            )
            yield decoded(
                [series("gangwatch_nvlink_lane_bit_error_ratio", device, lane=lane, link=label)],
                bit_error_ratio,
                Source(ratio, 1, link),
            )
        for metric, field in _BLOCKS:
            yield counter(series(metric, device, link=label), Source(field, 1, link))


class ErrorSums:
    """Sums of the NVLink errors of one GPU by kind, over all links.

    The sums use the values that the NVML field batch has just read, so this part must follow the batch in the list
    of parts. If the value of one link is absent, the sum is absent; a partial sum would be mistaken for a counter
    reset.
    """

    gauges: tuple[Column, ...] = ()

    def __init__(self, device: Device, batch: FieldBatch) -> None:
        self._batch = batch
        of_kind: dict[str, list[int]] = {}
        for index, column in enumerate(batch.counters):
            if column.metric == "gangwatch_nvlink_errors_total":
                of_kind.setdefault(dict(column.labels)["kind"], []).append(index)
        self.counters = tuple(series("gangwatch_gpu_nvlink_errors_total", device, kind=kind) for kind in of_kind)
        self._indexes = [np.array(indexes, np.intp) for indexes in of_kind.values()]

    def place(self, values: Values) -> None:
        self._values = values

    def read(self) -> None:
        counts, valid = self._batch.newest_counters()
        for position, indexes in enumerate(self._indexes):
            if valid[indexes].all():
                self._values.counters[position] = counts[indexes].sum()
                self._values.counters_valid[position] = True
