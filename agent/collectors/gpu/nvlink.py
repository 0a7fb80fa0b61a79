"""Fields of each NVLink: bytes sent in the fast tier, all others in the slow tier.

The counters depend on the generation. Up to NVLink 4 there are replays, recoveries and CRC errors of the data link
layer; from NVLink 5 on packets, symbol errors, forward error correction and bit error ratios, some of them by lane.
Every field is tried on every link, and supported ones are kept (nvml.h, field ids 32-59, 91, 96-119, 138-168, 201-250
and 289-295). NVML does not have the CRC errors by lane that nvidia-smi prints for NVLink before version 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref

import numpy as np

from agent.collectors.gpu.device import series
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Values
from agent.sources.nvml.nvml_fields import FieldBatch, Source, Wanted, counter, decoded, field_number, gauge
from agent.sources.nvml.nvml_interface import SUCCESS, FieldValue

LINK_COUNT = 91
"""NVML field with the number of a GPU's NVLinks (NVML_FI_DEV_NVLINK_LINK_COUNT). The constant NVML_NVLINK_MAX_LINKS is
not used, because it depends on the version of the header."""

MOST_LINKS = 72
"""Maximum number of NVLinks of a GPU. NVML_GPM_METRIC_NVLINK_L71 is the highest link in nvml.h 13.5."""

DATA_SENT = 138
"""NVML field with the payload bytes that a link has sent (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)."""

KIBIBYTE = 1024.0

_ERRORS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "link_integrity": 211,
    "transmit_discard": 212,
    "effective": 219,
}
"""Kinds of errors and their NVML fields. The scope of a query of these fields is the number of the link."""

_NUMBERED = {"crc_flit": (32, 96), "crc_data": (39, 102), "replay": (46, 108), "recovery": (53, 114)}
"""Kinds of errors that have one field for each link up to Ampere, and no scope. The two numbers are the fields of link
0 and of link 6 (NVML_FI_DEV_NVLINK_*_ERROR_COUNT_L0 to L11; nvml.h calls the links lanes). From Hopper on, fields 161
to 163 replace these fields, "with scope as link ID" according to nvml.h's list of changes. Fields 38, 45, 52 and 59
contain the totals of all links, for any scope."""

_ECC_FIRST, _ECC_LINKS = 148, 12
"""First field and number of fields of ECC errors: one field for each link of NVLink 3
(NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0 to L11)."""

FEC_FIRST, FEC_BINS = 235, 16
"""First field and number of fields that count codewords by the number of corrected symbols
(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0 to 15)."""


def bit_error_ratio(packed: int) -> tuple[float]:
    """Decode a BER field: mantissa x 10^-exponent, with the mantissa in bits 8-11 and the exponent in bits 0-7 (nvml.h,
    NVML_NVLINK_ERROR_COUNTER_BER_GET)."""
    return ((packed >> 8 & 0xF) * 10.0 ** -(packed & 0xFF),)


def _sources(kind: str, link: int) -> Iterator[Source]:
    """Yield the fields of this kind of error on the link. The field of newer GPUs comes first."""
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
    entry = FieldValue(field=DATA_SENT)
    code = device.library.call("nvmlDeviceGetFieldValues", device.handle, 1, byref(entry))
    if code == SUCCESS:
        code = entry.code
    return code == SUCCESS or not device.judge(code, "NVLink data")


TRANSMIT = ("transmit", DATA_SENT, 140, 202)
RECEIVE = ("receive", 139, 141, 204)
"""Direction, field of payload bytes, field of all bytes up to NVLink 4, field of all bytes from NVLink 5 on."""


def _data_fields(device: Device, links: int, direction: str, data: int, *_: int) -> Iterator[Wanted]:
    for link in range(links):
        column = series(f"gangwatch_nvlink_{direction}_bytes_total", device, link=str(link))
        yield counter(column, Source(data, KIBIBYTE, link))


def _raw_fields(device: Device, links: int, direction: str, _: int, raw: int, newer: int) -> Iterator[Wanted]:
    for link in range(links):
        column = series(f"gangwatch_nvlink_{direction}_raw_bytes_total", device, link=str(link))
        yield counter(column, Source(raw, KIBIBYTE, link), Source(newer, 1, link))


def fast_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the bytes sent by each link: payload bytes, or all bytes if payload is not counted.

    The bytes received by each link are in the slow tier: the remote end of the link counts the same bytes as sent, and
    the profiling counters have the bytes received by the whole GPU. Raise GpuLostError or LibraryDeadError.
    """
    yield from (_data_fields if links and has_payload_counters(device) else _raw_fields)(device, links, *TRANSMIT)


