"""Reports of steps and waits of a torch training, without changes to its loop.

Either run the program through this module, under torchrun or alone::

    torchrun --nproc-per-node 8 -m gangwatch.torch train.py --epochs 3
    python -m gangwatch.torch train.py        # or: python -m gangwatch.torch -m package.train

or call ``attach`` after the model is wrapped and before the first backward pass::

    attach(model, optimizer)

No import hook and no environment variable loads this module implicitly: the command line of a training shows that it is
observed. Without GANGWATCH_SOCKET nothing is changed. Standard library and torch only.

**Step.** A step lasts from the end of one ``optimizer.step()`` to the end of the next, so it includes data loading and
everything else that a rank does in between. reporting/training_steps.py chooses the optimizer, or the engine of
DeepSpeed, whose steps count. The first step has no known begin and is not measured. Step numbers count these steps,
from 0.

**Wait.** The wait of a step is the time in which the rank waited for collectives that computation did not hide. Two
methods measure it. gangwatch.reporting.collective_waits times every collective that Python issues and waits for: FSDP2,
DeepSpeed, Megatron Core, pipelines, plain calls of torch.distributed. DDP issues its collectives in
C++; they are timed as follows.

DistributedDataParallel averages gradients in buckets while the backward pass still computes. Its wait in a
step is the time from the moment when the *last* bucket was ready on this rank until *all* buckets were averaged: the
cost of the collectives that computation did not hide. It consists of the transfer and of the time until the slowest
peer entered. One rank can't separate the two, and the last rank to enter has the shortest wait. Collectives that
DDP issues for other purposes in C++ (the broadcast of buffers) are not included.

On CPU (gloo), the host's clock gives both times: the call of DDP's communication hook and the completion of its future.
On a GPU the host only enqueues work, so CUDA events are recorded on the streams instead. Later buckets and steps poll
them (``query``, which does not block). Steps are timed in the same way and reported one or two steps late. Nothing here
ever synchronises.

**Work of a rank.** Only the program knows the amount of work of each rank. If sequences differ in length, report it;
otherwise the rank with the longest sequences looks like a slow rank:
``attach().given(tokens=count, squares=sum_of_squared_lengths)`` after each batch is loaded; the batches of one step add
up.

**A wait that can't be measured is unknown, never 0**: with a DDP model or a hook made before ``attach``, with
collectives that only ``torch.compile`` issues, with waits on other streams of a GPU (FSDP2), inside CUDA graphs (their
replays run no Python, so neither steps nor waits are recorded), and with a torch that lacks the required functions.

The hook that replaces DDP's own average multiplies by 1 / world size and sums, as DDP does. The result has the same
bits (except under ``gradient_as_bucket_view``, where DDP divides, and the last bit may differ unless the world size is
a power of two). A hook that the program registers itself is kept and timed.

Tested with torch 1.13 and 2.15 on CPU with gloo, 2 and 3 ranks. The CUDA paths follow the documented behaviour of
``torch.cuda.Event`` and ``torch.futures.Future.then``; the project's tests have not run them on a GPU.
"""

from __future__ import annotations

import atexit
import functools
import gc
import runpy
import sys
import threading
import time
import types
import weakref
from collections import deque
from pathlib import Path
from time import monotonic_ns
from typing import Any, Callable, Deque, List, Tuple, Union  # noqa: UP035 (Python 3.8)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gangwatch import steps
from gangwatch.reporting.collective_waits import CollectiveWaits
from gangwatch.reporting.training_steps import CountedSteps

__all__ = ["Attachment", "attach"]

MAX_PENDING_STEPS = 64
"""Maximum number of ended steps whose times the GPU has not measured yet. If there are more, the oldest step is
reported without its wait."""
MAX_PENDING_BUCKETS = 4096
"""Maximum number of gradient buckets whose averaging the GPU has not finished yet. If there are more, the end of the
oldest bucket's averaging is not reported."""


EXIT_NS = 1_000_000_000


class _HostMark:
    """Time mark by the host's clock, for a training on CPU."""

    __slots__ = ("_ns",)

    def __init__(self) -> None:
        self._ns: int = monotonic_ns()

    def passed(self) -> bool:
        return True

    def ns_since(self, earlier: _Mark) -> int:
        if not isinstance(earlier, _HostMark):
            raise TypeError("a time of the host and a mark in a CUDA stream can't be compared")
        return self._ns - earlier._ns


