"""Batch reading of many fields of one GPU in one driver call (nvmlDeviceGetFieldValues).

The constructor detects the fields that the GPU supports. A read is then one call on a reused array and a few vectorised
copies. Each entry has its own return code and value type, which may change at any read. If the driver
reports a field as unsupported, the field is dropped. A field that fails temporarily is absent in that read.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_int
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.frame import Column, CounterArray, GaugeArray, ValidArray
from agent.sources.nvml.nvml import Device, Query, Values, one_copy
from agent.sources.nvml.nvml_interface import NEVER, SUCCESS, FieldValue

CALL_FIELDS = 128
"""Maximum number of fields in one call. A call holds the driver's lock, and reading hundreds of NVLink registers takes
a long time."""

PROBES = 2
"""Number of attempts to read a field that fails temporarily. After these attempts the field counts as supported."""

_DOUBLE, _UNSIGNED, _SIGNED, _SHORT, _SIGNED_LONG = 0, 1, 5, 6, 4
_TYPES = 7

_WHOLE = 0xFFFF_FFFF_FFFF_FFFF
_MASKS = np.full(_TYPES, _WHOLE, np.uint64)
_MASKS[[_UNSIGNED, _SIGNED]] = 0xFFFF_FFFF
_MASKS[_SHORT] = 0xFFFF
_SIGNS = np.zeros(_TYPES, np.uint64)
_SIGNS[_SIGNED] = 1 << 31
_SIGNS[_SIGNED_LONG] = 1 << 63
_WIDTHS = {_UNSIGNED: 32, _SIGNED: 32, _SHORT: 32}
"""Width in bits of a counter, by NVML value type; 64 for other types. _MASKS and _SIGNS: value mask and sign bit."""

_ENTRY = np.dtype(
    {
        "names": ["state", "value_type", "code", "value"],
        "formats": ["<u8", "<u4", "<i4", "<u8"],
        "offsets": [FieldValue.value_type.offset, FieldValue.value_type.offset, FieldValue.code.offset,
                    FieldValue.value.offset],
        "itemsize": ctypes.sizeof(FieldValue),
    }
)  # fmt: skip
"""Numpy type of one entry of the query. state: value type and return code as one number. One comparison of the states
checks that all entries succeeded with unchanged types."""


class Source(NamedTuple):
    """One field that can provide a value. factor: from the field's unit to the column's; an integer for a counter."""

    field: int
    factor: float = 1.0
    scope: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested value, the fields that can provide it, and its columns in the frame."""

    columns: tuple[Column, ...]
    """One column, or one column for each value that `decode` returns."""
    sources: tuple[Source, ...]
    """Fields that can provide the value. The first field that the GPU supports is used."""
    counter: bool = False
    decode: Callable[[int], Sequence[float]] | None = None
    """Function that converts the raw integer of an encoded gauge to the values of the columns."""
    wide_only: bool = False
    """Whether a counter is skipped if the driver returns only 32 bits."""


def gauge(column: Column, *sources: Source) -> Wanted:
    return Wanted((column,), sources)


def counter(column: Column, *sources: Source, wide_only: bool = False) -> Wanted:
    """Request a counter. wide_only: skip the counter if the driver returns 32 bits, which would wrap too often."""
    return Wanted((column,), sources, counter=True, wide_only=wide_only)


def decoded(columns: Iterable[Column], decode: Callable[[int], Sequence[float]], *sources: Source) -> Wanted:
    return Wanted(tuple(columns), sources, decode=decode)


def field_number(device: Device, field: int, scope: int = 0) -> int | None:
    """Read one field that is a 32-bit number; None if it is unsupported or fails.

    Raise GpuLostError or LibraryDeadError.
    """
    entry = FieldValue(field=field, scope=scope)
    code = device.library.call("nvmlDeviceGetFieldValues", device.handle, 1, ctypes.byref(entry)) or entry.code
    if code != SUCCESS:
        device.judge(code, f"field {field}")
        return None
    return int(entry.value) & 0xFFFF_FFFF


class _Entry(NamedTuple):
    wanted: Wanted
    source: Source
    at: int


