"""Execution of mutants' tests in a copy of the repository, in a process that imports everything once and forks.

A worker copies the repository's files to a temporary folder, and imports pytest and all tests once. For each mutant
it writes the changed file into the copy and forks. The child process replaces the code of the changed function in
the imported modules and runs the tests. A change outside a function is tested in a new process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.mutant import Applied, Mutant, NotApplicableError, apply

TIMEOUT_SECONDS = 240.0
"""Maximum seconds for the tests of one mutant. They take seconds on an idle machine."""

TESTS_FAILED, PATCH_FAILED = 1, 90
ROOT = Path(__file__).resolve().parents[2]
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", "-p", "no:xdist")


@dataclass(frozen=True, slots=True)
class Result:
    """Result of the tests of one mutant."""

    mutant: Mutant
    outcome: str
    """'killed' if a test failed, 'survived' if none failed, or 'error'."""
    detail: str
    seconds: float


@contextlib.contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """Yield a temporary copy of the working tree. It is deleted at the end of the context."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True
    )
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    if listed.returncode or not names:
        raise NotApplicableError(f"{root}: mutants take a git checkout: {listed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="gangwatch-mutants-") as name:
        folder = Path(name)
        for each in names:
            if (root / each).is_file():
                (folder / each).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / each, folder / each)
        yield folder


class Worker:
    """Runner of the tests of one mutant after the other.

    Use it in a separate process, whose folder and environment it changes.
    """

    def __init__(self, folder: Path, tests: Sequence[str]) -> None:
        """Import the tests. folder: copy of the repository. tests: all tests of the mutants that this worker gets."""
        self._folder = folder
        self._baselines: dict[tuple[str, ...], str] = {}
        os.environ.setdefault("GANGWATCH_DATA", str(ROOT.parent / "shared" / "data"))
        os.environ["PYTHONPATH"] = str(folder)
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.chdir(folder)
        sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("benchmarks", "tests")]:
            del sys.modules[name]
        files = sorted({test.partition("::")[0] for test in tests})
        self.ready = self._imported(files)

    def _imported(self, files: Sequence[str]) -> int:
        """Import pytest's plugins and the test files into this process; return an exit code."""
        import pytest

        with _silent():
            return int(pytest.main([*_OPTIONS, "--collect-only", *files]))

    def judge(self, mutant: Mutant, tests: tuple[str, ...]) -> Result:
        began = time.monotonic()
        outcome, detail = self._judge(mutant, tests)
        return Result(mutant, outcome, detail, time.monotonic() - began)

    def _judge(self, mutant: Mutant, tests: tuple[str, ...]) -> tuple[str, str]:
        try:
            applied = apply(mutant, self._folder)
        except NotApplicableError as error:
            return "error", str(error)
        if tests not in self._baselines:
            code, output = self._run(tests, None, fresh=False)
            self._baselines[tests] = "" if code == 0 else f"the tests fail without it ({code}):\n{output}"
        if complaint := self._baselines[tests]:
            return "error", complaint
        with self._written(applied):
            code, output = self._run(tests, applied, fresh=not applied.function)
            if code == PATCH_FAILED:
                code, output = self._run(tests, applied, fresh=True)
        if code == TESTS_FAILED:
            failed = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
            return "killed", failed
        if code == 0:
            return "survived", f"tests: {' '.join(tests)}"
        if code is None and mutant.hangs:
            return "killed", f"its tests did not end within {TIMEOUT_SECONDS:g} s"
        what = f"its tests did not end within {TIMEOUT_SECONDS:g} s" if code is None else f"pytest ended with {code}"
        return "error", f"{mutant.place}: {what}:\n{output[-2000:]}"

    @contextlib.contextmanager
    def _written(self, applied: Applied) -> Iterator[None]:
        path = self._folder / applied.path
        original, times = path.read_bytes(), path.stat()
        # Compiled files are identified by whole seconds and size, which two mutants may share.
        stale = list((path.parent / "__pycache__").glob(f"{path.stem}.*"))
        for each in stale:
            each.unlink()
        path.write_text(applied.source)
        try:
            yield
        finally:
            for each in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                each.unlink()
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(self, tests: tuple[str, ...], applied: Applied | None, *, fresh: bool) -> tuple[int | None, str]:
        """Run the tests in a child process. Return its exit code (None after a timeout) and its output.

        applied: changed file of the mutant; None for no mutant. fresh: use a new process, not a fork.
        """
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                self._run_child(tests, applied, output.fileno(), fresh)
            code = _wait(child)
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def _run_child(self, tests: tuple[str, ...], applied: Applied | None, output: int, fresh: bool) -> None:
        code = 3
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            if fresh:
                os.execv(sys.executable, [sys.executable, "-m", "pytest", *_OPTIONS, *tests])
            if applied is not None:
                try:
                    exchanged = exchange(applied, self._folder)
                except (ValueError, ImportError):
                    exchanged = 0
                if not exchanged:
                    os._exit(PATCH_FAILED)
            import pytest

            code = int(pytest.main([*_OPTIONS, *tests]))
            sys.stdout.flush()
        finally:
            os._exit(code)


def _wait(child: int) -> int | None:
    """Return the child's exit code, or minus its signal; None after a timeout. Then kill the child's process group."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    code: int | None = None
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code


def exchange(applied: Applied, folder: Path) -> int:
    """Replace the code of every function that the mutant has changed. Return the number of these functions.

    Raises ValueError if a function cannot take the new code, because it uses other variables of enclosing functions.
    """
    module = ".".join(applied.path.with_suffix("").parts)
    importlib.import_module(module)
    path = str(folder / applied.path)
    new = _codes(compile(applied.source, path, "exec"))
    changed = 0
    for function in [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]:
        code = function.__code__
        if code.co_filename == path and (other := new.get(_key(code))) is not None and other != code:
            function.__code__ = other
            changed += 1
    return changed


def _key(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    found: dict[tuple[str, int], types.CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found[_key(constant)] = constant
            found |= _codes(constant)
    return found


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