class _CudaMark:
    """Time mark in a CUDA stream (an event): the time at which the GPU reaches it."""

    __slots__ = ("_event",)

    def __init__(self, device: Any) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        return bool(self._event.query())

    def ns_since(self, earlier: _Mark) -> int:
        """Return the ns from the mark `earlier` to this mark. The device must have reached both marks."""
        if not isinstance(earlier, _CudaMark):
            raise TypeError("a time of the host and a mark in a CUDA stream can't be compared")
        ns: int = round(earlier._event.elapsed_time(self._event) * 1e6)  # elapsed_time is in milliseconds
        return ns


_Mark = Union[_HostMark, _CudaMark]  # noqa: UP007


def _mark(tensor: Any) -> _Mark:
    """Return a mark of the current time on the clock of the tensor's device."""
    return _CudaMark(tensor.device) if tensor.is_cuda else _HostMark()


def _mark_of_device(is_cuda: bool) -> _Mark:
    """Return a mark of the current time on the clock of the current GPU or of the host."""
    return _CudaMark(torch.cuda.current_device()) if is_cuda else _HostMark()


def _capturing(tensor: Any) -> bool:
    """Return whether a CUDA graph is being captured. During a capture, CUDA events must not be recorded or polled."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


class _Bucket:
    """Averaging of one gradient bucket: the number of the collective, and the times when it was ready and averaged."""

    __slots__ = ("averaged", "number", "ready")

    def __init__(self, number: int, ready: _Mark) -> None:
        self.number = number
        self.ready = ready
        self.averaged: _Mark | None = None

    def passed(self) -> bool:
        return self.averaged is not None and self.averaged.passed()


class _Pass:
    """One backward pass: its gradient buckets, in the order in which they became ready."""

    __slots__ = ("buckets", "whole")

    def __init__(self) -> None:
        self.buckets: List[_Bucket] = []  # noqa: UP006
        self.whole = False

    def passed(self) -> bool:
        return all(bucket.passed() for bucket in self.buckets)

    def wait_span(self, begun: _Mark) -> Tuple[int, int] | None:  # noqa: UP006
        """Return when the last bucket was ready and when all buckets were averaged, in ns since `begun`; None if
        unknown."""
        if not self.whole:
            return None
        ready = self.buckets[-1].ready
        waits = [bucket.averaged.ns_since(ready) for bucket in self.buckets if bucket.averaged is not None]
        ready_ns = ready.ns_since(begun)
        return (ready_ns, ready_ns + max(0, *waits)) if len(waits) == len(self.buckets) else None


class _StepTiming:
    """Measurements of one step, from the end of one ``optimizer.step()`` to the end of the next."""

    def __init__(self, number: int, begun: _Mark) -> None:
        self.number = number
        self.begun = begun
        self.begun_ns = monotonic_ns()
        self.ended: _Mark | None = None
        self.ended_ns = 0
        self.passes: List[_Pass] = []  # noqa: UP006
        self.disturbed = False
        self.collectives: List[Any] | None = []  # noqa: UP006
        self.tokens: int | None = None
        self.squares: int | None = None

    def passed(self) -> bool:
        collectives = self.collectives or []
        return (
            self.ended is not None
            and self.ended.passed()
            and all(each.passed() for each in self.passes)
            and all(end.passed() for _, end in collectives)
        )

    def wait_seconds(self) -> float | None:
        """Return the seconds of the step in which the rank waited, by DDP or by another collective; None if unknown."""
        spans = [each.wait_span(self.begun) for each in self.passes]
        if self.disturbed or self.collectives is None or None in spans or not (spans or self.collectives):
            return None
        spans += [
            (begin.ns_since(self.begun), end.ns_since(self.begun))
            for begin, end in self.collectives
            if type(begin) is type(self.begun)  # the host's waits of a training on a GPU are of other groups
        ]
        total = until = 0
        for begin, end in sorted(span for span in spans if span is not None):
            total += max(0, end - max(begin, until))  # two threads may wait at the same time
            until = max(until, end)
        return total / 1e9

    def seconds(self) -> float:
        return self.ended.ns_since(self.begun) / 1e9 if self.ended is not None else 0.0


class Attachment:
    """Observer of a training. ``attach`` creates it, once per process.

    status: text that lists the measured values, and why others are absent. off: True if nothing is reported. failures:
    number of suppressed exceptions.
    """

    def __init__(self, reporter: steps.Reporter) -> None:
        self.reporter = reporter
        self.failures = 0
        self._why_unknown = "no collective was observed"
        self._unseen = ""
        self.counted = CountedSteps(self._engine_stepped)
        self.watches_all_models = False
        self.follows_all_optimizers = False
        self.off = reporter.status.startswith("off")
        self._step: _StepTiming | None = None
        self._pass = _Pass()
        self._optimizer_steps = 0
        self._pending: Deque[_StepTiming] = deque()  # noqa: UP006
        self._averaging: Deque[_Bucket] = deque()  # noqa: UP006
        self._hooks: dict[int, functools.partial[Any]] = {}
        self._observed: set[int] = set()  # ids of models whose averaging is timed
        self._polling = threading.Lock()
        self._callbacks: List[weakref.ref[Any]] = []  # noqa: UP006
        self.collectives = CollectiveWaits(reporter, _mark_of_device)

    @property
    def status(self) -> str:
        waits = (
            f"waits are unknown: {self._unseen or self._why_unknown}"
            if self._unseen or self._why_unknown
            else "waits of collectives are measured"
        )
        return f"{self.reporter.status}; {waits}"

    def given(self, tokens: int | None = None, squares: int | None = None) -> None:
        """Report the amount of work of this rank in the current step, in plain integers. The amounts of several calls
        are added.

        squares: the sum of the squared lengths of its sequences, which is the cost of attention.
        """
        step = self._step
        if step is None:
            return  # the first step is not measured
        try:
            if tokens is not None:
                step.tokens = int(tokens) + (step.tokens or 0)
            if squares is not None:
                step.squares = int(squares) + (step.squares or 0)
        except Exception as error:
            self._fail(error)

    # --- gradients ---

    def watch(self, model: Any) -> None:
        """Replace the function with which DDP averages gradients by a timed one.

        Call it before the first backward pass.
        """
        if not isinstance(model, DistributedDataParallel):
            return
        average = functools.partial(_average, model.process_group)
        self._hooks[id(model)] = average
        self._observed.add(id(model))
        try:
            # A hook that the program registers later replaces the function that is looked up here at every call.
            _register_comm_hook(model, None, lambda _, bucket: self._communicate(self._hooks[id(model)], bucket))
        except Exception as error:
            del self._hooks[id(model)]
            self._observed.discard(id(model))
            self._unseen = f"DDP took no hook: {error}"

    def take_hook(self, model: Any, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Register the program's own communication hook for DDP, and measure its time."""
        timed = functools.partial(hook, state)
        self._observed.add(id(model))
        if id(model) in self._hooks:
            model._check_comm_hook(hook)
            self._hooks[id(model)] = timed
            return

        @functools.wraps(hook)
        def communicate(_: Any, bucket: Any) -> Any:
            return self._communicate(timed, bucket)

        _register_comm_hook(model, state, communicate)

    def _communicate(self, average: functools.partial[Any], bucket: Any) -> Any:
        """Average one bucket of gradients, when DDP calls this hook. Return the future of the averaged gradients."""
        begun = self._begin_bucket(bucket)
        future = average(bucket)
        try:
            if begun is not None:
                return future.then(self._kept(functools.partial(self._end_bucket, begun, bucket.buffer())))
        except Exception as error:
            self._fail(error)
        return future.then(self._kept(functools.partial(_first))) if average.func is _average else future

    def _kept(self, callback: functools.partial[Any]) -> functools.partial[Any]:
        """Store a weak reference to the callback, and return the callback.

        ``finish`` uses the reference to wait until gloo's threads have released the callback.
        """
        self._callbacks = [each for each in self._callbacks if each() is not None]
        self._callbacks.append(weakref.ref(callback))
        return callback

    def _begin_bucket(self, bucket: Any) -> _Bucket | None:
        try:
            tensor = bucket.buffer()
            if _capturing(tensor):
                self._why_unknown = "gradients are averaged in a CUDA graph"
                if self._step is not None:
                    self._step.disturbed = True
                return None
            self._poll()
            begun = _Bucket(self.reporter.enter(), _mark(tensor))
            self._pass.buckets.append(begun)
            if bucket.is_last():
                self._pass.whole = True
                if self._step is not None:
                    self._step.passes.append(self._pass)
                self._pass = _Pass()
            self._why_unknown = ""
            return begun
        except Exception as error:  # the training continues; the wait is unknown
            self._fail(error)
            return None

    def _end_bucket(self, bucket: _Bucket, tensor: Any, future: Any) -> Any:
        """Record the end of a bucket's averaging and return the averaged gradients.

        On a GPU, the end is recorded as a CUDA event.
        """
        try:
            bucket.averaged = _mark(tensor)
            if isinstance(bucket.averaged, _HostMark):
                self.reporter.leave(bucket.number, bucket.averaged.ns_since(bucket.ready))
            else:
                self._averaging.append(bucket)
        except Exception as error:
            self._fail(error)
        value = future.value()
        return value[0] if isinstance(value, list) else value

    # --- steps ---

    def step_ended(self, optimizer: Any) -> None:
        """Record the end of the current training step, at the end of ``optimizer.step()``."""
        try:
            if not self.counted.counts(optimizer):
                return
            if self.counted.engine is None:
                self._end_step(optimizer.param_groups[0]["params"][0])
            else:
                self._engine_stepped()  # the optimizer may be on another device than the model
        except Exception as error:
            self._fail(error)

    def _engine_stepped(self) -> None:
        """Record the end of the current training step, at the end of a step of DeepSpeed's engine."""
        try:
            self._end_step(next(self.counted.engine.module.parameters()))
        except Exception as error:
            self._fail(error)

    def _end_step(self, tensor: Any) -> None:
        """Record the end of the current training step on the clock of the tensor's device."""
        try:
            if _capturing(tensor):
                return
            now = _mark(tensor)
            ended = self._step
            collectives = self.collectives.take()
            if ended is None:
                self._find_unseen()
                self.reporter.place()  # a program with Megatron Core has created its groups by now
            else:
                ended.ended, ended.ended_ns = now, monotonic_ns()
                ended.collectives = None if self._unseen else collectives
                if ended.collectives:
                    self._why_unknown = ""
                if self._pass.buckets:
                    ended.disturbed = True  # a backward pass without its last bucket
                    self._pass = _Pass()
                self._pending.append(ended)
            self._optimizer_steps += 1
            self._step = None  # a time shift may wait here, which belongs to no step
            number = self.reporter.begin(self._optimizer_steps)
            self._step = _StepTiming(number, _mark(tensor) if self.reporter.waited_ns else now)
            self._poll()
        except Exception as error:
            self._fail(error)

    def _find_unseen(self) -> None:
        """Find models of DistributedDataParallel whose gradients are not observed, because they were made before
        ``attach``. Their waits would be missing from the step's wait, so the wait is unknown."""
        if self._unseen:
            return
        for one in gc.get_objects():
            if issubclass(type(one), DistributedDataParallel) and id(one) not in self._observed:
                self._unseen = "a DistributedDataParallel was made before attach"

    def _poll(self) -> None:
        """Report the steps that the device has finished, oldest first. Do nothing if another thread reports them."""
        if not self._polling.acquire(blocking=False):
            return
        try:
            while self._averaging and (self._averaging[0].passed() or len(self._averaging) > MAX_PENDING_BUCKETS):
                bucket = self._averaging.popleft()
                if bucket.averaged is not None and bucket.passed():
                    self.reporter.leave(bucket.number, bucket.averaged.ns_since(bucket.ready))
            while self._pending:
                step = self._pending[0]
                if step.passed():
                    self._report(step)
                elif len(self._pending) > MAX_PENDING_STEPS:
                    self._report_by_host(step)
                else:
                    return
                self._pending.popleft()
        finally:
            self._polling.release()

    def _report(self, step: _StepTiming) -> None:
        try:
            seconds, wait_seconds = step.seconds(), step.wait_seconds()
            self.reporter.report(step.number, seconds, wait_seconds, step.tokens, step.ended_ns, step.squares)
        except Exception as error:
            # The model or its optimizer moved to another device in this step, so there is no common clock.
            self._fail(error)
            self._report_by_host(step)

    def _report_by_host(self, step: _StepTiming) -> None:
        """Report the step with its duration by the host's clock, because the GPU's times are not available.

        The wait of the step is then unknown.
        """
        seconds = (step.ended_ns - step.begun_ns) / 1e9
        self.reporter.report(step.number, seconds, tokens=step.tokens, ended_ns=step.ended_ns, squares=step.squares)

    def finish(self) -> None:
        """Report the last finished steps. Called when the process ends.

        It waits, at most a second, until gloo's threads have released their callbacks: after the interpreter's end
        they would abort the process.
        """
        try:
            self._poll()
            deadline_ns = monotonic_ns() + EXIT_NS
            while any(callback() is not None for callback in self._callbacks) and monotonic_ns() < deadline_ns:
                time.sleep(0.001)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self._why_unknown = f"{type(error).__name__}: {error}"
        if self._step is not None:
            self._step.disturbed = True


