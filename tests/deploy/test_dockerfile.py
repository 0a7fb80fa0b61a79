"""The Dockerfile, as far as it goes without a container: the files of its build stage make the package alone."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests import needs

ROOT = Path(__file__).parents[2]


def stages() -> list[list[list[str]]]:
    """Instructions by stage, each as its words."""
    found: list[list[list[str]]] = []
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM "):
            found.append([])
        if line and not line.startswith("#"):
            found[-1].append(shlex.split(line))
    return found


def test_what_the_build_stage_copies_is_there_and_makes_the_package(tmp_path: Path) -> None:
    needs.package("hatchling")
    source = tmp_path / "source"
    source.mkdir()
    copies = [words[1:] for words in stages()[0] if words[0] == "COPY"]
    for *names, target in copies:
        for name in names:
            assert (ROOT / name).exists(), f"COPY {name}"
            to = source / (name if target == "./" else target)
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, to)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {"gangwatch/cli.py", "gangwatch/demo/train_dp.py", "gangwatch/commands/renew_certificate.py"} <= held


def test_the_image_runs_without_root_and_holds_nothing_of_the_build() -> None:
    build, final = stages()
    assert build[0][-2:] == ["AS", "build"]
    assert ["USER", "65532:65532"] in final
    assert [words for words in final if words[0] == "COPY"] == [
        ["COPY", "--from=build", "/opt/gangwatch", "/opt/gangwatch"]
    ]
    assert final[-1][0] == "ENTRYPOINT"
    assert build[0][1] == final[0][1]  # the same Python: a virtual environment runs with the one that it was made by
