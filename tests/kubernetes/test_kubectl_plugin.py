"""kubectl plug-in: which command it runs in which pod. A script that answers from a file replaces kubectl.

`kubectl exec` needs a real kubelet; test_demo_kubernetes.py has some.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "deploy" / "kubectl" / "kubectl-gangwatch"
KUBECTL = """#!/bin/sh
case "$*" in
*"get lease missing"*) echo 'Error: leases "missing" not found' >&2; exit 1 ;;
*"get lease idle"*) ;;
*"get lease stopped"*) printf 'gone-controller_0123456789ab' ;;
*"get lease"*) printf 'gangwatch-controller-abc-x1_0123456789ab' ;;
*"get podgroups.scheduling.x-k8s.io secret "*) echo 'Error from server (Forbidden): no right to get it' >&2; exit 1 ;;
*"get podgroups.scheduling.k8s.io "*) echo "error: the server doesn't have a resource type" >&2; exit 1 ;;
*"get podgroups.scheduling.x-k8s.io warned "*) echo 'Warning: old' >&2; printf 'team.warned.1234567890-abcd' ;;
*"get pod gone-controller"*) echo 'Error from server (NotFound): pods "gone-controller" not found' >&2; exit 1 ;;
*"exec --stdin gone-controller"*) echo 'Error from server (NotFound): pods "gone-controller" not found' >&2; exit 1 ;;
*"get pod gangwatch-controller-abc-x1"*) printf Running ;;
*" frobnicate "*) echo 'Error: No such command' >&2; exit 2 ;;
*" explain team.few."* | *" explain team.none."*) echo 'Error: no job' >&2; exit 1 ;;
*"get podgroups.scheduling.x-k8s.io few "*conditions*) printf '1 of 2 pods exist' ;;
*"get podgroups.scheduling.x-k8s.io none "*conditions*) ;;
*"get podgroups.scheduling.x-k8s.io few "*) printf 'team.few.1234567890-abcd' ;;
*"get podgroups.scheduling.x-k8s.io none "*) printf 'team.none.1234567890-abcd' ;;
*"get podgroups.scheduling.x-k8s.io train "*) printf 'team.train.1234567890-abcd' ;;
*"get pod lone "*) printf 'default.lone.feedbeef99-abcd' ;;
*" exec "*) echo "$@" ;;
esac
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "KUBECTL": str(program)}
    command = [str(PLUGIN), *arguments]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "inside"),
    [
        ("explain train", "explain team.train.12345678"),
        ("story train -n team --json", "story team.train.12345678 --json"),
        ("story lone", "story default.lone.feedbeef"),
        ("story warned", "story team.warned.12345678"),
        ("story node:gpu-7", "story node:gpu-7"),
        ("explain team.train.12345678", "explain team.train.12345678"),
        ("top --once", "top --once"),
        ("nodes", "nodes"),
    ],
)
def test_a_command_runs_in_the_leader_with_the_gang_s_id(arguments: str, inside: str, tmp_path: Path) -> None:
    done = run(tmp_path, *arguments.split())
    assert done.returncode == 0, done.stderr
    where = "--namespace gangwatch exec --stdin gangwatch-controller-abc-x1 --container controller"
    assert done.stdout == f"{where} -- gangwatch {inside} --state /var/lib/gangwatch/controller\n"


def test_options_name_the_cluster_and_the_release(tmp_path: Path) -> None:
    done = run(tmp_path, "--context=prod", "top", "--release", "gw", "--release-namespace=monitoring")
    assert done.stdout.startswith("--context=prod --namespace monitoring exec "), done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("explain other", "no PodGroup and no pod other"),
        ("explain", "needs the name of a PodGroup or pod"),
        ("top --release missing", "the lease missing cannot be read in namespace gangwatch"),
        ("top --release idle", "no controller leads"),
        ("explain train -n", "-n needs a value"),
        ("explain secret", "Error from server (Forbidden): no right to get it"),
        ("top --release stopped", "gone-controller, the last controller that led, does not run"),
    ],
)
def test_wrong_input_is_named_and_runs_nothing(arguments: str, words: str, tmp_path: Path) -> None:
    done = run(tmp_path, *arguments.split())
    assert done.returncode == 1 and words in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("few", "1 of 2 pods exist"),
        ("none", "none of its pods has gangwatch's schedulerName and the label scheduling.x-k8s.io/pod-group: none"),
    ],
)
def test_a_gang_that_is_no_job_yet_is_explained_by_its_group(name: str, why: str, tmp_path: Path) -> None:
    done = run(tmp_path, "explain", name, "-n", "team")
    assert done.returncode == 1
    assert f"gangwatch does not schedule {name} yet: {why}\n" in done.stderr
    assert "does not schedule" not in run(tmp_path, "story", name).stderr


def test_the_exit_code_of_the_command_is_kept(tmp_path: Path) -> None:
    done = run(tmp_path, "frobnicate", "now")
    assert done.returncode == 2 and done.stderr == "Error: No such command\n"


def test_without_a_command_it_shows_its_usage(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2 and "kubectl gangwatch explain NAME" in done.stderr
    assert "kubectl gangwatch explain NAME" in run(tmp_path, "--help").stdout