def slow_fields(device: Device, links: int) -> Iterator[Wanted]:
    """Yield the received bytes, state, speed and errors of each link.

    If the fast tier has payload bytes, yield all bytes too. Raise GpuLostError or LibraryDeadError.
    """
    if links and has_payload_counters(device):
        yield from _data_fields(device, links, *RECEIVE)
        yield from _raw_fields(device, links, *TRANSMIT)
    yield from _raw_fields(device, links, *RECEIVE)
    for link in range(links):
        label = str(link)
        yield gauge(series("gangwatch_nvlink_state", device, link=label), Source(165, 1, link))
        yield gauge(series("gangwatch_nvlink_speed_bytes_per_second", device, link=label), Source(164, 1e6, link))
        for kind in {**_ERRORS, **_NUMBERED}:
            yield counter(series("gangwatch_nvlink_errors_total", device, kind=kind, link=label), *_sources(kind, link))
        if link < _ECC_LINKS:
            yield counter(
                series("gangwatch_nvlink_errors_total", device, kind="ecc_data", link=label),
                Source(_ECC_FIRST + link, 1, link),
            )
        for direction, packets in (("transmit", 201), ("receive", 203)):
            yield counter(
                series(f"gangwatch_nvlink_{direction}_packets_total", device, link=label), Source(packets, 1, link)
            )
        for outcome, field in (("succeeded", 213), ("failed", 214)):
            yield counter(
                series("gangwatch_nvlink_recoveries_total", device, link=label, outcome=outcome),
                Source(field, 1, link),
            )
        yield counter(series("gangwatch_nvlink_recovery_attempts_total", device, link=label), Source(215, 1, link))
        yield counter(series("gangwatch_nvlink_symbol_errors_total", device, link=label), Source(221, 1, link))
        for bin_ in range(FEC_BINS):
            yield counter(
                series("gangwatch_nvlink_fec_codewords_total", device, corrected_symbols=str(bin_), link=label),
                Source(FEC_FIRST + bin_, 1, link),
            )
        for stage, field in (("raw", 293), ("effective", 220), ("symbol", 222)):
            yield decoded(
                [series("gangwatch_nvlink_bit_error_ratio", device, link=label, stage=stage)],
                bit_error_ratio,
                Source(field, 1, link),
            )
        for lane, field in (("0", 291), ("1", 292)):
            yield counter(
                series("gangwatch_nvlink_lane_errors_total", device, lane=lane, link=label), Source(field - 2, 1, link)
            )
            yield decoded(
                [series("gangwatch_nvlink_lane_bit_error_ratio", device, lane=lane, link=label)],
                bit_error_ratio,
                Source(field, 1, link),
            )
        yield counter(series("gangwatch_nvlink_retransmission_blocks_total", device, link=label), Source(294, 1, link))
        yield counter(series("gangwatch_nvlink_retransmitted_blocks_total", device, link=label), Source(295, 1, link))


class ErrorSums:
    """Sums of the errors of all links of one GPU by kind, for users who do not want series of each link.

    Uses the values that the batch has just read, so it must follow the batch in the list of parts. If the value of one
    link is absent, the sum is absent: a sum without this link would look like a counter reset.
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
