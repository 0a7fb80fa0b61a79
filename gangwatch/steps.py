"""Reporter of training steps, for import by training processes: current step, step times, and waits for other ranks.

::

    from gangwatch import steps

    reporter = steps.reporter()
    for batch in batches:
        with reporter.step(tokens=len(batch)):
            gradients = compute(batch)
            with reporter.wait():            # around calls that block until every rank has entered
                all_reduce(gradients)
            update(gradients)

Standard library only, one file, Python 3.8 or newer, Linux. The reporter never raises into the training, and blocks it
only for a time shift, which an operator must switch on. A record is one write into memory that is shared with the
node's agent (about a microsecond, without a system call or a wake-up). Errors are counted in ``Reporter.dropped`` or
described in ``Reporter.status``. The begin of a step and the entry into a collective are recorded immediately, so that
the agent can detect a rank that is missing during a hang.

Without GANGWATCH_SOCKET in the environment a reporter does nothing: it has no memory file and no thread.

**Connection to the agent.** A daemon thread connects to the unix stream socket GANGWATCH_SOCKET and sends one message,
four bytes of length (big-endian) and JSON ``{"v": 1, "gang", "rank", "attempt", "world_size", "pid"}``, with a memory
file attached (SCM_RIGHTS, unix(7)). The agent responds with ``{"ok": true}`` or ``{"ok": false, "error": "..."}``, in
the same format. The connection stays open while the process lives. If it ends, the thread connects again: a restarted
agent reads the records written meanwhile, even while the training hangs. The agent prefers facts from the kernel over
the claims in the message.

**Place of a blocked rank.** The message contains ``"answers": 1`` if the reporter answers the agent's question. If the
rank makes no progress, the agent may send ``{"v": 1, "ask": "blocked"}`` on the connection. The thread answers once
with ``{"v": 1, "blocked": {"where", "stacks", "collective"}}``, at most 16 KiB: the Python stacks of all threads and
the collective in progress (reporting/rank_stacks.py). GANGWATCH_STACKS=off in the environment turns the answers off.

**Time shift.** The message contains ``"shifts": 1`` if the reporter can delay steps. The agent then may send ``{"v": 1,
"shift": {"period_ns", "offset_ns"}}``, the controller's order for this gang (reporting/time_shift.py), or ``"shift":
null`` to end it. ``step`` and ``begin`` then wait before the step begins, for a quarter of the time at most. The record
of the step's begin contains that time, which the agent adds to the step and to its wait. GANGWATCH_TIME_SHIFTS=off in
the environment turns shifts off.

**Parallel layout.** The rank's position in the job's layout (its data, stage, tensor and expert group) lets detectors
distinguish a slow rank from ranks that wait for it. The message contains it as
``"place": {"data", "stage", "tensor", "expert"}``, from GANGWATCH_DATA_RANK, GANGWATCH_PIPELINE_STAGE,
GANGWATCH_TENSOR_RANK and GANGWATCH_EXPERT_RANK, or from GANGWATCH_LAYOUT with the sizes, the fastest-varying first
(``tensor=8,data=4,pipeline=2``, as Megatron numbers its ranks). torchrun and DeepSpeed set no such variables: the
program then calls ``Reporter.place``, which sends ``{"v": 1, "place": {...}}`` on the same connection. It applies only
to the rank of that connection.

**The memory file** (memfd_create(2), sealed against changes of size) is little-endian: a header of 64 bytes, that
is magic ``GWRING01``, u32 slot size, u32 slots, u64 records ever written; then slots of 64 bytes, each u64 sequence
(counted from 1), u8 kind, u8 flags, u48 squares (low 16 bits first; 0 if unknown), i64 number, i64 time
(CLOCK_MONOTONIC, ns), i64 duration (ns; of the begin of a step: that of the wait before it), i64 wait (ns), i64 tokens,
u64 sequence again. A record is in slot
(sequence - 1) mod slots; the header's count is updated after it.

**Threads.** There is no lock, because a signal handler or a second thread may report at any moment and must not block.
Every record has its own slot (``itertools.count`` returns each number once). If two threads wait at the same time in
one step, one of the two times may be lost; all entries and exits are still recorded.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import mmap
import os
import socket
import struct
import sys
import threading
import weakref
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Tuple  # noqa: UP035 (Python 3.8)

try:
    from gangwatch.reporting import flight_recorder, nccl_ras, rank_stacks, time_shift
except ImportError:  # this file was copied alone: the reporter answers no questions, and takes no time shifts
    flight_recorder = nccl_ras = rank_stacks = time_shift = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Reporter", "Step", "Wait", "reporter"]

STEP_BEGUN, STEP_ENDED, COLLECTIVE_ENTERED, COLLECTIVE_LEFT = 1, 2, 3, 4
"""Codes of the kinds of records in the step ring."""

WAIT_KNOWN, TOKENS_KNOWN, ABANDONED = 1, 2, 4
"""Flag bits of a STEP_ENDED record: the wait was measured, the tokens are known, an exception ended the step."""

MAGIC = b"GWRING01"
HEADER_BYTES = 64
SLOT_BYTES = 64

DEFAULT_SLOTS = 4096
"""Default number of records in the ring (256 KiB): enough for 8,192 a second if the agent reads twice a second."""

MAX_NUMBER = 2**53
"""Maximum step number and token count. JSON and doubles represent integers exactly up to this value."""

MAX_SQUARES = 2**48 - 1
"""Maximum sum of squared sequence lengths, in tokens squared: the square of one sequence of 16 million tokens."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, LAST_REFUSED_SECONDS = 0.2, 5.0, 60.0
"""Pauses in seconds between attempts to register: the first one and the longest one, with doubling in between, and the
pause after the agent has refused a registration."""

