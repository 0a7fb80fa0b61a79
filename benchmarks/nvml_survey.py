"""Survey of the calls that an NVIDIA driver supports and their cost, for measurements on real GPUs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from ctypes import byref, c_int
from dataclasses import dataclass, field

from agent.sources.nvml.nvml import Device, Library
from agent.sources.nvml.nvml_interface import FieldValue, code_text


@dataclass(slots=True)
class CallCost:
    """Cost of all calls of one symbol. codes: count of each return code."""

    calls: int = 0
    total_ns: int = 0
    most_ns: int = 0
    codes: Counter[int] = field(default_factory=Counter)

    @property
    def mean_us(self) -> float:
        return self.total_ns / self.calls / 1e3 if self.calls else 0.0


class TimedLibrary(Library):
    """Library that measures every call. The measurement costs about 1 µs per call."""

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
    """Response of a GPU to one field in a separate call."""

    field: int
    code: int
    value_type: int
    microseconds: float

    @property
    def text(self) -> str:
        return code_text(self.code) if self.code else "answers"


def ask_fields(device: Device, fields: Iterable[int], scope: int = 0) -> list[FieldAnswer]:
    """Query each field in a separate call to measure its cost. The error of a failed call counts as the field's."""
    answers: list[FieldAnswer] = []
    entry = FieldValue()
    for number in sorted(set(fields)):
        entry.field, entry.scope, entry.code = number, scope, 0
        began = time.perf_counter_ns()
        code = device.library.call("nvmlDeviceGetFieldValues", device.handle, c_int(1), byref(entry))
        taken = time.perf_counter_ns() - began
        answers.append(FieldAnswer(number, code or int(entry.code), int(entry.value_type), taken / 1e3))
    return answers