class FieldBatch:
    """Supported fields of one GPU, read together. ``gauges``, ``counters``: the columns of these fields."""

    def __init__(self, device: Device, wanted: Iterable[Wanted]) -> None:
        """Query each field to find the supported fields. Raise GpuLostError or LibraryDeadError."""
        self._device = device
        self.gauges: list[Column] = []
        self.counters: list[Column] = []
        self._entries: list[_Entry] = []
        self._calls: list[Query] = []
        for one, source, value_type in _probe(device, list(wanted)):
            if one.counter and one.wide_only and value_type in _WIDTHS:
                continue
            kind = self.counters if one.counter else self.gauges
            self._entries.append(_Entry(one, source, len(kind)))
            kind.extend(
                msgspec.structs.replace(column, width=_WIDTHS.get(value_type, 64)) if one.counter else column
                for column in one.columns
            )
        self._gauge_values: GaugeArray = np.empty(0)
        self._counter_values: CounterArray = np.empty(0, np.uint64)
        self._counter_valid: ValidArray = np.empty(0, np.bool_)
        self._compile()

    def place(self, values: Values) -> None:
        """Set the arrays into which values are written. They have the lengths of ``gauges`` and ``counters``."""
        self._gauge_values, self._counter_values, self._counter_valid = values

    def read(self) -> None:
        """Read the fields and write their values. A failed field is absent. Raise GpuLostError or LibraryDeadError."""
        for call in self._calls:
            if not call.ask():
                return
        if self._states.tobytes() == self._usual_states:
            self._fill(None)
            return
        # An entry failed or has another type now.
        codes = self._view["code"]
        if codes.any() and self._drop(codes):
            self.read()
            return
        self._take_types()
        self._fill(codes == SUCCESS)

    def newest_counters(self) -> tuple[CounterArray, ValidArray]:
        """Return the values and the validity of the counters at the last read, in the order of ``counters``."""
        return self._counter_values, self._counter_valid

    def _fill(self, answered: ValidArray | None) -> None:
        """Write the values into the arrays of ``place``. answered: whether each entry succeeded; None if all did."""
        if self._gauge_count:
            whole = self._gauge_raw & self._gauge_mask
            if self._gauge_signed:
                whole = (whole ^ self._gauge_sign) - self._gauge_sign
            values = whole.view(np.int64) * self._gauge_factor
            if self._doubles:
                values = np.where(self._gauge_is_double, self._gauge_raw.view(np.float64) * self._gauge_factor, values)
            if answered is not None:
                values[~answered[: self._gauge_count]] = np.nan
            self._gauge_values[self._gauge_to] = values
        if self._counter_count:
            counts = self._counter_raw * self._counter_factor if self._counter_is_whole else self._masked_counts()
            self._counter_values[self._counter_to] = counts
            end = self._gauge_count + self._counter_count
            self._counter_valid[self._counter_to] = True if answered is None else answered[self._gauge_count : end]
        for position, at, wanted in self._decoded:
            assert wanted.decode is not None
            known = answered is None or bool(answered[position])
            raw = int(self._values[position]) & int(self._mask[position])
            decoded_values = wanted.decode(raw) if known else [math.nan] * len(wanted.columns)
            self._gauge_values[at : at + len(wanted.columns)] = decoded_values

    def _masked_counts(self) -> CounterArray:
        """Return the values of the counters. Used if a counter has fewer than 64 bits or is signed."""
        whole = self._counter_raw & self._counter_mask
        counts: CounterArray = ((whole ^ self._counter_sign) - self._counter_sign) * self._counter_factor
        return counts

    # --- inside ------------------------------------------------------------------------------------------------------

    def _compile(self) -> None:
        """Build the array of the NVML query, in three parts: gauges, counters, and values that need decoding."""
        entries = sorted(self._entries, key=lambda entry: (entry.wanted.decode is not None, entry.wanted.counter))
        self._entries = entries
        self._array = (FieldValue * max(1, len(entries)))()
        self._view = np.frombuffer(memoryview(self._array).cast("B"), _ENTRY)[: len(entries)]
        self._states, self._values = self._view["state"], self._view["value"]
        for position, entry in enumerate(entries):
            self._array[position].field = entry.source.field
            self._array[position].scope = entry.source.scope
        self._calls = _calls(self._device, self._array, len(entries))
        plain = [(p, e) for p, e in enumerate(entries) if not e.wanted.counter and e.wanted.decode is None]
        counted = [(p, e) for p, e in enumerate(entries) if e.wanted.counter]
        self._decoded = [(p, e.at, e.wanted) for p, e in enumerate(entries) if e.wanted.decode is not None]
        self._gauge_count, self._counter_count = len(plain), len(counted)
        end = len(plain) + len(counted)
        self._gauge_raw, self._counter_raw = self._values[: len(plain)], self._values[len(plain) : end]
        self._gauge_to = _slice([e.at for _, e in plain])
        self._gauge_factor = one_copy(np.array([e.source.factor for _, e in plain], np.float64))
        self._counter_to = _slice([e.at for _, e in counted])
        self._counter_factor = one_copy(np.array([round(e.source.factor) for _, e in counted], np.uint64))
        self._take_types()

    def _take_types(self) -> None:
        """Set the masks and sign bits for the current value types of the entries."""
        types = self._view["value_type"]
        self._usual_states = types.astype(np.uint64).tobytes()
        known = np.minimum(types, _TYPES - 1)
        self._mask, sign = _MASKS[known], _SIGNS[known]
        gauges, counters = slice(self._gauge_count), slice(self._gauge_count, self._gauge_count + self._counter_count)
        self._gauge_mask, self._gauge_sign = one_copy(self._mask[gauges]), one_copy(sign[gauges])
        self._counter_mask, self._counter_sign = one_copy(self._mask[counters]), one_copy(sign[counters])
        self._gauge_signed = bool(self._gauge_sign.any())
        self._counter_is_whole = bool((self._counter_mask == _WHOLE).all() and not self._counter_sign.any())
        self._gauge_is_double = (types == _DOUBLE)[gauges]
        self._doubles = bool(self._gauge_is_double.any())

    def _drop(self, codes: npt.NDArray[np.int32]) -> bool:
        """Drop the entries whose code means that they are unsupported. Return whether an entry was dropped."""
        never = {
            int(position)
            for position in np.flatnonzero(codes != SUCCESS)
            if self._device.judge(int(codes[position]), f"field {self._array[int(position)].field}")
        }
        if never:
            self._entries = [entry for position, entry in enumerate(self._entries) if position not in never]
            self._compile()
        return bool(never)


