"""The command line of mpirun, for Open MPI and MPICH."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

VERSION_SECONDS = 30.0
"""Longest time for `mpirun --version`."""


class LauncherError(Exception):
    """Error: there is no launcher that this package knows. The message names what to do."""


def arguments(
    mpirun: Sequence[str], folder: Path, ranks: int, program: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return the command that starts one stand-in for each rank. folder: folder of the ranks' sockets.

    All nodes of a local gang are this machine, and MPI sees one node: virtual nodes would share the names of Open MPI's
    segments in /dev/shm. Raises LauncherError.
    """
    stand_in = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stand_in.py")), str(folder), *program]
    version = _version(mpirun, environment)
    if "Open MPI" in version or "OpenRTE" in version:
        # mpirun(1) of 4.1. Ranks share the processors of their slots, so none is bound to one.
        options = ["-np", str(ranks), "--host", f"localhost:{ranks}", "--bind-to", "none"]
        return [*mpirun, *options, *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *stand_in]
    if "HYDRA" in version:
        return [*mpirun, "-n", str(ranks), "-hosts", f"localhost:{ranks}", *stand_in]  # mpiexec -help
    first = version.strip().partition("\n")[0][:200]
    raise LauncherError(f"`{shlex.join(mpirun)} --version` names neither Open MPI nor MPICH (Hydra): {first!r}")


def _version(mpirun: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [*mpirun, "--version"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(
            f"{shlex.join(mpirun)} does not start: {error}. Install Open MPI or MPICH, or name it with --mpirun"
        ) from None
    return done.stdout + done.stderr
