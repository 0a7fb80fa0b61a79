"""Build of the fake NVML library. ``python -m tests.fakes.nvml.build DIRECTORY`` prints the library's path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SONAME = "libnvidia-ml.so.1"


def build(directory: Path, hidden: Sequence[str] = (), compiler: str = "gcc") -> Path:
    """Compile the library into ``directory``. Return its path.

    hidden: symbols to leave out, as in an older driver.
    Raises subprocess.CalledProcessError if compilation fails, FileNotFoundError if there is no compiler.
    """
    source = Path(__file__).parent
    library = directory / SONAME
    script = directory / "symbols.map"
    script.write_text("{ local: " + "".join(f"{symbol}; " for symbol in (*hidden, "nothing_else")) + "};\n")
    subprocess.run(
        [
            compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread",
            "-fvisibility=hidden", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={script}", "-o", str(library),
            *map(str, sorted(source.glob("*.c"))),
        ],
        check=True,
    )  # fmt: skip
    return library


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
