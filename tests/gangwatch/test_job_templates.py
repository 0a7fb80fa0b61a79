"""Templates of jobs: parsing, rendering, and the options of `submit`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gangwatch.commands.jobs.jobs import submit
from gangwatch.commands.jobs.templates import templates
from gangwatch.job_templates import files
from gangwatch.job_templates.template import TemplateError, parse, render, schema
from scheduler_feedback.api.requests import Submission

FULL = """
description = "A solver"
words = "INPUT"
command = ["{python}", "solve", "{words}", "{{{mode}}}", { if = "config", words = ["--config", "{config}"] },
           { if = "verbose", words = ["-v"] }]
[job]
ranks = "{ranks}"
restartable = "{verbose}"
workload = "solver-{mode}"
gpu_types = ["A100", "{type}"]
[job.environment]
LIMIT = "{limit}"
VERBOSE = "{verbose}"
CONFIG = "{config}"
[parameters]
ranks = { type = "integer", minimum = 2, maximum = 8, default = 2 }
limit = { type = "number", default = 0.5 }
mode = { choices = ["fast", "exact"], default = "fast" }
config = { type = "file", optional = true }
verbose = { type = "boolean", default = false }
type = { optional = true }
"""


def test_values_get_into_the_command_and_the_fields_with_their_types() -> None:
    made = render(parse(FULL), {"ranks": "4", "verbose": "yes", "config": "/c", "type": "B200"}, ["a", "b"], "py")
    assert made.command == ["py", "solve", "a", "b", "{fast}", "--config", "/c", "-v"]
    environment = {"LIMIT": "0.5", "VERBOSE": "1", "CONFIG": "/c"}
    assert made.job == {
        "ranks": 4, "restartable": True, "workload": "solver-fast", "gpu_types": ["A100", "B200"],
        "environment": environment,
    }  # fmt: skip


def test_what_has_no_value_is_left_out() -> None:
    made = render(parse(FULL), {}, [], "py")
    assert made.command == ["py", "solve", "{fast}"]
    assert made.job["environment"] == {"LIMIT": "0.5", "VERBOSE": "0"}
    assert made.job["gpu_types"] == ["A100"] and made.job["restartable"] is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": "4"}, "there is no parameter 'rank'; the template's are: ranks, limit, mode, config, verbose, type"),
        ({"ranks": "four"}, "--set ranks: 'four' is not of the type integer"),
        ({"ranks": "1"}, "--set ranks: 1 is less than 2"),
        ({"ranks": "9"}, "--set ranks: 9 is more than 8"),
        ({"limit": "nan"}, "--set limit: nan is not a number with a value"),
        ({"mode": "slow"}, "--set mode: 'slow' is not one of fast, exact"),
        ({"verbose": "maybe"}, "--set verbose: 'maybe' is not of the type boolean"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(TemplateError) as error:
        render(parse(FULL), given, [], "py")
    assert str(error.value) == message


def test_a_required_parameter_must_have_a_value() -> None:
    template = parse('description = "x"\ncommand = ["{seed}"]\n[parameters.seed]\ntype = "integer"\n')
    with pytest.raises(TemplateError, match=r"parameter 'seed' has no value: add --set seed=INTEGER"):
        render(template, {}, [], "py")
    assert schema(template)["required"] == ["seed"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('description = "A solver"', ""), "missing required field `description`"),
        (('"solve"', '"{sove}"'), r"command\[1\]: {sove} is no parameter; write {{ for a brace"),
        (('"solve"', '"a{"'), r"command\[1\]: a single { in 'a{'; write {{ for a brace"),
        (('"solve"', '"x{words}"'), r"command\[1\]: {words} must be a whole element"),
        (('["-v"]', '["{words}"]'), r"command\[5\]: {words} must be a whole element"),
        (('["-v"]', '["{config}"]'), r"command\[5\]: {config} may have no value"),
        (('if = "verbose"', 'if = "loud"'), "if names 'loud', which is no parameter"),
        (('workload = "solver-{mode}"', 'workload = "x-{type}"'), r"job.workload: {type} may have no value"),
        (('workload = "solver-{mode}"', 'user = "root"'), "job.user can't be in a template"),
        (('workload = "solver-{mode}"', 'work_load = ""'), "job.work_load can't be in a template"),
        (("default = 2 }", "default = 9 }"), "parameters.ranks.default: 9 is more than 8"),
        (("default = 2 }", "default = true }"), "parameters.ranks.default: True is not of the type integer"),
        (("default = 2 }", "defualt = 2 }"), "unknown field `defualt`"),
        (('["fast", "exact"]', '["fast", 7]'), "parameters.mode.choices: 7 is not of the type string"),
        (('type = "file", optional', 'type = "file", minimum = 1, optional'), "only numbers have a minimum"),
        (("type = { optional", "Type = { optional"), "parameters.Type: a name has small letters"),
        (("type = { optional", "words = { optional"), "parameters.words: a name has small letters"),
        (('command = ["{python}"', 'command = ["{python}'), "line"),
    ],
)
def test_a_wrong_template_is_refused_with_the_place(change: tuple[str, str], message: str) -> None:
    assert change[0] in FULL
    with pytest.raises(TemplateError, match=message):
        parse(FULL.replace(*change))


@pytest.mark.parametrize("path", sorted(files.SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_templates_make_specifications_that_the_controller_accepts(path: Path) -> None:
    template = files.load(path)
    made = render(template, {}, ["train.py", "--epochs", "3"], sys.executable)
    assert made.command[-3:] == ["train.py", "--epochs", "3"]
    assert all(parameter.help for parameter in template.parameters.values())
    msgspec.convert({"name": "x", "ranks": 2, "command": made.command, **made.job}, Submission)


def test_options_precede_the_template_and_the_template_precedes_the_inherited_environment(
    posted: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "solve.toml").write_text(FULL)
    (tmp_path / "c.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GANGWATCH_TEMPLATES", str(tmp_path))
    monkeypatch.setenv("LIMIT", "inherited")
    arguments = ["--template", "solve", "--set", "config=c.json", "--set", "ranks=4", "--env", "VERBOSE=9"]
    done = CliRunner().invoke(submit, [*arguments, "--ranks", "8", "--", "in.dat", "-x"], standalone_mode=False)
    assert done.exception is None, done.output
    (body,) = posted
    msgspec.convert(body, Submission)
    assert body["command"][:4] == [sys.executable, "solve", "in.dat", "-x"]
    assert body["command"][-1] == str(tmp_path / "c.json")
    assert (body["ranks"], body["workload"], body["name"]) == (8, "solver-fast", "in.dat")
    assert (body["environment"]["LIMIT"], body["environment"]["VERBOSE"]) == ("0.5", "9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "a=1", "--", "x"], "--set needs --template"),
        (["--template", "mip", "--", "x"], "there is no template 'mip': did you mean mpi?"),
        (["--template", "./none.toml", "--", "x"], "none.toml: No such file or directory"),
        (["--template", "deepspeed", "--set", "config=none.json", "--", "x"], "none.json is not a file"),
        (["--template", "mpi", "--set", "threads", "--", "x"], "'threads' is not NAME=VALUE"),
    ],
)
def test_wrong_options_are_refused(posted: list[dict[str, Any]], arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(submit, arguments)
    assert done.exit_code == 2 and message in done.output and not posted


def test_the_command_lists_templates_and_shows_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(FULL)
    (tmp_path / "mpi.toml").write_text(FULL)
    monkeypatch.setenv("GANGWATCH_TEMPLATES", str(tmp_path))
    listed = {one["name"]: one for one in json.loads(CliRunner().invoke(templates, ["--json"]).stdout)}
    assert listed.keys() == {"ddp", "deepspeed", "fsdp", "horovod", "mpi", "own"}
    assert listed["mpi"]["file"] == str(tmp_path / "mpi.toml")
    shown = json.loads(CliRunner().invoke(templates, ["--json", "own"]).stdout)
    assert shown["schema"]["properties"]["ranks"] == {"type": "integer", "minimum": 2.0, "maximum": 8.0, "default": 2}
    text = CliRunner().invoke(templates, ["own"]).stdout
    assert "ranks (integer, at least 2, at most 8, default 2)" in text and "-- INPUT" in text


@pytest.mark.parametrize("content", [b"\xff", b"x" * (files.MOST_BYTES + 1), b"description = 1\n"])
def test_an_unreadable_template_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.toml").write_bytes(content)
    done = CliRunner().invoke(templates, [str(tmp_path / "t.toml")])
    assert done.exit_code == 1 and str(tmp_path / "t.toml") in done.output


def test_a_folder_of_templates_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGWATCH_TEMPLATES", "/no/such/folder")
    done = CliRunner().invoke(templates)
    assert done.exit_code == 1 and "/no/such/folder, named by GANGWATCH_TEMPLATES" in done.output
