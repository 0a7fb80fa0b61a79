"""A rank that runs the program of its process of the MPI job. Rank 0 also runs mpirun."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from gangwatch.mpi import messages

REGISTER_SECONDS = 60.0
"""Longest time that rank 0 waits for the other ranks, which start at the same moment."""
POLL_SECONDS = 0.05
OWN_END_SECONDS = 0.5
"""Time for a program that mpirun has given up to end by itself."""
STOP_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for a program that mpirun has given up."""
FIRST_SECONDS = 2.0
"""Longest time between the end of the rank that failed and the stop of its gang."""

_KEPT = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGSEGV, signal.SIGBUS,
    signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGTSTP,
}  # fmt: skip
"""Signals that are not passed on to the program."""


class RankError(Exception):
    """Error: the rank cannot take part. The message says why and what to do."""


class _NotStartedError(Exception):
    """Error: mpirun ended before it started the stand-in of this rank."""


class Rank:
    """The process of one rank. Use it as a context: its socket exists within it."""

    def __init__(self, folder: Path, rank: int, environment: Mapping[str, str]) -> None:
        self._folder, self._rank, self._environment = folder, rank, environment
        self._path = messages.socket_path(folder, rank)
        self._listener = socket.socket(socket.AF_UNIX)
        self._program: subprocess.Popen[bytes] | None = None
        self._mpirun: int | None = None  # descriptor of its process
        self._signalled = False

    def __enter__(self) -> Rank:
        for number in signal.valid_signals() - _KEPT:
            with contextlib.suppress(OSError, ValueError):  # reserved by the C library
                signal.signal(number, self._pass_on)
        self._path.unlink(missing_ok=True)  # of an earlier attempt that was killed
        with messages.short_path(self._folder, self._rank) as path:
            self._listener.bind(path)
        self._listener.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the last rank removes the folder
            self._folder.rmdir()
        if self._program is not None and self._program.poll() is None:
            self._program.kill()

    def wait_for_ranks(self, ranks: int) -> None:
        """Wait until all ranks have their sockets. Raises RankError if some have none in time."""
        until = time.monotonic() + REGISTER_SECONDS
        while missing := messages.absent(self._folder, range(ranks)):
            if time.monotonic() > until:
                named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                raise RankError(
                    f"rank {named} did not start in {REGISTER_SECONDS:.0f} s. All ranks must run on this machine; on "
                    "several, use `srun --mpi` or Kubernetes' MPI operator"
                )
            time.sleep(POLL_SECONDS)

    def run(self, launch: Callable[[], subprocess.Popen[bytes]] | None) -> int:
        """Run the program when its stand-in asks for it. Return its exit code, or mpirun's if it never asks.

        launch: starts mpirun; None for all ranks but 0.
        """
        if launch is None:
            return self._serve()
        mpirun = launch()
        self._mpirun = os.pidfd_open(mpirun.pid)
        try:
            code = self._serve()
            # mpirun ends when the programs of all ranks have ended. If the gang is being stopped, another rank failed.
            ended = _exit_code(mpirun.wait())
            return code or (0 if self._signalled else ended)
        except _NotStartedError:
            raise RankError(f"mpirun ended with {mpirun.wait()} before it started rank {self._rank}") from None
        finally:
            os.close(self._mpirun)
            if mpirun.poll() is None:
                mpirun.kill()

    def _serve(self) -> int:
        """Wait for the stand-in, and run the program. Raises _NotStartedError if mpirun ends before."""
        while True:
            if self._listener not in self._first_of(self._listener):
                raise _NotStartedError
            connection, _ = self._listener.accept()
            with connection:
                try:
                    if messages.peer_user(connection) != os.getuid():
                        raise messages.MessageError("another user asked")
                    request, descriptors = messages.receive_request(connection)
                except (OSError, messages.MessageError) as error:
                    sys.stderr.write(f"gangwatch.mpi: a request was ignored: {error}\n")
                    continue
                self._listener.close()  # the rank runs one program
                return self._run_program(connection, request, descriptors)

    def _first_of(self, *files: socket.socket | int) -> set[object]:
        """Wait until one of the files can be read, or mpirun ends. Return all to which that applies."""
        with selectors.DefaultSelector() as selector:
            for one in files if self._mpirun is None else (*files, self._mpirun):
                selector.register(one, selectors.EVENT_READ)
            return {key.fileobj for key, _ in selector.select()}

    def _run_program(self, connection: socket.socket, request: messages.Request, descriptors: list[int]) -> int:
        """Run the program until it ends, and send the exit code to the stand-in. Return it."""
        numbers = {name: str(number) for name, number in zip(request.descriptors, descriptors, strict=True)}
        environment = {**self._environment, **request.variables, **numbers}
        try:
            self._program = subprocess.Popen(request.command, env=environment, pass_fds=descriptors)
        except OSError as error:
            raise RankError(f"{request.command[0]} does not start: {error.strerror or error}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        code = self._wait(connection)
        with contextlib.suppress(OSError):  # the stand-in was stopped
            messages.send_exit_code(connection, code)
        return _exit_code(code)

    def _wait(self, connection: socket.socket) -> int:
        """Wait for the end of the program. Stop it if the stand-in or mpirun has ended, which gives it up."""
        assert self._program is not None
        descriptor = os.pidfd_open(self._program.pid)
        try:
            # If the whole gang is being stopped, the program may take its time to save.
            if descriptor in self._first_of(descriptor, connection) or self._signalled:
                return self._program.wait()
        finally:
            os.close(descriptor)
        # A program that failed closes its descriptors before it has ended, so MPICH may give it up a moment earlier.
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._program.wait(OWN_END_SECONDS)
        self._program.terminate()
        try:
            code = self._program.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._program.kill()
            code = self._program.wait()
        self._let_the_first_failure_be_first()
        return code

    def _let_the_first_failure_be_first(self) -> None:
        """Wait until the gang is stopped because the rank that failed has ended, so that it is named as the reason."""
        until = time.monotonic() + FIRST_SECONDS
        while not self._signalled and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._program is None:
            sys.exit(128 + number)
        self._signalled = True
        self._program.send_signal(number)


def _exit_code(code: int) -> int:
    """Return the exit code of a shell for a program that ended with `code` (negative: the number of a signal)."""
    return 128 - code if code < 0 else code
