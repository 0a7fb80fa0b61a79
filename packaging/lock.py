#!/usr/bin/env python3
"""Lock files: versions with hashes, for Python 3.11 on, on Linux on x86_64 and aarch64.

    make lock                    # after a change of pyproject.toml; versions stay where they still fit
    make lock UPGRADE=--upgrade  # the newest versions of everything
    python packaging/lock.py --check  # part of `make check`: no network

    locks/agent.txt       core and the extras of an agent's image         Dockerfile
    locks/controller.txt  core and the extras of a controller's image     Dockerfile
    locks/all.txt         core and all extras                             make demo
    locks/build.txt       builds the wheel                                make, Dockerfile
    locks/dev.txt         all extras, development and tests               make test, make check
    locks/minimums.txt    the lowest version of each requirement          make minimums
    locks/tools.txt       uv, and the SBOM tools                          make lock, make sbom, Dockerfile

minimums.txt is for Python 3.11 on Linux on x86_64 only: old versions have no wheels for newer Pythons.

Every file is pip's: `pip install --require-hashes --only-binary :all: -r FILE`. It contains no address of an
index or mirror; the check refuses one.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "packaging" / "locks"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
EDITABLE = "editables>=0.5"
"""hatchling requires it to build an editable wheel (hatchling.build, get_requires_for_build_editable)."""

IMAGES = {
    "agent": ("kubernetes", "remote-write"),
    "controller": ("controller", "kubernetes", "devices", "slurm", "oidc", "otlp", "otlp-grpc", "remote-write"),
}
"""Extras of each image, by the target in the Dockerfile. An agent in a pod gets its certificate from the API server."""

MINIMUMS = "minimums"
TESTED = ("agent", "controller", "all", "build")
"""Locks in which each package has the version of dev.txt, with which the tests run."""

TOOLS = ("uv>=0.11", "cyclonedx-bom>=7.2")
_OWN = re.compile(r"gangwatch\[([a-z,-]+)\]")
_DIGEST = "# Made by `make lock`. Digest of what it was made from: "
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+)(?: ; (?P<marker>[^\\]+))? \\")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?P<more> \\)?")


class Pin(NamedTuple):
    """One locked package. marker: condition for its installation, such as a Python version; '' for none."""

    name: str
    version: str
    marker: str
    hashes: int


class LockError(Exception):
    """A lock file is invalid. The message names the line and the remedy."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def inputs(tree: dict[str, Any]) -> dict[str, list[str]]:
    """Return the direct requirements of each lock, by its name."""
    build = [*tree["build-system"]["requires"], EDITABLE]
    return {
        "dev": [*required(tree, "dev"), *build],
        **{name: required(tree, *extras) for name, extras in IMAGES.items()},
        "all": required(tree, "all"),
        "build": build,
        "tools": list(TOOLS),
        MINIMUMS: [*required(tree, "dev"), *build],
    }


def required(tree: dict[str, Any], *extras: str) -> list[str]:
    """Return the requirements of gangwatch with these extras. An extra may name others: gangwatch[controller]."""
    found: dict[str, None] = dict.fromkeys(tree["project"]["dependencies"])
    for extra in extras:
        for requirement in tree["project"]["optional-dependencies"][extra]:
            named = _OWN.fullmatch(requirement)
            found |= dict.fromkeys(required(tree, *named[1].split(",")) if named else [requirement])
    return list(found)


def places(name: str) -> list[tuple[str, str]]:
    """Return the Python versions and machines for which a lock is made."""
    if name == MINIMUMS:
        return [(PYTHONS[0], MACHINES[0])]
    return list(itertools.product(PYTHONS, MACHINES))


def digest(requirements: list[str], requires_python: str) -> str:
    """Return a digest of a lock's direct requirements and Python versions. It changes when the lock is out of date."""
    encoded = json.dumps([sorted(requirements), requires_python]).encode()
    return hashlib.sha256(encoded).hexdigest()[:16]


# --- making ----------------------------------------------------------------------------------------------------------


def make(upgrade: bool) -> None:
    """Write all lock files. upgrade: use the newest versions. Raises CalledProcessError if uv finds no solution."""
    tree = project()
    python = tree["project"]["requires-python"]
    LOCKS.mkdir(exist_ok=True)
    for name, requirements in inputs(tree).items():
        path = LOCKS / f"{name}.txt"
        with tempfile.TemporaryDirectory() as folder:
            asked, made = Path(folder, "asked.in"), Path(folder, "made.txt")
            asked.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            if path.exists():
                made.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            command = [
                sys.executable, "-m", "uv", "pip", "compile", str(asked), "--output-file", str(made), "--quiet",
                "--generate-hashes", "--no-header", "--no-annotate", "--no-config", f"--python-version={PYTHONS[0]}",
            ]  # fmt: skip
            if name == MINIMUMS:
                command += ["--resolution=lowest-direct", "--python-platform=x86_64-manylinux_2_28"]
            else:
                command += ["--universal"]
            command += ["--upgrade"] if upgrade and name != MINIMUMS else []
            # One version of a package for all locks: the tested version is the one that runs.
            command += [f"--constraint={LOCKS / 'dev.txt'}"] if name in TESTED else []
            subprocess.run(command, check=True)
            path.write_text(
                f"{_DIGEST}{digest(requirements, python)}\n{made.read_text(encoding='utf-8')}", encoding="utf-8"
            )
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(list(pins(path)))} packages\n")
    check_wheels()


