"""Support bundle: it contains all that a bug report needs, and no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.schema.errors import GangwatchError
from gangwatch.cli import cli
from gangwatch.configuration.config_file import load
from gangwatch.configuration.in_force import InForce, write_in_force
from gangwatch.state_folder import StateFolder
from gangwatch.support.bundle import known_secrets, pack
from gangwatch.support.redaction import remove_secrets
from scheduler_feedback.core.actions import Entry
from scheduler_feedback.core.events import Submitted
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.journal.store import Store

PASSWORD = "hunter2hunter2"
HEADER = "Bearer 9f8e7d6c5b4a"
VARIABLE = 'sk-"quoted"-123456'
LETTERS = 'pässwörd\\"-654321'
ARGUMENT = "--wandb-login=me-and-only-me"


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    """Make a state folder with secrets in every file that can contain one."""
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  admin: {PASSWORD}\n")
    headers = tmp_path / "headers"
    headers.write_text(f"Authorization: {HEADER}\n")
    file = tmp_path / "gangwatch.toml"
    file.write_text(
        f'[agent]\nweb_config = "{web}"\n[otlp]\nendpoint = "http://127.0.0.1:9/v1"\nheaders_file = "{headers}"\n'
    )
    write_in_force(folder, InForce(str(file), {}, load(file)))
    environment = {"WANDB_API_KEY": VARIABLE, "DB_PASSWORD": LETTERS, "HOME": "/home/ann"}
    spec = JobSpec("train", ("python", "train.py", ARGUMENT), 1, user="ann", environment=environment)
    store = Store(folder.path / "store.sqlite")
    named = JobSpec(f"after {LETTERS}", ("python",), 1, user=VARIABLE)
    store.append(
        1,
        1,
        [Submitted("j-000001", spec), Submitted("j-000002", named)],
        [],
        [Entry(1, "j-000001", "submitted", f"said {folder.token()}")],
    )
    store.close()
    folder.log_file("controller").write_text(
        f'time=1 message="token={folder.token()}"\ntime=2 message="{HEADER}"\ntime=3 message={json.dumps(VARIABLE)}\n'
        f"time=4 {VARIABLE}\ntime=5 {LETTERS}\ntime=6 {json.dumps(LETTERS)}\n"
    )
    return folder


def parts_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.removeprefix("gangwatch-support/"): file.read().decode()
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }


def test_the_bundle_contains_no_secret(state: StateFolder, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    pack(state, target)
    assert target.stat().st_mode & 0o777 == 0o600
    whole = "\n".join(parts_of(target).values())
    for secret in (
        state.token(),
        PASSWORD,
        HEADER,
        HEADER.removeprefix("Bearer "),
        VARIABLE,
        json.dumps(VARIABLE)[1:-1],
        LETTERS,
        json.dumps(LETTERS)[1:-1],
        json.dumps(LETTERS, ensure_ascii=False)[1:-1],
        ARGUMENT,
        "/home/ann",
    ):
        assert secret not in whole


def test_the_bundle_contains_what_a_bug_report_needs(state: StateFolder, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    result = CliRunner().invoke(cli, ["support-bundle", "--state", str(state), str(target), "--json"])
    assert result.exit_code == 0, result.output
    parts = parts_of(target)
    assert set(parts) == set(json.loads(result.stdout)["parts"])
    assert set(parts) >= {"versions.json", "configuration.json", "journal.jsonl", "log/controller.log", "metrics.txt"}
    versions = json.loads(parts["versions.json"])
    assert versions["gangwatch"] and versions["python"] and "numpy" in versions["packages"]
    assert json.loads(parts["configuration.json"])["otlp.endpoint"] == "http://127.0.0.1:9/v1"
    [row] = [json.loads(line) for line in parts["journal.jsonl"].splitlines()]
    submitted, _ = row["events"]
    assert submitted["spec"]["command"] == "[removed] 3 arguments"
    assert set(submitted["spec"]["environment"]) == {"WANDB_API_KEY", "DB_PASSWORD", "HOME"}
    assert "time=1" in parts["log/controller.log"]
    assert parts["metrics.txt"] == "# no controller is running\n"


def test_the_bundle_contains_the_last_cycles_of_the_journal(state: StateFolder, tmp_path: Path) -> None:
    store = Store(state.path / "store.sqlite")
    for cycle in range(2, 50):
        store.append(cycle, cycle, [], [], [])
    store.close()
    pack(state, tmp_path / "bundle.tar.gz", cycles=5)
    lines = parts_of(tmp_path / "bundle.tar.gz")["journal.jsonl"].splitlines()
    assert [json.loads(line)["cycle"] for line in lines] == [45, 46, 47, 48, 49]


def test_a_bundle_is_made_of_a_damaged_folder(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    folder.config_file.write_text("nonsense")
    (folder.path / "store.sqlite").write_text("nonsense")
    pack(folder, tmp_path / "bundle.tar.gz")
    parts = parts_of(tmp_path / "bundle.tar.gz")
    assert parts["journal.jsonl"] == ""
    assert "config.json" in json.loads(parts["configuration.json"])["error"]


def test_a_bundle_never_overwrites_a_file(state: StateFolder, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("mine")
    with pytest.raises(GangwatchError, match="already exists"):
        pack(state, target)
    assert target.read_text() == "mine"


def test_a_secret_is_removed_in_all_its_encodings() -> None:
    """A secret occurs as plain text (log, traceback) and as JSON, with and without escaped letters."""
    for form in (LETTERS, json.dumps(LETTERS)[1:-1], json.dumps(LETTERS, ensure_ascii=False)[1:-1]):
        assert remove_secrets(f"<{form}>", [LETTERS]) == "<[removed]>"
    assert remove_secrets("<abcdef>", ["abcdef"]) == "<[removed]>"
    assert remove_secrets(json.dumps("abcdef\\"), ["abcdef\\"]) == '"[removed]"', (
        "the JSON contains the plain secret too"
    )


def test_longer_secrets_are_removed_first(state: StateFolder) -> None:
    secrets = known_secrets(state, [])
    assert secrets == sorted(secrets, key=len, reverse=True)
    assert {state.token(), PASSWORD, HEADER} <= set(secrets)
    assert remove_secrets("abcdefgh abcdef", ["abcdefgh", "abcdef"]) == "[removed] [removed]"
