"""Requirements of tests other than Python. Without one, a test is skipped with the package's name, or fails in CI.

``make components`` installs them; ``.ci/run`` sets GANGWATCH_REQUIRE=all, under which a missing one is a failure.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def absent(what: str) -> None:
    """Skip the test, or fail it if all requirements must be met. what: the missing component and how to install it."""
    if os.environ.get("GANGWATCH_REQUIRE") == "all":
        pytest.fail(f"GANGWATCH_REQUIRE=all, and {what}")
    pytest.skip(what)


def component(program: str, package: str) -> str:
    """Return the path of a program. If it is absent, skip the test and name the Debian package that contains it."""
    found = shutil.which(program)
    if found is None:
        absent(f"{program} is absent: apt-get install {package}")
    assert found is not None
    return found


def otlp_program(program: str) -> Path:
    """Return the path of the OpenTelemetry Collector or Prometheus that packaging/otlp builds. Skip if it is absent."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    found = cache / "gangwatch" / "otlp" / "bin" / program
    if not found.exists():
        absent(f"{found} is absent: packaging/otlp/build.sh builds it (needs go)")
    return found


def package(module: str) -> Any:
    """Import a module of this project's development dependencies. Skip the test if it is absent."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        absent(f"{error}: pip install '.[dev]'")
    raise AssertionError


def small_file_system(folder: Path, size: str) -> None:
    """Mount a tmpfs of this size on the folder. The caller unmounts it. Requires root and CAP_SYS_ADMIN."""
    _mount("a small file system cannot be mounted", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))


def read_only(folder: Path) -> None:
    """Mount the folder read-only over itself, so that not even root can write. The caller unmounts it."""
    _mount("a read-only folder cannot be mounted", "--bind", "-o", "ro", str(folder), str(folder))


def _mount(what: str, *arguments: str) -> None:
    program = component("mount", "mount")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        absent(f"{what} here: run the tests as root, with CAP_SYS_ADMIN")


def root(what: str) -> None:
    """Skip the test if this process is not root. what: the purpose, for example "to act as another user"."""
    if os.geteuid() != 0:
        absent(f"root is needed {what}: run the tests as root")


def data(*parts: str) -> Path:
    """Return a path in the folder of public traces (GANGWATCH_DATA, default ../shared/data next to the checkout)."""
    root = Path(os.environ.get("GANGWATCH_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    path = root.joinpath(*parts)
    if not path.exists():
        absent(f"{path} is absent: set GANGWATCH_DATA to the folder of public traces")
    return path


def python_with(module: str, package: str) -> str:
    """Return a Python interpreter that can import the module.

    Candidates are GANGWATCH_TEST_PYTHON, this interpreter, and the system's.
    """
    for interpreter in (os.environ.get("GANGWATCH_TEST_PYTHON"), sys.executable, "/usr/bin/python3"):
        if interpreter and Path(interpreter).exists():
            tried = subprocess.run([interpreter, "-c", f"import {module}"], capture_output=True)
            if tried.returncode == 0:
                return interpreter
    absent(f"no interpreter here can import {module}: apt-get install {package}")
    raise AssertionError


def cpu_torch() -> str:
    """Return the Python interpreter with PyTorch for CPUs that packaging/torch.sh installs."""
    from benchmarks.reality.run import torch_python

    python = torch_python()
    if not python.exists():
        absent(f"{python} is absent: make components")
    return str(python)


def frameworks() -> tuple[str, str]:
    """Return the interpreter with training frameworks that packaging/frameworks.sh installs, and the folder with
    DeepSpeed, for PYTHONPATH."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("GANGWATCH_FRAMEWORKS") or f"{cache}/gangwatch/frameworks")
    if not (folder / ".complete").exists():
        absent("transformers, pytorch-lightning and deepspeed are absent: make components (packaging/frameworks.sh)")
    return str(folder / "bin" / "python"), str(folder / "deepspeed")


def virtual_nodes() -> None:
    """Skip the test if this machine cannot run nodes in network namespaces and control groups."""
    from benchmarks.reality.site import unsupported

    if reason := unsupported():
        absent(reason)
