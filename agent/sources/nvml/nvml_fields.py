"""Batch reading of many fields of one GPU in one driver call (nvmlDeviceGetFieldValues).

The constructor detects the fields that the GPU supports. A read is then one call on a reused array and a few
vectorised copies. The return code and value type of each field may differ at each read. A field that the driver
reports as unsupported is not read again; a field that fails temporarily is absent in that read.
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
import pynvml

from agent.schema.frame import Column, CounterArray, GaugeArray, ValidArray
from agent.sources.nvml.nvml import Device, Query, Values, one_copy
from agent.sources.nvml.nvml_codes import NEVER

CALL_FIELDS = 128
"""Maximum number of fields in one call. A call holds the driver's lock, and reading hundreds of NVLink registers takes
a long time."""

PROBES = 2
"""Number of times that each field is queried when the batch is created, if queries fail temporarily. A field that fails
temporarily every time counts as supported."""

ALL_LINKS = 0xFFFFFFFF
"""Scope in the query of an NVLink field: the field's value is then the sum over all NVLinks of the GPU. Other scopes
are numbers of single links."""

_DOUBLE: int = pynvml.NVML_VALUE_TYPE_DOUBLE
_UNSIGNED: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
_SIGNED: int = pynvml.NVML_VALUE_TYPE_SIGNED_INT
_SHORT: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT
_SIGNED_LONG: int = pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG
_TYPES: int = pynvml.NVML_VALUE_TYPE_COUNT

_WHOLE = 0xFFFF_FFFF_FFFF_FFFF
_MASKS = np.full(_TYPES, _WHOLE, np.uint64)
_MASKS[[_UNSIGNED, _SIGNED]] = 0xFFFF_FFFF
_MASKS[_SHORT] = 0xFFFF
"""Mask of the bits that contain a field's value, by the number of its NVML value type."""
_SIGNS = np.zeros(_TYPES, np.uint64)
_SIGNS[_SIGNED] = 1 << 31
_SIGNS[_SIGNED_LONG] = 1 << 63
"""Bit that contains the sign of a field's value, by the number of its NVML value type; 0 for unsigned types."""
_WIDTHS = {_UNSIGNED: 32, _SIGNED: 32, _SHORT: 32}
"""Width in bits of a counter, by the number of its NVML value type; 64 for types that are not listed."""

_PLACES = (
    ("field", "<u4", "fieldId"),
    ("scope", "<u4", "scopeId"),
    ("timestamp", "<i8", "timestamp"),
    ("state", "<u8", "valueType"),
    ("value_type", "<u4", "valueType"),
    ("code", "<i4", "nvmlReturn"),
    ("value", "<u8", "value"),
)
"""Layout of one entry of a field query, for numpy. Each item contains a name, the format, and the member of
c_nvmlFieldValue_t at whose offset the data begins."""

_ENTRY = np.dtype(
    {
        "names": [name for name, _, _ in _PLACES],
        "formats": [form for _, form, _ in _PLACES],
        "offsets": [getattr(pynvml.c_nvmlFieldValue_t, member).offset for _, _, member in _PLACES],
        "itemsize": ctypes.sizeof(pynvml.c_nvmlFieldValue_t),
    }
)
"""Numpy type of one entry of a field query. `state` contains the value type and the return code as one number. One
comparison of all states therefore shows whether all reads succeeded and all types are unchanged."""


