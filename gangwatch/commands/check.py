"""The command `gangwatch check`: shows what gangwatch can read on this machine or cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.commands.kubernetes import access_of, kubeconfig_option
from gangwatch.commands.options import config_option, json_option, print_json, state_option
from gangwatch.configuration import notices
from gangwatch.configuration.config_file import Config, load
from gangwatch.extras import require
from gangwatch.health import machine
from gangwatch.health.machine import Finding, Machine
from gangwatch.state_folder import StateFolder


@click.command()
@state_option
@config_option
@click.option("--nvml-library", metavar="FILE", help="Instead of the system's libnvidia-ml.so.1.")
@click.option("--sysfs-root", metavar="DIR", help="Default: /sys.")
@click.option("--proc-root", metavar="DIR", help="Default: /proc.")
@click.option("--kernel-log", metavar="FILE", help="Default: /dev/kmsg.")
@click.option(
    "--require", "required", multiple=True, metavar="NAME", help="Exit with 1 unless NAME is found; repeatable."
)
@click.option("--kubernetes", is_flag=True, help="Check a cluster instead of this machine.")
@kubeconfig_option
@click.option(
    "--namespace", metavar="NAME", help="With --kubernetes: gangwatch's namespace. Default: the kubeconfig's."
)
@click.option("--release", default="gangwatch", show_default=True, help="With --kubernetes: the chart's release.")
@json_option
def check(
    state: StateFolder,
    config_file: Path | None,
    nvml_library: str | None,
    sysfs_root: str | None,
    proc_root: str | None,
    kernel_log: str | None,
    required: tuple[str, ...],
    kubernetes: bool,
    kubeconfig: Path | None,
    namespace: str | None,
    release: str,
    as_json: bool,
) -> None:
    """Show what gangwatch finds on this machine: which counters it can read, what is missing, and the permission,
    package or setting that fixes it. With --kubernetes, check a cluster: its GPUs, labels, agents, controller,
    permissions and resource definitions.

    A missing item does not stop gangwatch: it measures less, or uses another way. The exit code is 0, or 1 if an item
    given with --require is limited or missing.

    \b
    Examples:
      gangwatch check --json
      gangwatch check --require nvml --require rdma
      gangwatch check --kubernetes --kubeconfig ~/.kube/config --namespace gangwatch --require agents
    """
    if kubernetes:
        _check_cluster(kubeconfig, namespace, release, required, as_json)
        return
    folders = {
        "agent.nvml_library": nvml_library,
        "agent.sysfs_root": sysfs_root,
        "agent.proc_root": proc_root,
        "agent.kernel_log": kernel_log,
    }
    found = _examine(state, load(config_file, folders), config_file is not None)
    _check_names(required, found.findings)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        from gangwatch.display import rendering  # with rich, which `--help` and shell completion must not load

        rendering.machine(found)
    _require(required, found.findings)


def _examine(state: StateFolder, config: Config, given: bool) -> Machine:
    """Run the checks of this machine and return their results. given: whether the user named a configuration file."""
    # These load every source of the agent: 0.4 s of imports, which `check --help` and --kubernetes do not need.
    from gangwatch.health import (
        certificate_health,
        collector_survey,
        controller_health,
        extras_health,
        plugin_health,
        slurm_health,
    )

    section = config.agent
    found = machine.examine(
        state, config.controller.address()[1], Path(section.proc_root), Path(section.sysfs_root), section.nvml_library
    )
    return msgspec.structs.replace(
        found,
        findings=(
            *found.findings,
            *collector_survey.survey(section),
            notices.finding_of(state, config, given),
            *controller_health.findings(state),
            *slurm_health.findings(config.slurm),
            *certificate_health.findings(state, config),
            *plugin_health.findings(config.exporter),
            *extras_health.findings(),
        ),
    )


def _check_cluster(
    kubeconfig: Path | None, namespace: str | None, release: str, required: tuple[str, ...], as_json: bool
) -> None:
    require("`gangwatch check --kubernetes`", "kubernetes")
    from gangwatch.health.kubernetes_health import in_words, survey  # with an HTTP client

    access = access_of(kubeconfig)
    found = survey(access, namespace or access.namespace, release)
    _check_names(required, found.findings)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        in_words(found, click.echo)
    _require(required, found.findings)


def _check_names(required: tuple[str, ...], findings: Iterable[Finding]) -> None:
    """Raise BadParameter if --require has a name that none of the checks has."""
    names = {finding.name for finding in findings}
    if unknown := [name for name in required if name not in names]:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(sorted(names))}", param_hint="--require")


def _require(required: tuple[str, ...], findings: Iterable[Finding]) -> None:
    """Raise GangwatchError if an item that --require names is limited or missing."""
    states = {finding.name: finding.state for finding in findings}
    if lacking := [name for name in required if states[name] != "found"]:
        raise GangwatchError(f"required and not found: {', '.join(f'{name} ({states[name]})' for name in lacking)}")
