"""Measurement of the calls that an NVIDIA driver supports: their cost and results on real GPUs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from ctypes import byref, c_int
from dataclasses import dataclass, field

import pynvml

from agent.sources.nvml.nvml import Device, Library
from agent.sources.nvml.nvml_codes import code_text


@dataclass(slots=True)
class CallCost:
    """Cost of all calls of one NVML function. codes: number of calls for each return code."""

    calls: int = 0
    total_ns: int = 0
    most_ns: int = 0
    codes: Counter[int] = field(default_factory=Counter)

    @property
    def mean_us(self) -> float:
        return self.total_ns / self.calls / 1e3 if self.calls else 0.0


class TimedLibrary(Library):
    """NVML library that measures every call. The measurement itself costs about 1 µs per call."""

    def __init__(self, path: str | None = None) -> None:
        self.costs: dict[str, CallCost] = {}
        super().__init__(path)

    def function(self, symbol: str) -> Callable[..., int] | None:
        found = super().function(symbol)
        if found is None:
            return None
        cost = self.costs.setdefault(symbol, CallCost())
        clock = time.perf_counter_ns

        def timed(*arguments: object) -> int:
            began = clock()
            code = found(*arguments)
            taken = clock() - began
            cost.calls += 1
            cost.total_ns += taken
            cost.most_ns = max(cost.most_ns, taken)
            cost.codes[code] += 1
            return code

        return timed


@dataclass(frozen=True, slots=True)
class FieldAnswer:
    """Response of a GPU to one field that was requested in a separate call."""

    field: int
    code: int
    value_type: int
    microseconds: float

    @property
    def text(self) -> str:
        return code_text(self.code) if self.code else "answers"


def ask_fields(device: Device, fields: Iterable[int], scope: int = 0) -> list[FieldAnswer]:
    """Request each field in a separate call, and return its result and cost.

    The error of a failed call is stored as the field's error.
    """
    answers: list[FieldAnswer] = []
    entry = pynvml.c_nvmlFieldValue_t()
    for number in sorted(set(fields)):
        entry.fieldId, entry.scopeId, entry.nvmlReturn = number, scope, pynvml.NVML_SUCCESS
        began = time.perf_counter_ns()
        code = device.library.call("nvmlDeviceGetFieldValues", device.handle, c_int(1), byref(entry))
        taken = time.perf_counter_ns() - began
        answers.append(FieldAnswer(number, code or entry.nvmlReturn, entry.valueType, taken / 1e3))
    return answers