ANSWER_SECONDS = 30.0
"""Maximum time in seconds to wait for the agent's response. Only the reporter's thread waits, not the training."""

MAX_ANSWER_BYTES = 4096

MAX_REPORT_BYTES = 16 * 1024
"""Maximum size in bytes of the report about a blocked rank. The agent closes the connection after a longer message."""

_HEADER = struct.Struct("<8sII")
_SLOT = struct.Struct("@QBBHIqqqqqQ")
_pack_into = _SLOT.pack_into

_TIMEVAL = struct.Struct("@ll")  # struct timeval of SO_SNDTIMEO, socket(7)

# Values of fcntl(2), for builds of Python that were compiled against older headers.
_F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEAL_SIZE = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW

_RANK = ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_ATTEMPT = ("GANGWATCH_ATTEMPT", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
_GANG = ("GANGWATCH_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_PLACES = {
    "data": ("GANGWATCH_DATA_RANK",),
    "stage": ("GANGWATCH_PIPELINE_STAGE",),
    "tensor": ("GANGWATCH_TENSOR_RANK",),
    "expert": ("GANGWATCH_EXPERT_RANK",),
}
_LAYOUT = "GANGWATCH_LAYOUT"
_DIMENSIONS = ("tensor", "context", "expert", "data", "pipeline")

Place = Dict[str, int]  # noqa: UP006
"""Coordinates of a rank in the parallel layout, by name: 'data', 'stage', 'tensor', 'expert'. Unknown ones are
absent."""

MAX_COORDINATE = 2**20


def _word(environment: Mapping[str, str], names: Tuple[str, ...]) -> Optional[str]:  # noqa: UP006, UP045
    """Return the value of the first of these environment variables that is set and not empty; None if there is none."""
    for name in names:
        value = environment.get(name)
        if value:
            return value
    return None


def _count(environment: Mapping[str, str], names: Tuple[str, ...]) -> Optional[int]:  # noqa: UP006, UP045
    """Return the number in the first of these variables that is set; None if it is not a valid rank or count."""
    value = _word(environment, names)
    try:
        number = int(value) if value is not None else -1
    except ValueError:
        return None
    return number if 0 <= number < 2**31 else None


def place_in_layout(layout: str, rank: int, world_size: int | None) -> Place:
    """Return the coordinates of a rank in the parallel layout.

    layout: sizes of the dimensions, the fastest-varying first: ``tensor=8,data=4,pipeline=2``. Ranks that process
    different data, or different parts of a sequence, have different 'data' values.

    Raises ValueError if the layout is malformed or does not match the world size.
    """
    sizes: Dict[str, int] = {}  # noqa: UP006
    for part in layout.split(","):
        name, _, digits = part.strip().partition("=")
        if name not in _DIMENSIONS or name in sizes or not digits.isdecimal() or int(digits) < 1:
            raise ValueError(f"{_LAYOUT}: {part.strip()!r} is not DIMENSION=SIZE, with one of {', '.join(_DIMENSIONS)}")
        sizes[name] = int(digits)
    found: Place = {}
    rest, ranks, data, data_ranks = rank, 1, 0, 1
    for name, size in sizes.items():
        rest, found[name] = divmod(rest, size)
        ranks *= size
        if name in ("context", "expert", "data"):
            data += found[name] * data_ranks
            data_ranks *= size
    if rest or (world_size is not None and ranks != world_size):
        raise ValueError(f"{_LAYOUT}: {layout} does not fit rank {rank} of {world_size}")
    place = {"data": data, "stage": found.get("pipeline", 0), "tensor": found.get("tensor", 0)}
    if "expert" in found:
        place["expert"] = found["expert"]
    return place


def _place_of(environment: Mapping[str, str]) -> Place:
    """Return the rank's place from the environment. A variable for one coordinate overrides GANGWATCH_LAYOUT."""
    found: Place = {}
    layout, rank = environment.get(_LAYOUT), _count(environment, _RANK)
    if layout and rank is not None:
        found.update(place_in_layout(layout, rank, _count(environment, _WORLD_SIZE)))
    for name, variables in _PLACES.items():
        coordinate = _count(environment, variables)
        if coordinate is not None and coordinate < MAX_COORDINATE:
            found[name] = coordinate
    return found


def _place_of_megatron() -> Place:
    """Return the rank's place from Megatron Core, if the program has initialised its groups; else an empty place.

    The coordinates are this rank's numbers in the process groups of megatron/core/parallel_state.py. 'data' is the
    number in the data-parallel group that includes context-parallel ranks.
    """
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    found = {
        "data": state.get_data_parallel_rank(with_context_parallel=True),
        "stage": state.get_pipeline_model_parallel_rank(),
        "tensor": state.get_tensor_model_parallel_rank(),
    }
    if state.get_expert_model_parallel_world_size() > 1:
        found["expert"] = state.get_expert_model_parallel_rank()
    return found


class Step:
    """One training step, as a context manager. The step begins on entry and ends on exit.

    An exception in the block marks the step as abandoned.

    number: the step's number. tokens, squares (the sum of the squared lengths of its sequences): the amount of work of
    this rank. They may be set inside the block. They must be plain integers, because reading a tensor on a GPU would
    block.
    """

    __slots__ = ("_begun_ns", "_reporter", "number", "squares", "tokens")

    def __init__(self, reporter: Reporter, number: int, tokens: int | None, squares: int | None) -> None:
        self._reporter = reporter
        self.number = number
        self.tokens = tokens
        self.squares = squares

    def __enter__(self) -> Step:
        reporter = self._reporter
        reporter._wait_ns = None
        shift = reporter._shift
        waited_ns = 0 if shift is None else shift.begin()
        self._begun_ns = now_ns = monotonic_ns()
        reporter._write(STEP_BEGUN, 0, self.number, now_ns, waited_ns, 0, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now_ns = monotonic_ns()
        reporter = self._reporter
        if kind is None:
            took_ns = now_ns - self._begun_ns
            reporter._finish(self.number, now_ns, took_ns, reporter._wait_ns, self.tokens, self.squares)
        else:
            reporter._write(STEP_ENDED, ABANDONED, self.number, now_ns, now_ns - self._begun_ns, 0, 0)


class Wait:
    """One blocking collective, as a context manager. Its duration is part of the wait of the enclosing step."""

    __slots__ = ("_entered_ns", "_number", "_reporter")

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def __enter__(self) -> Wait:
        self._entered_ns = now_ns = monotonic_ns()
        reporter = self._reporter
        self._number = number = next(reporter._collectives)
        reporter._write(COLLECTIVE_ENTERED, 0, number, now_ns, 0, 0, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now_ns = monotonic_ns()
        reporter = self._reporter
        duration_ns = now_ns - self._entered_ns
        reporter._wait_ns = (reporter._wait_ns or 0) + duration_ns
        reporter._write(COLLECTIVE_LEFT, 0, self._number, now_ns, duration_ns, 0, 0)


class Reporter:
    """Reporter of this process's steps to the node's agent. ``reporter()`` returns the reporter of the process.

    environment: variables that contain socket, gang and rank; os.environ by default.
    slots: length of the ring in records, a power of two from 256 to 65536.

    status: state of the connection to the agent, as text. dropped: number of records that could not be written.
    collective_in_progress: returns the collective in which the process is, for a report about a blocked rank; None if
    nothing records it. Another thread calls it, so it must not wait for a lock.
    waited_ns: how long the newest call of ``begin`` waited for a time shift.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, slots: int = DEFAULT_SLOTS) -> None:
        self.dropped = 0
        self.collective_in_progress: Callable[[], Mapping[str, Any] | None] | None = None
        self._wait_ns: int | None = None
        self._shift: time_shift.TimeShift | None = None
        self.waited_ns = 0
        self._next_step = 0
        self._collectives = itertools.count()
        self._indices = itertools.count()
        self._ring: mmap.mmap | None = None
        self._mask = slots - 1
        self._registration: _Registration | None = None
        self._off = ""
        try:
            self._open(os.environ if environment is None else environment, slots)
        except Exception as error:  # the training must continue without the reporter
            self.close()
            self._off = f"off: {error}"

    def _open(self, environment: Mapping[str, str], slots: int) -> None:
        path = environment.get("GANGWATCH_SOCKET")
        if not path:
            self._off = "off: GANGWATCH_SOCKET is not set"
            return
        if not hasattr(os, "memfd_create"):
            self._off = "off: this Python has no memfd_create (needs Linux 3.17 and glibc 2.27)"
            return
        if sys.byteorder != "little":
            self._off = "off: this machine is not little-endian"
            return
        if slots & (slots - 1) or not 256 <= slots <= 65536:
            raise ValueError(f"slots = {slots}: must be a power of two from 256 to 65536")
        memory = os.memfd_create("gangwatch-steps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, HEADER_BYTES + slots * SLOT_BYTES)
            ring = mmap.mmap(memory, HEADER_BYTES + slots * SLOT_BYTES)
            fcntl.fcntl(memory, _F_ADD_SEALS, _SEAL_SIZE)
            _HEADER.pack_into(ring, 0, MAGIC, SLOT_BYTES, slots)
            claim: Dict[str, Any] = {  # noqa: UP006
                "v": 1,
                "gang": _word(environment, _GANG),
                "rank": _count(environment, _RANK),
                "attempt": _count(environment, _ATTEMPT),
                "world_size": _count(environment, _WORLD_SIZE),
                "pid": os.getpid(),
            }
            if rank_stacks is not None and environment.get("GANGWATCH_STACKS") != "off":
                claim["answers"] = 1
            if time_shift is not None and environment.get("GANGWATCH_TIME_SHIFTS") != "off":
                claim["shifts"] = 1
                self._shift = time_shift.TimeShift()
            place = self._place_of(environment)
            registration = _Registration(path, claim, place, memory, self._blocked, self._shift)
        except BaseException:
            os.close(memory)
            raise
        registration.start()
        self._registration = registration
        # The count's eight bytes are one aligned store: the agent reads the old count or the new one.
        self._written = memoryview(ring)[16:24].cast("Q")
        self._ring = ring
        _living.add(self)

    def _place_of(self, environment: Mapping[str, str]) -> Place:
        try:
            return _place_of(environment)
        except ValueError:
            self.dropped += 1  # an invalid layout must not prevent the reports of steps
            return {}

    @property
    def status(self) -> str:
        """Return 'registered', or the reason why the reporter is not registered with the agent."""
        registration = self._registration
        return self._off or (registration.status if registration is not None else "closed")

    # --- called by a training loop ---

    def step(self, tokens: int | None = None, number: int | None = None, squares: int | None = None) -> Step:
        """Return a context manager for the next training step.

        number: number of the step, for a resumed training that does not begin at 0. tokens: tokens of this rank.
        squares: the sum of the squared lengths of its sequences, which is the cost of attention. Without it, a rank
        with one long document looks like a slow rank.
        """
        return Step(self, self._number(number), tokens, squares)

    def wait(self) -> Wait:
        """Return a context manager for calls that block until the other ranks have entered (all-reduce, barrier)."""
        return Wait(self)

    def report(
        self,
        step: int,
        seconds: float,
        wait_seconds: float | None = None,
        tokens: int | None = None,
        ended_ns: int | None = None,
        squares: int | None = None,
    ) -> None:
        """Report a step that has ended. ended_ns: time of its end on ``time.monotonic_ns()``; None means now.

        wait_seconds: None if unknown; 0 if measured and there was none. tokens, squares: as in ``step``.
        """
        try:
            duration_ns = round(seconds * 1e9)
            wait_ns = None if wait_seconds is None else round(wait_seconds * 1e9)
            if duration_ns < 0 or (wait_ns is not None and wait_ns < 0):
                raise ValueError("negative time")
            self._next_step = max(self._next_step, step + 1)
            self._finish(step, monotonic_ns() if ended_ns is None else ended_ns, duration_ns, wait_ns, tokens, squares)
        except Exception:
            self.dropped += 1

    def begin(self, number: int | None = None) -> int:
        """Record the begin of a step and return the step's number. ``report`` ends the step.

        With a time shift it waits first, so the step begins when this function returns.

        This function is for code that can't use ``with``, such as hooks of a framework.
        """
        number = self._number(number)
        shift = self._shift
        self.waited_ns = waited_ns = 0 if shift is None else shift.begin()
        self._write(STEP_BEGUN, 0, number, monotonic_ns(), waited_ns, 0, 0)
        return number

    def enter(self) -> int:
        """Record the entry into a collective and return its number, for ``leave``. Any thread may call ``leave``."""
        number = next(self._collectives)
        self._write(COLLECTIVE_ENTERED, 0, number, monotonic_ns(), 0, 0, 0)
        return number

    def leave(self, number: int, duration_ns: int) -> None:
        """Record the end of the collective `number` with its duration. The duration is not added to a step's wait."""
        self._write(COLLECTIVE_LEFT, 0, number, monotonic_ns(), duration_ns, 0, 0)

    def place(
        self, data: int | None = None, stage: int | None = None, tensor: int | None = None, expert: int | None = None
    ) -> None:
        """Report this rank's place in the job's parallel layout, after the program has created its groups.

        data, tensor, expert: number of this rank in its data-parallel, tensor-parallel and expert-parallel group.
        stage: its pipeline stage. None if the program has no such group. Without arguments, the place comes from
        Megatron Core if the program uses it.
        """
        try:
            given = {"data": data, "stage": stage, "tensor": tensor, "expert": expert}
            place = {name: int(index) for name, index in given.items() if index is not None} or _place_of_megatron()
            if any(not 0 <= index < MAX_COORDINATE for index in place.values()):
                raise ValueError("a coordinate is out of range")
            registration = self._registration
            if registration is not None and place:
                registration.place(place)
        except Exception:
            self.dropped += 1

    def close(self) -> None:
        """Stop reporting steps. The agent still reads the records that were written before."""
        self._ring = self._shift = None
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.stop()

    # --- internals ---

    def _blocked(self) -> Dict[str, Any]:  # noqa: UP006
        """Return the report about this process for the agent. Called in the connection's thread."""
        collective = None
        communicators = nccl_ras.ask(os.environ)
        try:
            if self.collective_in_progress is not None:
                collective = self.collective_in_progress()
            collective = flight_recorder.merged(collective)
        except Exception:
            self.dropped += 1
        return {**rank_stacks.blocked(collective), "communicators": communicators()}

    def _number(self, asked: int | None) -> int:
        """Return the number of the next step: `asked` if it is given, else the number of the last step plus one."""
        number = self._next_step
        if asked is not None:
            try:
                if not 0 <= int(asked) <= MAX_NUMBER:
                    raise ValueError
                number = int(asked)
            except Exception:
                self.dropped += 1
        self._next_step = number + 1
        return number

    def _finish(
        self, number: int, ended_ns: int, duration_ns: int, wait_ns: int | None, tokens: int | None, squares: int | None
    ) -> None:
        flags = 0
        if wait_ns is None:
            wait_ns = 0
        else:
            flags = WAIT_KNOWN
            if wait_ns > duration_ns:
                # Collectives overlap (two threads) or began before the step: the wait can't exceed the step.
                wait_ns = duration_ns
        if tokens is None:
            tokens = 0
        else:
            try:
                tokens = int(tokens)
                if 0 <= tokens <= MAX_NUMBER:
                    flags |= TOKENS_KNOWN
                else:
                    raise ValueError
            except Exception:
                # Report the step without tokens rather than not at all.
                tokens = 0
                self.dropped += 1
        if squares is None:
            squares = 0
        else:
            try:
                squares = int(squares)
                if not 0 <= squares <= MAX_SQUARES:
                    raise ValueError
            except Exception:
                squares = 0
                self.dropped += 1
        self._write(STEP_ENDED, flags, number, ended_ns, duration_ns, wait_ns, tokens, squares)

    def _write(
        self, kind: int, flags: int, number: int, time_ns: int, duration_ns: int, wait_ns: int, tokens: int,
        squares: int = 0,
    ) -> None:  # fmt: skip
        ring = self._ring
        if ring is None:
            return
        try:
            index = next(self._indices)
            sequence = index + 1
            offset = HEADER_BYTES + (index & self._mask) * SLOT_BYTES
            _pack_into(
                ring, offset, sequence, kind, flags, squares & 0xFFFF, squares >> 16, number, time_ns, duration_ns,
                wait_ns, tokens, sequence,
            )  # fmt: skip
            written = self._written
            # Another thread may have written a later record meanwhile; the count must not decrease.
            if written[0] < sequence:
                written[0] = sequence
        except Exception:
            self.dropped += 1

    def _disable_after_fork(self) -> None:
        """Disable the reporter in a forked child process, and close the child's copy of the connection."""
        self._ring = self._shift = None
        self._off = "off: this process was forked from the one that reports"
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.close_descriptors()


class _Registration:
    """Connection to the agent. A daemon thread opens the connection, and opens it again after a failure."""

    def __init__(
        self,
        path: str,
        claim: dict[str, Any],
        place: Place,
        memory: int,
        blocked: Callable[[], Dict[str, Any]],  # noqa: UP006
        shift: time_shift.TimeShift | None = None,
    ) -> None:
        self.status = "connecting"
        self._blocked = blocked
        self._shift = shift
        self._path = path
        self._claim = claim
        self._place = place
        self._sent_place = place
        self._memory = memory
        self._connection: socket.socket | None = None
        self._stopped = threading.Event()
        self._sending = threading.Lock()

    def start(self) -> None:
        """Start the thread. If that fails, close the memory file and raise RuntimeError."""
        try:
            threading.Thread(target=self._run, name="gangwatch-steps", daemon=True).start()
        except BaseException:
            os.close(self._memory)
            raise

    def stop(self) -> None:
        """Make the thread end. The thread closes its file descriptors when it ends."""
        self.status = "closed"
        self._stopped.set()
        connection = self._connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close_descriptors(self) -> None:
        """Close a forked child's copies of the file descriptors.

        The thread that would close them does not exist there.
        """
        try:
            connection = self._connection
            if connection is not None:
                connection.close()
            os.close(self._memory)
        except OSError:
            pass

    def _run(self) -> None:
        pause_seconds = FIRST_RETRY_SECONDS
        while not self._stopped.is_set():
            longest = LAST_RETRY_SECONDS
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    self._connection = connection
                    refusal = self._register(connection)
                    if refusal is None:
                        pause_seconds = FIRST_RETRY_SECONDS
                        self._set_status("registered")
                        self._send_place(connection)
                        connection.settimeout(None)
                        self._answer_questions(connection)
                        self._set_status("waiting: the agent closed the connection")
                    else:
                        longest = LAST_REFUSED_SECONDS
                        self._set_status(f"refused: {refusal}")
            except Exception as error:  # no agent yet, a lost connection, or an invalid response
                self._set_status(f"waiting: {self._path}: {error}")
            self._connection = None
            if self._shift is not None:
                self._shift.end()
            self._stopped.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, longest)
        os.close(self._memory)

    def _answer_questions(self, connection: socket.socket) -> None:
        """Answer the agent's questions until the connection ends. Messages of later versions are ignored."""
        received = b""
        while not self._stopped.is_set():
            data = connection.recv(4096)
            if not data:
                return
            received += data
            while len(received) >= 4:
                length = int.from_bytes(received[:4], "big")
                if length > MAX_ANSWER_BYTES:
                    raise ValueError(f"message too long: {length} bytes")
                if len(received) < 4 + length:
                    break
                question: Any = json.loads(received[4 : 4 + length])
                received = received[4 + length :]
                if question.get("ask") == "blocked":
                    self._send_blocked(connection)
                if "shift" in question and self._shift is not None:
                    self._shift.take(question["shift"])

    def _send_blocked(self, connection: socket.socket) -> None:
        report = self._blocked()
        message = _framed({"v": 1, "blocked": report})
        while len(message) > MAX_REPORT_BYTES:  # characters outside of ASCII take up to twelve bytes
            report["stacks"] = report["stacks"][: len(report["stacks"]) // 2]
            message = _framed({"v": 1, "blocked": report})
        with self._sending:
            connection.settimeout(ANSWER_SECONDS)
            try:
                connection.sendall(message)
            finally:
                connection.settimeout(None)
        self._send_place(connection)  # the training may have tried meanwhile

    def place(self, place: Place) -> None:
        """Send the rank's place without blocking. If that fails, the next registration contains the place."""
        self._place = place
        connection = self._connection
        if connection is not None and self.status == "registered":
            self._send_place(connection)

    def _send_place(self, connection: socket.socket) -> None:
        """Send the rank's place if it was not sent before. If two threads send the same place, this does no harm."""
        place = self._place
        if place != self._sent_place and self._sending.acquire(blocking=False):
            try:
                connection.send(_framed({"v": 1, "place": place}), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._sent_place = place
            finally:
                self._sending.release()

    def _set_status(self, status: str) -> None:
        if not self._stopped.is_set():
            self.status = status

    def _register(self, connection: socket.socket) -> str | None:
        """Send the registration message and the memory file. Return None if the agent accepts, else its error."""
        # A blocking connect queues up while others flood the socket; a non-blocking one would fail with EAGAIN.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(ANSWER_SECONDS), 0))
        connection.connect(self._path)
        connection.settimeout(ANSWER_SECONDS)
        descriptors = array.array("i", [self._memory])
        place = self._place
        message = _framed({**self._claim, "place": place} if place else self._claim)
        try:
            sent = connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            connection.sendall(message[sent:])
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before the message was read: the response with the reason can still be received
        self._sent_place = place
        length = int.from_bytes(_receive(connection, 4), "big")
        if length > MAX_ANSWER_BYTES:
            raise ValueError(f"response too long: {length} bytes")
        answer: Any = json.loads(_receive(connection, length))
        return None if answer["ok"] is True else str(answer.get("error"))


def _framed(message: Dict[str, Any]) -> bytes:  # noqa: UP006
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


def _receive(connection: socket.socket, size: int) -> bytes:
    """Receive and return exactly `size` bytes. Raises EOFError if the connection ends before."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the agent closed the connection")
        data += more
    return data


_living: weakref.WeakSet[Reporter] = weakref.WeakSet()
_of_process: Dict[str, Reporter] = {}  # noqa: UP006
_creating = threading.Lock()


def reporter() -> Reporter:
    """Return the reporter of this process. The first call creates the reporter."""
    found = _of_process.get("")
    if found is None:
        with _creating:
            found = _of_process.get("")
            if found is None:
                found = _of_process[""] = Reporter()
    return found


def _after_fork_in_child() -> None:
    global _creating
    _creating = threading.Lock()  # another thread of the parent may have held it
    for each in list(_living):
        each._disable_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
