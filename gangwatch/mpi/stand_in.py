"""What mpirun starts instead of the program: it asks its rank to run the program, and ends as the program does.

    python -I -S stand_in.py FOLDER PROGRAM [ARGUMENT ...]

mpirun stops a process by a signal to the stand-in. The connection to the rank then closes, and the rank stops the
program.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from gangwatch.mpi import messages
else:  # run as a file, so that each process starts without the modules of the product
    sys.path.append(str(Path(__file__).resolve().parent))
    import messages

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Variables with the number of a process: of Open MPI, of MPICH, and of PMIx."""

PREFIXES = (
    "OMPI_",
    "OPAL_",
    "ORTE_",
    "PRTE_",
    "PMIX_",
    "PMI_",
    "PMI2_",
    "HYDI_",
    "HYDRA_",
    "MPIR_",
    "MPICH_",
    "MPIEXEC_",
)
"""Begins of the names of variables that a launcher sets for a process."""

DESCRIPTOR_VARIABLES = ("PMI_FD",)
"""Variables with the number of an open descriptor that the process inherits (MPICH: PMI, "PMI_FD")."""


def main(arguments: list[str]) -> int:
    """Let the rank run the program, and return its exit code."""
    folder, command = Path(arguments[0]), arguments[1:]
    numbers = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    if not numbers:
        sys.stderr.write(f"gangwatch.mpi: the launcher set none of {', '.join(RANK_VARIABLES)}\n")
        return 1
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    descriptors = [name for name in DESCRIPTOR_VARIABLES if os.environ.get(name, "").isdigit()]
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            with messages.short_path(folder, int(numbers[0])) as path:
                connection.connect(path)
            messages.send_request(connection, messages.Request(command, variables, descriptors))
            for name in descriptors:  # the launcher must see the program close it
                os.close(int(variables[name]))
            code = messages.receive_exit_code(connection)
    except (OSError, messages.MessageError) as error:
        sys.stderr.write(f"gangwatch.mpi: rank {numbers[0]} does not run the program: {error}\n")
        return 1
    if code < 0:  # ended by a signal: so does the stand-in, without a core file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