def _average(group: Any, bucket: Any) -> Any:
    """Average a gradient bucket as DDP does without a hook: multiply by 1 / world size, then sum over all ranks."""
    tensor = bucket.buffer()
    tensor.mul_(1.0 / dist.get_world_size(group))
    return dist.all_reduce(tensor, group=group, async_op=True).get_future()


def _first(future: Any) -> Any:
    """Return the tensor of a completed collective; its future contains a list of one tensor."""
    return future.value()[0]


# --- attaching -------------------------------------------------------------------------------------------------------

_register_comm_hook = DistributedDataParallel.register_comm_hook
_attachment: Attachment | None = None


def attach(model: Any = None, optimizer: Any = None, reporter: steps.Reporter | None = None) -> Attachment:
    """Observe the gradients of `model` and the steps of `optimizer`.

    Without `model`, all models that are created later are observed. Without `optimizer`, all optimizers are observed.

    There is one attachment per process: a second call adds to the first. Never raises; ``status`` lists the missing
    values.
    """
    global _attachment
    if _attachment is None:
        _attachment = Attachment(steps.reporter() if reporter is None else reporter)
        if not _attachment.off:
            atexit.register(_attachment.finish)
            _attachment.collectives.install()
            _patch(DistributedDataParallel, "register_comm_hook", _registering(_attachment))
    if _attachment.off:
        return _attachment
    try:
        if model is not None:
            _attachment.watch(model)
        elif not _attachment.watches_all_models:
            _attachment.watches_all_models = True
            _patch(DistributedDataParallel, "__init__", _constructing(_attachment))
        if optimizer is not None:
            _attachment.counted.choose(optimizer)
        if not _attachment.follows_all_optimizers:
            _attachment.follows_all_optimizers = optimizer is None
            _follow(_attachment, optimizer)
    except Exception as error:
        _attachment._fail(error)
    return _attachment