class Source(NamedTuple):
    """One NVML field that can provide a value.

    factor: from the field's unit to the series' unit; an integer for a counter.
    """

    field: int
    factor: float = 1.0
    scope: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested value, the NVML fields that can provide it, and the series (columns) that publish it."""

    columns: tuple[Column, ...]
    """Series that publish the value: one, or one for each value that `decode` returns."""
    sources: tuple[Source, ...]
    """NVML fields that can provide the value. The first field that the GPU supports is used."""
    counter: bool = False
    decode: Callable[[int], Sequence[float]] | None = None
    """Function that converts the raw integer of an encoded gauge to the values of its series; None if not encoded."""
    wide_only: bool = False
    """Whether a counter is skipped if the driver returns only 32 bits."""


def gauge(column: Column, *sources: Source) -> Wanted:
    return Wanted((column,), sources)


def counter(column: Column, *sources: Source, wide_only: bool = False) -> Wanted:
    """Request a counter. The first supported field of `sources` provides it.

    wide_only: skip the counter if the driver returns 32 bits, which would wrap too often.
    """
    return Wanted((column,), sources, counter=True, wide_only=wide_only)


def decoded(columns: Iterable[Column], decode: Callable[[int], Sequence[float]], *sources: Source) -> Wanted:
    return Wanted(tuple(columns), sources, decode=decode)


class FieldArray:
    """Array of NVML fields of one GPU, reused for all reads, with the prepared calls that read them.

    queries: calls of at most CALL_FIELDS fields each, which together read the whole array. view: all entries as a
    numpy array whose elements have the members of _ENTRY.
    """

    def __init__(self, device: Device, wanted: Sequence[tuple[int, int]]) -> None:
        """Prepare the reading of the fields. wanted: (field, scope) of each entry."""
        size, count = _ENTRY.itemsize, len(wanted)
        array = (pynvml.c_nvmlFieldValue_t * max(1, count))()
        self.view = np.frombuffer(memoryview(array).cast("B"), _ENTRY)[:count]
        self.view["field"] = [field for field, _ in wanted]
        self.view["scope"] = [scope for _, scope in wanted]
        self.queries = [
            Query(
                device,
                "nvmlDeviceGetFieldValues",
                c_int(min(CALL_FIELDS, count - first)),
                ctypes.byref(array, first * size),
            )
            for first in range(0, count, CALL_FIELDS)
        ]

    def read(self) -> bool:
        """Make the calls until one fails. Return whether all succeeded. Raise GpuLostError or LibraryDeadError."""
        return all(query.ask() for query in self.queries)


def field_answers(device: Device, field: int) -> bool:
    """Return whether the GPU supports the field, even if it fails now. Raise GpuLostError or LibraryDeadError."""
    array = FieldArray(device, [(field, 0)])
    if not array.read():
        return not array.queries[0].gone
    code = int(array.view["code"][0])
    return code == pynvml.NVML_SUCCESS or not device.judge(code, f"field {field}")


def field_number(device: Device, field: int, scope: int = 0) -> int | None:
    """Read one NVML field that is a 32-bit number; None if it is unsupported or the read fails.

    Raise GpuLostError or LibraryDeadError.
    """
    array = FieldArray(device, [(field, scope)])
    if not array.read():
        return None
    code = int(array.view["code"][0])
    if code != pynvml.NVML_SUCCESS:
        device.judge(code, f"field {field}")
        return None
    return int(array.view["value"][0]) & 0xFFFF_FFFF


class _Entry(NamedTuple):
    wanted: Wanted
    source: Source
    at: int


class FieldBatch:
    """NVML fields that one GPU supports, read together. ``gauges``, ``counters``: the series that publish them."""

    def __init__(self, device: Device, wanted: Iterable[Wanted]) -> None:
        """Query each field to find those that the GPU supports. Raise GpuLostError or LibraryDeadError."""
        self._device = device
        self.gauges: list[Column] = []
        self.counters: list[Column] = []
        self._entries: list[_Entry] = []
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
        """Set the arrays into which ``read`` writes. They have the lengths of ``gauges`` and ``counters``."""
        self._gauge_values, self._counter_values, self._counter_valid = values

    def read(self) -> None:
        """Read the fields and write their values. A failed field is absent. Raise GpuLostError or LibraryDeadError."""
        if not self._array.read():
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
        self._fill(codes == pynvml.NVML_SUCCESS)

    def newest_counters(self) -> tuple[CounterArray, ValidArray]:
        """Return the values and the validity of the counters at the last read, in the order of ``counters``."""
        return self._counter_values, self._counter_valid

    def _fill(self, answered: ValidArray | None) -> None:
        """Convert the fields' raw values, and write them into the arrays of ``place``.

        answered: whether each field was read successfully; None if all were.
        """
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
        """Return the values of the counters if one of them has fewer than 64 bits or is signed."""
        whole = self._counter_raw & self._counter_mask
        counts: CounterArray = ((whole ^ self._counter_sign) - self._counter_sign) * self._counter_factor
        return counts

    # --- inside ------------------------------------------------------------------------------------------------------

    def _compile(self) -> None:
        """Build the array of the NVML query, in three parts: gauges, counters, and fields that are decoded after the
        read."""
        entries = sorted(self._entries, key=lambda entry: (entry.wanted.decode is not None, entry.wanted.counter))
        self._entries = entries
        self._array = FieldArray(self._device, [(entry.source.field, entry.source.scope) for entry in entries])
        self._view = self._array.view
        self._states, self._values = self._view["state"], self._view["value"]
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
        """Choose the mask and sign bit of each field by the value type that the driver currently returns."""
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
        """Remove the fields whose return code means that they are unsupported. Return whether a field was removed."""
        never = {
            int(position)
            for position in np.flatnonzero(codes != pynvml.NVML_SUCCESS)
            if self._device.judge(int(codes[position]), f"field {self._view['field'][position]}")
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


def _probe(device: Device, wanted: Sequence[Wanted]) -> list[tuple[Wanted, Source, int]]:
    """Query each requested value, and return the supported values.

    Each item is (requested value, its first supported NVML field, NVML value type). A field that fails temporarily
    counts as supported.
    """
    asked = [(one, source) for one in wanted for source in one.sources]
    if not asked:
        return []
    array = FieldArray(device, [(source.field, source.scope) for _, source in asked])
    for _ in range(PROBES):
        for query in array.queries:
            if not query.ask() and query.gone:
                return []
        codes = array.view["code"].tolist()
        if all(code in NEVER or code == pynvml.NVML_SUCCESS for code in codes):
            break
    chosen: dict[int, tuple[Wanted, Source, int]] = {}
    for code, value_type, (one, source) in zip(codes, array.view["value_type"].tolist(), asked, strict=True):
        never = code != pynvml.NVML_SUCCESS and device.judge(code, f"field {source.field}")
        if not never:
            chosen.setdefault(id(one), (one, source, value_type))
    return [chosen[id(one)] for one in wanted if id(one) in chosen]
