"""`gangwatch check`."""

from __future__ import annotations

from pathlib import Path

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import config_option, json_option, print_json, state_option
from gangwatch.state_folder import StateFolder


@click.command()
@state_option
@config_option
@click.option("--nvml-library", metavar="FILE", help="Instead of the system's libnvidia-ml.so.1.")
@click.option("--sysfs-root", metavar="DIR", help="Default: /sys.")
@click.option("--proc-root", metavar="DIR", help="Default: /proc.")
@click.option("--kernel-log", metavar="FILE", help="Default: /dev/kmsg.")
@click.option(
    "--require", "required", multiple=True, metavar="NAME", help="Exit with 1 unless it is found; repeatable."
)
@json_option
def check(
    state: StateFolder,
    config_file: Path | None,
    nvml_library: str | None,
    sysfs_root: str | None,
    proc_root: str | None,
    kernel_log: str | None,
    required: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what was found on this machine, which counters answer, what is missing, and which right, package or setting
    brings it.

    What is missing keeps nothing from running: gangwatch then measures less, or does the same otherwise. Exits with 0;
    with --require NAME, with 1 where something of that name is limited or missing.

    \b
    Examples:
      gangwatch check --json
      gangwatch check --require nvml --require rdma
    """
    import msgspec

    from gangwatch import config, machine, survey

    loaded = config.load(
        config_file,
        {
            "agent.nvml_library": nvml_library,
            "agent.sysfs_root": sysfs_root,
            "agent.proc_root": proc_root,
            "agent.kernel_log": kernel_log,
        },
    )
    section = loaded.agent
    found = machine.examine(
        state, loaded.controller.address()[1], Path(section.proc_root), Path(section.sysfs_root), section.nvml_library
    )
    found = msgspec.structs.replace(found, findings=(*found.findings, *survey.survey(section)))
    states = {finding.name: finding.state for finding in found.findings}
    if unknown := [name for name in required if name not in states]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(sorted(states))}", param_hint="--require")
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        from gangwatch import rendering

        rendering.machine(found)
    if lacking := [name for name in required if states[name] != "found"]:
        raise GangwatchError(f"required and not found: {', '.join(f'{name} ({states[name]})' for name in lacking)}")