def _patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    setattr(owner, name, functools.wraps(getattr(owner, name))(replacement))


def _registering(attachment: Attachment) -> Callable[..., None]:
    def register_comm_hook(model: Any, state: Any, hook: Any) -> None:
        attachment.take_hook(model, state, hook)

    return register_comm_hook


def _constructing(attachment: Attachment) -> Callable[..., None]:
    construct = DistributedDataParallel.__init__

    def init(model: Any, *arguments: Any, **options: Any) -> None:
        construct(model, *arguments, **options)
        attachment.watch(model)

    return init


def _follow(attachment: Attachment, optimizer: Any) -> None:
    """Observe an optimizer's steps, with a hook from torch 2.0 on, else by replacing its method ``step``."""

    def stepped(stepping: Any, *_: Any) -> None:
        attachment.step_ended(stepping)

    if optimizer is not None:
        if hasattr(optimizer, "register_step_post_hook"):
            optimizer.register_step_post_hook(stepped)
        else:
            _wrap_step(attachment, optimizer)
        return
    if hasattr(torch.optim.Optimizer, "register_step_post_hook"):
        # Not through torch.optim: torch 2 removes the module's name from the package.
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(stepped)
        return
    construct = torch.optim.Optimizer.__init__

    def init(made: Any, *arguments: Any, **options: Any) -> None:
        construct(made, *arguments, **options)
        _wrap_step(attachment, made)

    _patch(torch.optim.Optimizer, "__init__", init)


def _wrap_step(attachment: Attachment, optimizer: Any) -> None:
    """Replace ``optimizer.step`` by a timed bound method, for torch before 2.0.

    It is a bound method because learning-rate schedulers need one.
    """
    step = type(optimizer).step

    @functools.wraps(step)
    def stepping(self: Any, *arguments: Any, **options: Any) -> Any:
        result = step(self, *arguments, **options)
        attachment.step_ended(self)
        return result

    optimizer.step = types.MethodType(stepping, optimizer)


def main() -> None:
    """Run the program on the command line as ``python`` would, and observe its models and optimizers."""
    arguments = sys.argv[1:]
    module = arguments[:1] == ["-m"]
    if module:
        del arguments[0]
    if not arguments:
        sys.exit("usage: python -m gangwatch.torch (SCRIPT | -m MODULE) [ARGUMENT ...]")
    attach()
    sys.argv = arguments
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11's -P
        sys.path[0] = str(Path.cwd() if module else Path(arguments[0]).resolve().parent)
    if module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    # This file runs as __main__; the program attaches to the module that it imports.
    from gangwatch.torch import main as main_of_module

    main_of_module()
