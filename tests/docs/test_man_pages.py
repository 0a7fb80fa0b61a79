"""Manual pages and shell completion: generated for each command, and accepted by man and bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangwatch.cli import COMMANDS
from tests import needs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "packaging" / "man.py", folder], check=True, capture_output=True)
    return folder


def test_every_command_has_a_page(pages: Path) -> None:
    assert {"gangwatch.1", *(f"gangwatch-{name}.1" for name in COMMANDS)} <= {page.name for page in pages.iterdir()}
    text = (pages / "gangwatch-submit.1").read_text()
    assert r"\fB\-\-min\-ranks\fP" in text and "\b" not in text


def test_man_renders_the_pages_without_warnings(pages: Path) -> None:
    program = needs.component("man", "man-db")
    for page in sorted(pages.iterdir()):
        # Wide lines, because words that are longer than a line are a warning too.
        environment = os.environ | {"MANWIDTH": "400"}
        shown = subprocess.run([program, "-l", "--warnings=w", page], env=environment, capture_output=True, text=True)
        assert (shown.returncode, shown.stderr) == (0, ""), page.name


def test_bash_completes_commands_and_options() -> None:
    def complete(words: str, position: int) -> set[str]:
        environment = os.environ | {
            "_GANGWATCH_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        }
        answer = subprocess.run(
            [sys.executable, "-m", "gangwatch"], env=environment, capture_output=True, text=True, check=True
        )
        return {line.removeprefix("plain,") for line in answer.stdout.splitlines()}

    assert complete("gangwatch sub", 1) == {"submit"}
    assert complete("gangwatch submit --min", 2) == {"--min-ranks", "--min-run"}
