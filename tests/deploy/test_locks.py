"""Lock files with versions and hashes: `make check` detects a lock that does not match. No network is used."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script, which works on copies of the locks and of pyproject.toml."""
    spec = importlib.util.spec_from_file_location("gangwatch_lock", ROOT / "packaging" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(ROOT / "packaging" / "locks", tmp_path / "packaging" / "locks")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOCKS", tmp_path / "packaging" / "locks")
    yield module


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_locks_match_pyproject(lock: ModuleType) -> None:
    assert lock.complaints() == []


def test_an_added_changed_or_removed_requirement_is_detected(lock: ModuleType) -> None:
    for old, new, complaint in (
        ('"bcrypt>=4.1.1"', '"bcrypt>=4.1.1",\n  "somethingelse>=1"', "somethingelse>=1 is not fulfilled by anything"),
        ('"bcrypt>=4.1.1"', '"bcrypt>=400"', "bcrypt>=400 is not fulfilled by "),
        ('"bcrypt>=4.1.1",', "", "all.txt: was made from other requirements"),
        ('"hatchling>=1.27"]', '"hatchling>=1.28"]', "build.txt: was made from other requirements"),
        ('requires-python = ">=3.11"', 'requires-python = ">=3.12"', "was made from other requirements"),
    ):
        before = (lock.ROOT / "pyproject.toml").read_text()
        change(lock.ROOT / "pyproject.toml", old, new)
        assert any(complaint in one for one in lock.complaints()), complaint
        (lock.ROOT / "pyproject.toml").write_text(before)


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://mirror.example/simple",
        "--extra-index-url https://mirror.example/simple",
        "--find-links /opt/wheels",
        "-e .",
        "evil @ https://example.com/evil.whl",
        "evil==1.0",
        "evil>=1.0 \\",
        "-r other.txt",
        "./dist/evil.whl",
    ],
)
def test_an_address_an_option_or_a_missing_hash_is_detected(lock: ModuleType, line: str) -> None:
    path = lock.LOCKS / "all.txt"
    path.write_text(f"{path.read_text()}{line}\n")
    assert any("all.txt, line" in one or "all.txt: it ends" in one for one in lock.complaints())


def test_a_minimum_that_the_tests_do_not_install_is_detected(lock: ModuleType) -> None:
    change(lock.ROOT / "pyproject.toml", '"click>=8.1"', '"click>=8.0.9"')
    assert "minimums.txt: click>=8.0.9 is tested with 8.1.0: other requirements exclude the lowest version" in (
        lock.complaints()
    )


def test_an_extra_may_name_other_extras(lock: ModuleType) -> None:
    tree = lock.project()
    assert lock.required(tree, "slurm") == lock.required(tree, "controller")
    assert set(lock.required(tree, "all")) > set(lock.required(tree, "oidc")) > set(lock.required(tree))
    locked = {
        name: {pin.name for pin in lock.pins(lock.LOCKS / f"{name}.txt")} for name in ("agent", "controller", "all")
    }
    assert "starlette" not in locked["agent"] and "uvicorn" not in locked["agent"]
    assert {"starlette", "uvicorn", "aiohttp"} <= locked["controller"]
    assert locked["agent"] <= locked["all"] and locked["controller"] <= locked["all"]


def test_another_hash_algorithm_and_an_untested_version_are_detected(lock: ModuleType) -> None:
    path = lock.LOCKS / "all.txt"
    before = path.read_text()
    change(path, "--hash=sha256:", "--hash=md5:")
    assert any("expected --hash=sha256" in one for one in lock.complaints())
    path.write_text(re.sub(r"^msgspec==\S+", "msgspec==99.0", before, flags=re.MULTILINE))
    assert any("all.txt: msgspec 99.0, and dev.txt, which is tested" in one for one in lock.complaints())
    path.unlink()
    assert any("all.txt" in one for one in lock.complaints())


def test_make_installs_by_hash_and_checks_the_locks() -> None:
    text = (ROOT / "Makefile").read_text()
    installs = [line for line in text.split("\n") if line.startswith("\t") and "/pip " in line]
    assert installs and all("$(LOCKED)" in line or "$(OURSELVES)" in line for line in installs)
    assert "--require-hashes --only-binary :all:" in text and "packaging/lock.py --check" in text
