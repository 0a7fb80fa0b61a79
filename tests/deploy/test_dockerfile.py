"""The Dockerfile, tested without a container: the files copied into its build stage suffice to build the package."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests import needs

ROOT = Path(__file__).parents[2]


def stages() -> list[list[list[str]]]:
    """Return the instructions by stage, each split into words; instructions before the first stage are left out."""
    found: list[list[list[str]]] = []
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM "):
            found.append([])
        if found and line and not line.startswith("#"):
            found[-1].append(shlex.split(line))
    return found


def test_the_files_of_the_build_stage_exist_and_build_the_package(tmp_path: Path) -> None:
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
    assert {
        "gangwatch/cli.py",
        "gangwatch/demo/train_dp.py",
        "gangwatch/commands/authentication/renew_certificate.py",
    } <= held


def test_the_image_runs_without_root_and_without_build_files() -> None:
    build, final = stages()
    assert build[0][-2:] == ["AS", "build"]
    assert ["USER", "65532:65532"] in final
    assert [words for words in final if words[0] == "COPY"] == [
        ["COPY", "--from=build", "/opt/gangwatch", "/opt/gangwatch"]
    ]
    assert final[-1][0] == "ENTRYPOINT"
    assert build[0][1] == final[0][1]  # a virtual environment needs the Python that created it


def test_the_base_image_digest_is_given_in_one_place() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.12-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert [stage[0][1] for stage in stages()] == ["${BASE}", "${BASE}"]


def test_only_the_wheel_built_in_the_image_is_installed_without_a_hash() -> None:
    installs = [
        part
        for words in stages()[0]
        if words[0] == "RUN"
        for part in " ".join(words).split(" && ")
        if " install " in part
    ]
    assert len(installs) == 3
    for one in installs:
        assert ("--require-hashes --only-binary :all:" in one) != ("--no-deps --no-index dist/*.whl" in one), one
    assert not [words for words in stages()[1] if "pip" in " ".join(words)]


def test_the_image_has_a_bill_of_materials() -> None:
    bill = [words for words in stages()[0] if "cyclonedx-py" in " ".join(words)]
    assert len(bill) == 1 and "/opt/gangwatch/share/sbom/gangwatch.cdx.json" in bill[0]
