"""Size of an installation, by extras: ``python -m benchmarks.footprint --json``.

Each row is a new virtual environment into which pip installs this checkout's wheel with some extras, and the newest
matching versions of all requirements. ``mb`` is the size of all files in site-packages, bytecode included, without pip.
``--against REV`` measures the wheel of another commit too, for example of one that had no extras.

Needs git, and pip's index.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS = {
    "agent": (),
    "agent image": ("kubernetes", "remote-write"),
    "controller": ("controller",),
    "controller image": ("controller", "kubernetes", "slurm", "oidc", "otlp", "otlp-grpc", "remote-write"),
    "all": ("all",),
}
"""Extras of each measured installation."""


def wheel_of(revision: str | None, folder: Path) -> Path:
    """Build the wheel of a commit, or of the checkout if `revision` is None. Return its path."""
    source = ROOT
    if revision is not None:
        source = folder / "source"
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(source, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(command, check=True, capture_output=True, cwd=source)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def installed(wheel: Path, extras: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Install the wheel with the extras into a new environment, and return its packages and their size."""
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    what = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    subprocess.run([*pip, "install", "--quiet", what], check=True)
    listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True, text=True).stdout
    sizes = {one.name: _bytes(one) for one in site.iterdir()}
    return {
        "mb": round(sum(sizes.values()) / 1e6, 1),
        "packages": {one["name"]: one["version"] for one in json.loads(listed)},
        "largest_mb": {name: round(sizes[name] / 1e6, 1) for name in sorted(sizes, key=lambda name: -sizes[name])[:6]},
    }


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_file())


def measure(against: str | None) -> dict[str, Any]:
    """Return the figures of this checkout, and of the commit `against` if one is given."""
    figures: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name, revision in (("now", None), *([(f"before ({against})", against)] if against else [])):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            wheel = wheel_of(revision, folder)
            known = tomllib.loads(((folder / "source" if revision else ROOT) / "pyproject.toml").read_text())
            has = set(known["project"]["optional-dependencies"])
            rows = {row: extras for row, extras in ROWS.items() if set(extras) <= has}
            figures[name] = {
                row: installed(wheel, extras, folder / row.replace(" ", "-")) for row, extras in rows.items()
            }
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--against", metavar="REV", help="a commit to compare with")
    given = parser.parse_args()
    figures = measure(given.against)
    if given.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, rows in figures.items():
        if isinstance(rows, dict):
            for row, found in rows.items():
                print(f"{name:20} {row:18} {len(found['packages']):3} packages {found['mb']:7.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