def check_wheels() -> None:
    """Check with the index that every lock has wheels for every Python and machine. Raises CalledProcessError."""
    for name in inputs(project()):
        for python, machine in places(name):
            _check_wheels_for(name, python, machine)


def _check_wheels_for(name: str, python: str, machine: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--quiet", "--require-hashes",
                "--only-binary=:all:", f"--target={folder}", f"--python-version={python}",
                f"--python-platform={machine}-manylinux_2_28", "--no-config", "-r", str(LOCKS / f"{name}.txt"),
            ],
            check=True,
        )  # fmt: skip


# --- checking, without a network -------------------------------------------------------------------------------------


def pins(path: Path) -> Iterator[Pin]:
    """Yield the packages in a lock file. Raises LockError for a line that is neither a version with hashes nor a
    comment."""
    pin: Pin | None = None
    open_pin = False
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        where = f"{path.name}, line {number}"
        if open_pin:
            found = _HASH.fullmatch(line)
            if found is None or pin is None:
                raise LockError(f"{where}: {line[:60]!r}: expected --hash=sha256:...")
            pin = pin._replace(hashes=pin.hashes + 1)
            open_pin = found["more"] is not None
            if not open_pin:
                yield pin
        elif line and not line.startswith("#"):
            match = _PIN.fullmatch(line)
            if match is None:
                raise LockError(f"{where}: {line[:60]!r} is no pin with hashes: an option, an address or a path?")
            pin = Pin(match["name"].lower(), match["version"], (match["marker"] or "").strip(), 0)
            open_pin = True
    if open_pin:
        raise LockError(f"{path.name}: it ends in the middle of a pin")


def complaints() -> list[str]:
    """Return the errors of the lock files; [] if they match pyproject.toml."""
    tree = project()
    found: list[str] = []
    locked: dict[str, list[Pin]] = {}
    for name, requirements in inputs(tree).items():
        path = LOCKS / f"{name}.txt"
        try:
            locked[name] = list(pins(path))
        except (OSError, LockError) as error:
            found.append(str(error))
            continue
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        if first != f"{_DIGEST}{digest(requirements, tree['project']['requires-python'])}":
            found.append(f"{path.name}: was made from other requirements than pyproject.toml has")
        found += [f"{path.name}: {wrong}" for wrong in _unmet(name, requirements, locked[name])]
    found += [f"{MINIMUMS}.txt: {wrong}" for wrong in _above_minimum(tree, locked.get(MINIMUMS, []))]
    versions = {(pin.name, pin.marker): pin.version for pin in locked.get("dev", ())}
    for name in TESTED:
        for pin in locked.get(name, ()):
            tested = {version for (known, _), version in versions.items() if known == pin.name}
            if pin.version not in tested:
                found.append(
                    f"{name}.txt: {pin.name} {pin.version}, and dev.txt, which is tested, has {sorted(tested)}"
                )
    return found


def _above_minimum(tree: dict[str, Any], locked: list[Pin]) -> Iterator[str]:
    """Yield requirements of which the lowest version is not the one that `make minimums` installs."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    by_name = {canonicalize_name(pin.name): Version(pin.version) for pin in locked}
    for text in required(tree, "dev"):
        requirement = Requirement(text)
        for bound in requirement.specifier:
            installed = by_name.get(canonicalize_name(requirement.name))
            if bound.operator == ">=" and installed is not None and installed != Version(bound.version):
                yield f"{text} is tested with {installed}: other requirements exclude the lowest version"


def _unmet(name: str, requirements: list[str], locked: list[Pin]) -> Iterator[str]:
    """Yield direct requirements that a lock does not fulfil, on any of its Pythons and machines."""
    from packaging.markers import Marker
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    reported: set[str] = set()
    for python, machine in places(name):
        here = {
            "python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine,
            "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
            "platform_python_implementation": "CPython", "extra": "",
        }  # fmt: skip
        applies = (pin for pin in locked if not pin.marker or Marker(pin.marker).evaluate(here))
        by_name = {canonicalize_name(pin.name): pin.version for pin in applies}
        for text in requirements:
            requirement = Requirement(text)
            if text in reported or (requirement.marker is not None and not requirement.marker.evaluate(here)):
                continue
            version = by_name.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                reported.add(text)
                yield f"{text} is not fulfilled by {version or 'anything'} (Python {python} on {machine})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with pyproject.toml, and change nothing")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    given = parser.parse_args()
    if not given.check:
        make(given.upgrade)
        return 0
    found = complaints()
    for one in found:
        sys.stderr.write(f"packaging/locks/{one}\n")
    if found:
        sys.stderr.write("Run `make lock`, and commit packaging/locks with pyproject.toml.\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
