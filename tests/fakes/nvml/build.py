"""Build of the fake NVML library. ``python -m tests.fakes.nvml.build DIRECTORY`` prints the library's path."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SONAME = "libnvidia-ml.so.1"

BUILT = Path(tempfile.gettempdir()) / f"gangwatch-fake-nvml-{os.getuid()}"
"""Folder with libraries that were compiled before, by the digest of their sources and of the command. Compilation takes
two seconds of CPU time, and about twenty tests need the library."""


def build(directory: Path, hidden: Sequence[str] = (), compiler: str = "gcc") -> Path:
    """Compile the library into ``directory``, or copy it from an earlier compilation. Return its path.

    hidden: symbols to leave out, as in an older driver.
    Raises subprocess.CalledProcessError if compilation fails, FileNotFoundError if there is no compiler.
    """
    library = directory / SONAME
    sources = sorted(Path(__file__).parent.glob("*.[ch]"))
    digest = hashlib.sha256(repr((compiler, tuple(hidden), os.uname().machine)).encode())
    for source in sources:
        digest.update(source.read_bytes())
    BUILT.mkdir(mode=0o700, exist_ok=True)
    if BUILT.is_symlink() or BUILT.stat().st_uid != os.getuid():
        raise PermissionError(f"{BUILT} belongs to another user")
    built = BUILT / digest.hexdigest()
    if not built.exists():
        compile_to(library, [source for source in sources if source.suffix == ".c"], hidden, compiler)
        part = built.with_suffix(f".{os.getpid()}")
        shutil.copy(library, part)
        part.rename(built)
    else:
        library.unlink(missing_ok=True)  # a process may have mapped it
        shutil.copy(built, library)
    return library


def compile_to(library: Path, sources: Sequence[Path], hidden: Sequence[str], compiler: str) -> None:
    """Compile these C files into the library. Raises the same errors as ``build``."""
    script = library.with_name("symbols.map")
    script.write_text("{ local: " + "".join(f"{symbol}; " for symbol in (*hidden, "nothing_else")) + "};\n")
    subprocess.run(
        [
            compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread",
            "-fvisibility=hidden", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={script}", "-o", str(library),
            *map(str, sources),
        ],
        check=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
