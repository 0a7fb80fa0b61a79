"""Batch of NVML calls on one GPU that each return a few numbers.

All calls write their results into one memory area. numpy copies all numbers of one size at once, which keeps the
cost low.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from ctypes import byref, c_uint, c_ulonglong
from dataclasses import dataclass
from typing import Any

import numpy as np
import pynvml

from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Values, one_copy
from agent.sources.nvml.nvml_codes import NEVER

_Answer = type[ctypes.Structure] | type[c_uint] | type[c_ulonglong]


@dataclass(frozen=True, slots=True)
class Call:
    """One NVML call, with the gauges that take its results.

    Its arguments are the GPU's handle, the arguments in `before`, and a pointer to a structure of type `answer` for
    the result.
    """

    symbol: str
    answer: _Answer
    columns: tuple[Column, ...]
    numbers: tuple[str, ...] = ("",)
    """For each gauge, the name of its field in the structure `answer`; '' if `answer` is itself the number."""
    factor: float = 1.0
    """Factor from the unit of the number to the unit of the gauge."""
    bits: tuple[int, ...] = ()
    """For each gauge, its bit if `answer` is a bit mask. The value of the gauge is 1 if the bit is set, else 0."""
    before: tuple[Any, ...] = ()
    version: int = 0
    """NVML's version number of the structure `answer`, which the call expects in the structure's first field. 0 if the
    structure has no such field."""

    def empty(self) -> ctypes.Structure | c_uint | c_ulonglong:
        """Return a zero structure for the result of the call, with its version set."""
        return self.answer(self.version) if self.version else self.answer()

    def places(self) -> list[tuple[int, int]]:
        """Return the offset and size in bytes of each number in the structure `answer`."""
        fields = [getattr(self.answer, name) if name else None for name in self.numbers]
        return [(0, ctypes.sizeof(self.answer)) if one is None else (one.offset, one.size) for one in fields]


class CallBatch:
    """NVML calls that a GPU supports, made one after another.

    ``gauges``: the gauges with 4-byte numbers first, then those with 8-byte numbers, then those with bits.
    """

    counters: tuple[Column, ...] = ()

    def __init__(self, device: Device, calls: Iterable[Call | tuple[Call, Call]]) -> None:
        """Make each call once, to find the calls that the GPU supports. Other calls have no gauges.

        A pair in `calls` is a call and its fallback. Raise GpuLostError or LibraryDeadError.
        """
        self._device = device
        taken: list[Call] = []
        for one in calls:
            choices = one if isinstance(one, tuple) else (one,)
            taken.extend([call for call in choices if _answers(device, call)][:1])
        starts, size = [], 0
        for call in taken:
            starts.append(size)
            size += -(-ctypes.sizeof(call.answer) // 8) * 8
        memory = bytearray(max(8, size))
        self._calls: list[tuple[Callable[..., int], tuple[Any, ...]]] = []
        self._asked: list[Call] = []
        narrow: list[tuple[int, float, Column]] = []
        wide: list[tuple[int, float, Column]] = []
        flags: list[tuple[int, int, Column]] = []
        for call, start in zip(taken, starts, strict=True):
            memory[start : start + ctypes.sizeof(call.answer)] = bytes(call.empty())
            function = device.library.function(call.symbol)
            assert function is not None
            self._calls.append((function, (device.handle, *call.before, byref(call.answer.from_buffer(memory, start)))))
            self._asked.append(call)
            if call.bits:
                flags.extend((start // 8, bit, column) for bit, column in zip(call.bits, call.columns, strict=True))
                continue
            for (offset, width), column in zip(call.places(), call.columns, strict=True):
                (wide if width == 8 else narrow).append(((start + offset) // width, call.factor, column))
        self.gauges: tuple[Column, ...] = tuple(column for *_, column in (*narrow, *wide, *flags))
        # Signed, since a temperature may be negative, and no other 4-byte value comes near 2^31.
        self._narrow, self._wide = np.frombuffer(memory, np.int32), np.frombuffer(memory, np.uint64)
        self._narrow_at = one_copy(np.array([at for at, *_ in narrow], np.intp))
        self._wide_at = one_copy(np.array([at for at, *_ in wide], np.intp))
        self._flags_at = one_copy(np.array([at for at, *_ in flags], np.intp))
        self._narrow_factors = one_copy(np.array([factor for _, factor, _ in narrow], np.float64))
        self._wide_factors = one_copy(np.array([factor for _, factor, _ in wide], np.float64))
        self._bits = one_copy(np.array([bit for _, bit, _ in flags], np.uint64))

    def place(self, values: Values) -> None:
        self._gauges = values.gauges
        narrow, numbers = len(self._narrow_at), len(self._narrow_at) + len(self._wide_at)
        self._pieces = self._gauges[:narrow], self._gauges[narrow:numbers], self._gauges[numbers:]

    def read(self) -> None:
        failed: list[Call] = []
        for position, (function, arguments) in enumerate(self._calls):
            code = function(*arguments)
            if code != pynvml.NVML_SUCCESS:
                failed.append(self._failed(position, code))
        narrow, wide, flags = self._pieces
        np.multiply(self._narrow.take(self._narrow_at), self._narrow_factors, out=narrow)
        np.multiply(self._wide.take(self._wide_at), self._wide_factors, out=wide)
        np.not_equal(self._wide.take(self._flags_at) & self._bits, 0, out=flags)
        if failed:
            absent = {id(column) for call in failed for column in call.columns}
            for index, column in enumerate(self.gauges):
                if id(column) in absent:
                    self._gauges[index] = math.nan

    def _failed(self, position: int, code: int) -> Call:
        """Handle the failed call at this position and return it. If the GPU does not support it, do not make it
        again."""
        call = self._asked[position]
        if self._device.judge(code, call.symbol):
            self._calls[position] = (_never_again(code), ())
        return call


def _answers(device: Device, call: Call) -> bool:
    """Return whether the GPU supports the call, even if the call fails now. Raise GpuLostError or LibraryDeadError."""
    function = device.library.function(call.symbol)
    if function is None:
        return False
    code = function(device.handle, *call.before, byref(call.empty()))
    return code == pynvml.NVML_SUCCESS or not device.judge(code, call.symbol)


def _never_again(code: int) -> Callable[..., int]:
    """Return a function that replaces an unsupported call and always returns the NVML code of that call."""
    assert code in NEVER
    return lambda: code
