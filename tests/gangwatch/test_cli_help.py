"""Commands: each has help with an example, starts quickly, and exits with the documented code."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gangwatch.cli import COMMANDS, cli, run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"gangwatch {name}" in result.stdout.partition("Example")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse each example without running it. The files that it names must exist next to it."""
    monkeypatch.chdir(tmp_path)
    for file in ("philly.csv", "trace1.csv", "backup.sqlite"):
        (tmp_path / file).touch()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help is not None
    lines = [line.strip() for line in command.help.partition("Example")[2].splitlines()]
    examples = [shlex.split(line) for line in lines if line.startswith(f"gangwatch {name}")]
    assert examples
    for words in examples:
        command.make_context(name, [word.replace("gangwatch.toml", "/dev/null") for word in words[2:]])


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).stdout
    for name, (_, text) in COMMANDS.items():
        assert name in shown
        assert text.split()[0] in shown


def test_an_unknown_command_exits_with_2_and_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submitt"]) == 2
    assert "did you mean submit?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["jobs", "--wrong"], ["submit"], ["cancel"], ["node", "fix", "a"], ["verdict", "confirm"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str], tmp_path: Path) -> None:
    assert run([*arguments, *(["--state", str(tmp_path)] if arguments != ["submit"] else [])]) == 2


@pytest.mark.parametrize(
    "arguments",
    [["jobs"], ["nodes"], ["cancel", "j-000001"], ["explain", "j-000001"], ["story", "j-000001"], ["freeze"], ["thaw"],
     ["verdict", "list"], ["reload"], ["submit", "true"]],
)  # fmt: skip
def test_without_a_controller_commands_exit_with_3_and_say_what_to_do(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([arguments[0], "--state", str(tmp_path), *arguments[1:]]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"Error: no controller is running for {tmp_path}: start one with `gangwatch up`\n"


def test_down_succeeds_when_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down", "--state", str(tmp_path / "absent"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"state": str(tmp_path / "absent"), "jobs": 0, "daemons": 0}
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("job", ["../../etc/passwd", "", ".", "a/b"])
def test_logs_refuses_an_invalid_job_id(job: str, tmp_path: Path) -> None:
    assert run(["logs", "--state", str(tmp_path), job]) == 2


def test_python_m_gangwatch_runs_the_program(tmp_path: Path) -> None:
    shown = subprocess.run([sys.executable, "-m", "gangwatch", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("gangwatch ")
    failed = subprocess.run(
        [sys.executable, "-m", "gangwatch", "jobs", "--state", str(tmp_path)], capture_output=True, text=True
    )
    assert (failed.returncode, failed.stdout) == (3, "")


def test_an_interrupt_during_the_imports_prints_no_traceback() -> None:
    program = (
        "import sys\n"
        "from gangwatch.__main__ import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gangwatch.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


HEAVY = (
    "aiohttp", "asyncio", "cryptography", "grafana_foundation_sdk", "numpy", "pyarrow", "pynvml", "rich", "sqlite3",
    "starlette", "uvicorn", "yaml", "scheduler_feedback.cycle", "scheduler_feedback.detectors",
)  # fmt: skip


def test_the_help_of_no_command_imports_a_heavy_module() -> None:
    """One process prints all help texts. A heavy module counts for the first command that loads it."""
    program = (
        "import json, sys, gangwatch.cli as cli\n"
        "loaded, charged = set(), {}\n"
        "for name in ('', *cli.COMMANDS):\n"
        "    cli.run([*([name] if name else []), '--help'])\n"
        f"    new = {{heavy for heavy in {HEAVY!r} if heavy in sys.modules}} - loaded\n"
        "    loaded |= new\n"
        "    charged |= {name: sorted(new)} if new else {}\n"
        "print(json.dumps(charged), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.count("Usage: ") == len(COMMANDS) + 1
    assert json.loads(shown.stderr) == {}


def test_the_agent_imports_only_what_it_needs() -> None:
    heavy = ("aiohttp", "starlette", "rich", "sqlite3")
    program = (
        "import sys; import gangwatch.daemons.agent_daemon, agent.node, agent.rank_attribution, exporter.server; "
        "import agent.collectors; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_up_and_down_import_no_numpy_on_a_machine_without_nvml(tmp_path: Path) -> None:
    """They import it only with GPUs: it takes a fifth of a second of CPU time, in the command and in the supervisor."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gangwatch.health import machine\n"
        "from gangwatch.state_folder import StateFolder\n"
        "from gangwatch.supervisor import launcher, supervisor, teardown\n"
        f"print(machine.find_gpus({str(tmp_path / 'absent.so')!r}))\n"
        f"print(StateFolder(Path({str(tmp_path)!r})).socket_path('n').name, 'numpy' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == "()\nn.sock False\n"
