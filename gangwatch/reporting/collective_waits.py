"""Times that a torch training waits in collectives, for every framework: FSDP2, DeepSpeed, Megatron Core, pipelines.

Frameworks in Python issue collectives through the methods of ``ProcessGroup`` and wait for them with ``Work.wait``.
``CollectiveWaits`` replaces these methods of torch's classes by timed ones. Code that imported a function such as
``all_reduce`` earlier is observed too. Standard library and torch only.

**Wait.** On CPU (gloo) it is the time in ``Work.wait``: the part of the collective that computation did not hide. On a
GPU, ``Work.wait`` only makes the current stream wait, so CUDA events before and after it give the time. The last rank
to enter has the shortest wait. The entry and exit of every wait are also recorded as a collective of the rank.

**What is not seen.** Collectives that C++ issues and waits for: of DistributedDataParallel (gangwatch.torch times its
buckets), and of functional collectives inside ``torch.compile``. On a GPU, waits of a stream other than the default one
(FSDP2) make the wait of the step unknown: the events would count time that computation hides. The tests of this project
have not run the CUDA parts on a GPU.

Tested with torch 1.13 and 2.15 on CPU with gloo.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple  # noqa: UP035 (Python 3.8)

import torch
import torch.distributed as dist

from gangwatch import steps
from gangwatch.reporting.flight_recorder import ranges

MAX_WAITS_A_STEP = 65536
"""Maximum number of waits of one step. In a step with more, the wait is unknown."""

MAX_SIZED_TENSORS = 8
"""Maximum number of tensors of a collective whose sizes are added up. The size of a collective of more is unknown."""

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "gather": "gather",
    "gather_single": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
    "_end_coalescing": "coalesced",
}
"""Operation that each method of ProcessGroup issues, over the versions of torch. All ranks of a group issue them in the
same order, so they are numbered."""

_POINT_TO_POINT = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
"""Methods of ProcessGroup between two ranks. They are not numbered: each rank of a group issues different ones."""


class _Issued:
    """Collective that this rank has issued."""

    __slots__ = ("bytes", "group", "is_cuda", "operation", "peer", "ranks", "sequence")

    def __init__(
        self, operation: str, group: str, ranks: str, sequence: int | None, tensor: Any, size: int | None, peer: Any
    ) -> None:
        self.operation = operation
        self.group = group
        self.ranks = ranks
        self.sequence = sequence
        self.bytes = size
        self.is_cuda = tensor is not None and bool(tensor.is_cuda)
        self.peer = peer if isinstance(peer, int) else None

    def described(self) -> Dict[str, Any]:  # noqa: UP006
        """Return the collective as gangwatch.reporting.rank_stacks reports it."""
        words = f"{self.operation} (peer {self.peer} of the group)" if self.peer is not None else self.operation
        found = {"operation": words, "group": self.group, "ranks": self.ranks}
        return {**found, **{k: v for k, v in (("sequence", self.sequence), ("bytes", self.bytes)) if v is not None}}


class CollectiveWaits:
    """Observer of the collectives of this process.

    mark: returns a mark of the current time on the clock of a tensor's device; None for the host's clock. failures:
    number of suppressed exceptions.
    """

    def __init__(self, reporter: steps.Reporter, mark: Callable[[bool], Any]) -> None:
        self.failures = 0
        self._reporter = reporter
        self._mark = mark
        self._waits: Deque[Tuple[Any, Any]] = deque(maxlen=MAX_WAITS_A_STEP)  # noqa: UP006
        self._unknown = False
        self._issued: weakref.WeakKeyDictionary[Any, _Issued] = weakref.WeakKeyDictionary()
        self._groups: weakref.WeakKeyDictionary[Any, List[Any]] = weakref.WeakKeyDictionary()  # noqa: UP006
        self._entered: Dict[int, Tuple[int, Optional[_Issued]]] = {}  # noqa: UP006, UP045
        self._leaving: Deque[Tuple[int, Any, Any]] = deque(maxlen=MAX_WAITS_A_STEP)  # noqa: UP006

    def install(self) -> None:
        """Replace the methods of torch's classes. Do this once per process."""
        for name, operation in {**_COLLECTIVES, **_POINT_TO_POINT}.items():
            if hasattr(dist.ProcessGroup, name):
                self._wrap_issue(name, operation, name in _COLLECTIVES)
        self._wrap_wait(torch._C._distributed_c10d.Work, "wait")
        functional = getattr(dist, "_functional_collectives", None)
        tensor = getattr(functional, "AsyncCollectiveTensor", None)
        if tensor is not None:
            self._wrap_wait(tensor, "trigger_wait")
        self._reporter.collective_in_progress = self.in_progress

    def take(self) -> List[Tuple[Any, Any]] | None:  # noqa: UP006
        """Return the waits since the last call, as (begin, end) marks; None if some could not be measured."""
        waits = self._waits
        self._waits = deque(maxlen=MAX_WAITS_A_STEP)
        unknown = self._unknown or len(waits) == MAX_WAITS_A_STEP
        self._unknown = False
        self._report_left()
        return None if unknown else list(waits)

    def in_progress(self) -> Dict[str, Any] | None:  # noqa: UP006
        """Return the collective in which the process has waited longest; None if it waits in none."""
        entered = dict(self._entered)
        if not entered:
            return None
        _, issued = min(entered.values(), key=lambda one: one[0])
        return {"operation": "collective"} if issued is None else issued.described()

    # --- issued collectives ---

    def _wrap_issue(self, name: str, operation: str, counted: bool) -> None:
        original = getattr(dist.ProcessGroup, name)

        @functools.wraps(original)
        def issue(group: Any, *arguments: Any, **options: Any) -> Any:
            work = original(group, *arguments, **options)
            try:
                self._take_issued(group, operation, counted, arguments, work)
            except Exception:
                self.failures += 1
            return work

        setattr(dist.ProcessGroup, name, issue)

    def _take_issued(self, group: Any, operation: str, counted: bool, arguments: Tuple[Any, ...], work: Any) -> None:  # noqa: UP006
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = [_name_of(group), _ranks_of(group), 0]
        sequence = None
        if counted:
            sequence = known[2]
            known[2] += 1
        if work is None:
            return
        tensors = _tensors(arguments)
        size = None
        if len(tensors) <= MAX_SIZED_TENSORS:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        peer = None if counted else next((one for one in arguments if isinstance(one, int)), None)
        first = tensors[0] if tensors else None
        self._issued[work] = _Issued(operation, known[0], known[1], sequence, first, size, peer)

    # --- waits ---

    def _wrap_wait(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            begun = self._begin(work)
            try:
                return original(work, *arguments, **options)
            finally:
                if begun is not None:
                    self._end(begun)

        setattr(owner, name, wait)

    def _begin(self, work: Any) -> Tuple[int, Any, bool] | None:  # noqa: UP006
        try:
            thread = threading.get_ident()
            if thread in self._entered:
                return None  # a wait within a wait
            issued = self._issued.get(work)
            is_cuda = issued.is_cuda if issued is not None else bool(getattr(work, "is_cuda", False))
            if is_cuda and not _on_default_stream():
                self._unknown = True
                return None
            number = self._reporter.enter()
            self._entered[thread] = number, issued
            return number, self._mark(is_cuda), is_cuda
        except Exception:
            self.failures += 1
            self._unknown = True
            return None

    def _end(self, begun: Tuple[int, Any, bool]) -> None:  # noqa: UP006
        try:
            number, begin, is_cuda = begun
            self._entered.pop(threading.get_ident(), None)
            end = self._mark(is_cuda)
            self._waits.append((begin, end))
            if is_cuda:
                self._leaving.append((number, begin, end))
                self._report_left()
            else:
                self._reporter.leave(number, end.ns_since(begin))
        except Exception:
            self.failures += 1
            self._unknown = True

    def _report_left(self) -> None:
        """Report the collectives that the GPU has finished."""
        try:
            while self._leaving and self._leaving[0][2].passed():
                number, begin, end = self._leaving.popleft()
                self._reporter.leave(number, end.ns_since(begin))
        except IndexError:
            pass  # another thread has reported it


def _on_default_stream() -> bool:
    return bool(torch.cuda.current_stream() == torch.cuda.default_stream()) and not (
        torch.cuda.is_current_stream_capturing()
    )


def _tensors(arguments: Tuple[Any, ...]) -> List[Any]:  # noqa: UP006
    """Return the tensors of a collective's arguments: the last argument that has some, which is the input."""
    found: List[Any] = []  # noqa: UP006
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            found = [argument]
        elif isinstance(argument, (list, tuple)) and argument:
            inner = argument[0] if isinstance(argument[0], (list, tuple)) else argument
            if inner and isinstance(inner[0], torch.Tensor):
                found = list(inner)
    return found


def _name_of(group: Any) -> str:
    name = getattr(group, "group_name", None)
    if name is None:
        name = getattr(dist.distributed_c10d, "_pg_names", {}).get(group, "")
    description = getattr(group, "group_desc", "")
    return f"{name} ({description})" if description not in ("", "undefined") else str(name)


def _ranks_of(group: Any) -> str:
    """Return the global ranks of the group as ranges, for example 0-3,8; '' if they are not known."""
    try:
        ranks = sorted(dist.get_process_group_ranks(group))
    except Exception:  # a torch without the function
        return f"{group.size()} ranks"
    return ranges(ranks)
