"""Every `gangwatch ...` command in the documentation parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from agent.collectors import COLLECTORS
from exporter.prometheus.metrics_file import read_metrics_file
from gangwatch.cli import COMMANDS, cli
from gangwatch.configuration import config_file

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "examples/README.md",
    *sorted(f"docs/how-to/{page.name}" for page in (ROOT / "docs/how-to").glob("*.md")),
]


def typed(page: str) -> list[str]:
    """Return the lines of the page's shell blocks that call gangwatch, without prompt and comment."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, flags=re.DOTALL)
    lines = [line.removeprefix("$ ").partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("gangwatch ")]


@pytest.mark.parametrize(("page", "line"), [(page, line) for page in PAGES for line in typed(page)])
def test_the_command_parses(page: str, line: str) -> None:
    _, name, *words = shlex.split(line)
    if name.startswith("-"):
        assert name in {option for one in cli.params for option in one.opts}, f"{page}: no such option: {name}"
        return
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"{page}: no such command: {name}"
    command.make_context(name, [word.replace("gangwatch.toml", "/dev/null") for word in words])


def test_the_readme_shows_the_commands_for_a_first_use() -> None:
    shown = {shlex.split(line)[1] for line in typed("README.md")}
    assert {"up", "submit", "jobs", "explain", "story", "logs", "down"} <= shown <= set(COMMANDS)


def test_the_configuration_on_the_page_is_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/how-to/one-machine.md").read_text(), flags=re.DOTALL)
    loaded = []
    for block in blocks:
        (tmp_path / "gangwatch.toml").write_text(block)
        loaded.append(config_file.load(tmp_path / "gangwatch.toml"))
    own, client = loaded
    assert (own.controller.mode, own.policy.quarantine_seconds) == ("observe", 600.0)
    assert client.client.url == "https://head.example:9420"


def test_the_configuration_of_logins_on_the_page_is_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/how-to/roles-and-login.md").read_text(), flags=re.DOTALL)
    loaded = []
    for block in blocks:
        (tmp_path / "gangwatch.toml").write_text(block)
        loaded.append(config_file.load(tmp_path / "gangwatch.toml"))
    _, files, sessions, oidc, reviews = loaded
    assert files.access.token_files == ("/etc/gangwatch/tokens.toml",)
    assert (sessions.access.session_seconds, sessions.access.session_idle_seconds) == (43_200.0, 7200.0)
    assert oidc.oidc.roles == {"gpu-admins": "operator", "researchers": "submitter"}
    assert reviews.token_review.audiences == ("gangwatch",)


def test_the_agents_configuration_on_the_page_is_valid(tmp_path: Path) -> None:
    power, first, collectors, labels, quotas = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs/how-to/agent.md").read_text(), flags=re.DOTALL
    )
    (tmp_path / "gangwatch.toml").write_text(first + collectors + quotas)
    loaded = config_file.load(tmp_path / "gangwatch.toml")
    assert (loaded.agent.listen, loaded.exporter.compatibility) == ("0.0.0.0:9400", ("dcgm",))
    assert loaded.agent.collectors == {"nfs": False, "*": True}
    (tmp_path / "power.toml").write_text(power)
    assert config_file.load(tmp_path / "power.toml").agent.power_limits == "300..700"
    (tmp_path / "labels.toml").write_text(labels)
    assert len(config_file.load(tmp_path / "labels.toml").agent.pod_label_names) == 2
    assert loaded.step_quotas == config_file.StepQuotasSection(), "the page shows the defaults"


def test_the_agents_page_lists_all_collectors_and_a_valid_metrics_file(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/agent.md").read_text()
    table = page.partition("| collector | metrics |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_-]+)`", "".join(re.findall(r"^\|[^|]+\|", table, re.MULTILINE)))) == set(COLLECTORS)
    (example,) = re.findall(r"```text\n(# name, type, help.*?)```", page, flags=re.DOTALL)
    (tmp_path / "metrics.csv").write_text(example)
    assert len(read_metrics_file(tmp_path / "metrics.csv")) == 3


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_exists(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
