"""``python -m gangwatch.mpi [--mpirun COMMAND] PROGRAM [ARGUMENT ...]``: run an MPI program as the ranks of a gang.

Example:
    gangwatch submit --ranks 4 -- python -m gangwatch.mpi python train.py --epochs 3

All ranks of the gang run this; `gangwatch submit` sets the variables that it needs. It needs Open MPI or MPICH on this
machine. Exit code: that of the program; 1 if the program could not be started; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gangwatch.mpi import launcher
from gangwatch.mpi.rank import Rank, RankError

NEEDED = ("RANK", "WORLD_SIZE", "GANGWATCH_JOB", "GANGWATCH_ATTEMPT", "MASTER_PORT")


def shared_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that the ranks of this attempt share, and make it. Raises RankError if it is not ours alone.

    The port is in the name because two clusters on one machine may have jobs of the same name.
    """
    words = [environment[name] for name in ("GANGWATCH_JOB", "GANGWATCH_ATTEMPT", "MASTER_PORT")]
    folder = Path(tempfile.gettempdir()) / "-".join(["gangwatch-mpi", str(os.getuid()), *words])
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RankError(f"{folder} belongs to another user or is open to others; remove it")
    return folder


def run(mpirun: list[str], program: list[str], environment: Mapping[str, str]) -> int:
    """Run the program as this rank. Return its exit code. Raises RankError, LauncherError, OSError."""
    if absent := [name for name in NEEDED if not environment.get(name)]:
        raise RankError(f"{absent[0]} is not set: start the program with `gangwatch submit`")
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    folder = shared_folder(environment)
    with Rank(folder, rank, environment) as own:
        if rank > 0:
            return own.run(None)
        own.wait_for_ranks(ranks)
        command = launcher.arguments(mpirun, folder, ranks, program, environment)
        return own.run(lambda: subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))


def main() -> int:
    """Parse the command line and run the rank."""
    parser = argparse.ArgumentParser(
        prog="python -m gangwatch.mpi", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mpirun", default="mpirun", metavar="COMMAND", help="the launcher, with options (default mpirun)"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    given = parser.parse_args()
    program = given.program[1:] if given.program[:1] == ["--"] else given.program
    if not program:
        parser.error("PROGRAM is missing")
    try:
        return run(shlex.split(given.mpirun) or ["mpirun"], program, os.environ)
    except (RankError, launcher.LauncherError, OSError) as error:
        sys.stderr.write(f"gangwatch.mpi: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
