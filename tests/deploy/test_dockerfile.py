"""Dockerfile, tested without a container: the files in its build stage suffice to build the package."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parents[2]


def stages() -> dict[str, list[list[str]]]:
    """Return the instructions of each stage by its name, each split into words."""
    found: dict[str, list[list[str]]] = {}
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM "):
            name = line.split()[-1]
            found[name] = []
        if found and line and not line.startswith("#"):
            found[name].append(shlex.split(line))
    return found


def test_the_files_of_the_wheel_stage_exist_and_build_the_package(tmp_path: Path) -> None:
    needs.package("hatchling")
    source = tmp_path / "source"
    source.mkdir()
    copies = [words[1:] for words in stages()["wheel"] if words[0] == "COPY"]
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


def test_the_images_run_without_root_and_without_build_files() -> None:
    found = stages()
    assert list(found)[-1] == "controller", "a build without --target makes the controller's image"
    assert ["USER", "65532:65532"] in found["runtime"] and ["ENTRYPOINT", "[gangwatch]"] in found["runtime"]
    for image in ("agent", "controller"):
        assert found[image][0] == ["FROM", "runtime", "AS", image]
        assert [words for words in found[image] if words[0] in ("COPY", "USER", "ENTRYPOINT")] == [
            ["COPY", f"--from={image}-environment", "/opt/gangwatch", "/opt/gangwatch"]
        ]
    # A virtual environment needs the Python that created it.
    assert found["runtime"][0][1] == found["tools"][0][1] == "${BASE}"


def test_the_base_image_digest_is_given_in_one_place() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.12-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert {stage[0][1] for stage in stages().values()} == {"${BASE}", "tools", "runtime"}


def test_only_the_wheel_built_in_the_image_is_installed_without_a_hash() -> None:
    installs = [
        part
        for stage in stages().values()
        for words in stage
        if words[0] == "RUN"
        for part in " ".join(words).split(" && ")
        if " install " in part
    ]
    assert len(installs) == 5
    for one in installs:
        assert ("--require-hashes --only-binary :all:" in one) != ("--no-deps --no-index dist/*.whl" in one), one
    assert not [words for image in ("agent", "controller") for words in stages()[image] if " pip " in " ".join(words)]


@pytest.mark.parametrize("image", ["agent", "controller"])
def test_an_image_has_the_extras_of_its_lock_and_a_bill_of_materials(image: str) -> None:
    found = stages()
    environment = [" ".join(words) for words in found[f"{image}-environment"]]
    assert any(f"-r packaging/locks/{image}.txt" in line for line in environment)
    bill = [line for line in environment if "cyclonedx-py" in line]
    assert len(bill) == 1 and "/opt/gangwatch/share/sbom/gangwatch.cdx.json" in bill[0]
    checked = re.search(
        r"require\(the image, (.*)\)", " ".join(word for words in found[image] for word in words).replace('"', "")
    )
    assert checked is not None
    assert set(checked[1].split(", ")) == set(locked_extras()[image]) - {"slurm"}  # slurm only names the controller


def locked_extras() -> dict[str, tuple[str, ...]]:
    found = re.search(r"^IMAGES = (\{.*?\})$", (ROOT / "packaging" / "lock.py").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    extras: dict[str, tuple[str, ...]] = ast.literal_eval(found[1])
    return extras
