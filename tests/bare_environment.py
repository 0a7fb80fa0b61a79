"""Virtual environments with gangwatch's wheel and only the packages of chosen extras, made without a network.

The packages are links to those of the environment that runs the tests.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import needs

ROOT = Path(__file__).parents[1]


def unpacked_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout, and unpack it. Return the folder with its packages."""
    needs.package("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def packages_of(*extras: str) -> dict[str, Distribution]:
    """Return the installed distributions that gangwatch with these extras requires, by canonical name."""
    found: dict[str, Distribution] = {}
    _add("gangwatch", frozenset(extras), found, set())
    del found["gangwatch"]
    return found


def _add(name: str, extras: frozenset[str], found: dict[str, Distribution], seen: set[tuple[str, str]]) -> None:
    """Add a distribution and its requirements to `found`. seen: (name, extra) pairs that were added already."""
    try:
        here = distribution(name)
    except PackageNotFoundError as error:
        needs.absent(f"{error} is not installed: make .venv/.develops")
        raise
    found[canonicalize_name(name)] = here
    for extra in {"", *extras} - {extra for known, extra in seen if known == name}:
        seen.add((name, extra))
        for text in here.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                _add(canonicalize_name(requirement.name), frozenset(requirement.extras), found, seen)


def make(folder: Path, wheel: Path, *extras: str) -> Path:
    """Create the environment in the folder. Return the path of its program `gangwatch`.

    wheel: the unpacked wheel, from ``unpacked_wheel``. Its packages are links too, so that all environments share their
    bytecode.
    """
    venv.create(folder)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name, where in (*_top_levels(*extras), *((path.name, path) for path in wheel.iterdir())):
        link = site / name
        if not link.exists():
            link.symlink_to(where)
    program = folder / "bin" / "gangwatch"
    program.write_text(f"#!{folder}/bin/python\nfrom gangwatch.__main__ import main\nmain()\n")
    program.chmod(0o755)
    return program


def _top_levels(*extras: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file or folder that the packages have in site-packages."""
    for package in packages_of(*extras).values():
        for name in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            yield name, Path(str(package.locate_file(name)))