def _slice(positions: list[int]) -> slice | npt.NDArray[np.intp]:
    """Return the positions as a slice if they are consecutive, else as an array. numpy copies a slice faster."""
    if positions and positions == list(range(positions[0], positions[0] + len(positions))):
        return slice(positions[0], positions[0] + len(positions))
    return np.array(positions, np.intp)


def _calls(device: Device, array: ctypes.Array[FieldValue], count: int) -> list[Query]:
    """Return prepared calls for the whole array, with at most CALL_FIELDS fields per call."""
    size = ctypes.sizeof(FieldValue)
    return [
        Query(
            device,
            "nvmlDeviceGetFieldValues",
            c_int(min(CALL_FIELDS, count - first)),
            ctypes.byref(array, first * size),
        )
        for first in range(0, count, CALL_FIELDS)
    ]


def _probe(device: Device, wanted: Sequence[Wanted]) -> list[tuple[Wanted, Source, int]]:
    """Return (requested value, its first supported source, NVML value type) for each supported value.

    A source that fails temporarily counts as supported.
    """
    asked = [(one, source) for one in wanted for source in one.sources]
    if not asked:
        return []
    array = (FieldValue * len(asked))()
    for entry, (_, source) in zip(array, asked, strict=True):
        entry.field, entry.scope = source.field, source.scope
    for _ in range(PROBES):
        for call in _calls(device, array, len(asked)):
            if not call.ask() and call.gone:
                return []
        if all(entry.code in NEVER or entry.code == SUCCESS for entry in array):
            break
    chosen: dict[int, tuple[Wanted, Source, int]] = {}
    for entry, (one, source) in zip(array, asked, strict=True):
        never = entry.code != SUCCESS and device.judge(entry.code, f"field {entry.field}")
        if not never:
            chosen.setdefault(id(one), (one, source, entry.value_type))
    return [chosen[id(one)] for one in wanted if id(one) in chosen]
