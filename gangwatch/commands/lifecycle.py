"""Commands that start and stop: up, down, agent, controller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.commands.collector_options import CollectorCommand, chosen_collectors
from gangwatch.commands.options import (
    cluster_options,
    config_option,
    json_option,
    overrides,
    print_json,
    say,
    state_option,
)
from gangwatch.extras import needs
from gangwatch.state_folder import NodePlan, StateFolder
from scheduler_feedback.api.web.words import count

if TYPE_CHECKING:
    from gangwatch.configuration.config_file import Config


def _options_again(
    nodes: int | None, slots: int | None, port: int | None, no_gpus: bool, listen: str | None, web_config: str | None
) -> tuple[str, ...]:
    """Return the given options as command-line arguments, which the supervisor passes to the controller."""
    web = str(Path(web_config).absolute()) if web_config is not None else None
    pairs = (("--nodes", nodes), ("--slots", slots), ("--port", port), ("--listen", listen), ("--web-config", web))
    given = tuple(part for name, value in pairs if value is not None for part in (name, str(value)))
    return (*given, "--no-gpus") if no_gpus else given


@click.command()
@needs("controller")
@state_option
@config_option
@cluster_options
@click.option("--foreground", is_flag=True, help="Run the supervisor in the foreground (systemd, containers).")
@click.option("--check-config", is_flag=True, help="Only show the effective configuration and its changes.")
@click.option("--report-to", type=int, hidden=True, help="File descriptor for progress reports.")
@json_option
def up(
    state: StateFolder,
    config_file: Path | None,
    nodes: int | None,
    slots: int | None,
    port: int | None,
    no_gpus: bool,
    listen: str | None,
    web_config: str | None,
    foreground: bool,
    check_config: bool,
    report_to: int | None,
    as_json: bool,
) -> None:
    """Start an agent for every node, the controller, and a supervisor that restarts them.

    Without --nodes and --slots, the size of the machine sets both. CPUs: 2 nodes, 4 from 16 processors on, 8 from 64
    on; the nodes share the processors, with at least 4 slots each. GPUs: one slot per GPU; 2 nodes, 4 from 16 GPUs on;
    a single GPU is one node.

    Returns once all daemons are ready. Daemons that already run for the state folder keep running, so `up` after a
    crash starts only the missing ones. After a reboot it restores the cluster of the last `up`: nodes, slots, GPUs,
    port and configuration. New options override the restored ones; `down` deletes them.

    All daemons listen on loopback only, unless the configuration or --listen names another address. That requires TLS
    and authentication.

    \b
    Examples:
      gangwatch up --nodes 4 --slots 2
      gangwatch up --listen 0.0.0.0:9420 --web-config web.yml
    """
    from gangwatch.configuration.config_file import load

    effective = load(config_file, overrides(nodes, slots, port, no_gpus, listen, web_config))
    if check_config:
        from gangwatch.commands.configuration import show

        show(state, effective, as_json)
        return
    from gangwatch.supervisor import launcher

    options = _options_again(nodes, slots, port, no_gpus, listen, web_config)
    # A detached start runs this twice, here and in the supervisor; only the first call prints.
    order = launcher.make_order(state, config_file, options, _load_with, say if report_to is None else lambda _: None)
    if foreground:
        _stay(order, report_to)
        return
    launcher.start_detached(order, say)
    _print_started(state, as_json)


def _print_started(state: StateFolder, as_json: bool) -> None:
    """Print the running daemons. Raises GangwatchError if they have ended since `up` started them."""
    from gangwatch.commands.configuration import say_notices
    from gangwatch.configuration.in_force import read_in_force
    from gangwatch.configuration.node_plan import oversubscribed
    from gangwatch.health.machine import usable_processors

    running = state.supervisor()
    controller = state.controller()
    if running is None or controller is None:
        from gangwatch.supervisor.daemon_ends import why_no_controller

        raise GangwatchError(
            f"the daemons were ready but have ended since: {why_no_controller(state)}; see {state}/log"
        )
    if as_json:
        print_json(
            {
                "state": str(state),
                "url": controller.url,
                "supervisor": running.pid,
                "controller": controller.pid,
                "nodes": [{"node": node.name, "slots": node.slots} for node in running.nodes],
            }
        )
        return
    unit = "GPU" if any(node.devices for node in running.nodes) else "slot"
    places = ", ".join(f"{node.name} ({node.slots} {unit}{'' if node.slots == 1 else 's'})" for node in running.nodes)
    click.echo(f"gangwatch runs at {controller.url}: {places}")
    if shared := oversubscribed(running.nodes, usable_processors()):
        click.echo(shared)
    if (in_force := read_in_force(state)) is not None:
        say_notices(in_force.config)
    say(f"state folder {state}")


def _load_with(file: Path | None, options: tuple[str, ...]) -> Config:
    """Return the configuration in `file`, overridden by the command-line options of `gangwatch up`."""
    from gangwatch.configuration.config_file import load

    context = up.make_context("up", list(options), resilient_parsing=True)
    names = ("nodes", "slots", "port", "no_gpus", "listen", "web_config")
    return load(file, overrides(*(context.params[name] for name in names)))


def _stay(order: object, report_to: int | None) -> None:
    from gangwatch.supervisor import launcher
    from gangwatch.supervisor.service_manager import notify

    assert isinstance(order, launcher.Order)
    reporter = launcher.Reporter(report_to) if report_to is not None else None

    def started() -> None:
        say("all daemons are ready")
        notify("READY=1", "STATUS=all daemons are ready")

    try:
        launcher.run_in_foreground(
            order,
            reporter.progress if reporter else say,
            reporter.ready if reporter else started,
        )
    except GangwatchError as error:
        if reporter is not None:
            reporter.failed(str(error))
        raise


@click.command()
@state_option
@click.option("--keep-jobs", is_flag=True, help="Stop only the daemons; jobs continue and the next `up` finds them.")
@json_option
def down(state: StateFolder, keep_jobs: bool, as_json: bool) -> None:
    """Stop everything: running jobs (each may save within its grace period), controller, agents and supervisor.

    Afterwards no process of the state folder remains, even if some daemons had been killed before. Safe to repeat.

    \b
    Example:
      gangwatch down
    """
    from gangwatch.supervisor.teardown import stop_everything

    stopped = stop_everything(state, keep_jobs, say)
    if as_json:
        print_json({"state": str(state), **stopped})
    elif not any(stopped.values()):
        say(f"nothing was running for {state}")
    else:
        click.echo(f"stopped {count(stopped['jobs'], 'job')} and {count(stopped['daemons'], 'daemon')}")


@click.command(cls=CollectorCommand)
@state_option
@config_option
@click.option("--node", help="The node's name. Default: this host's.")
@click.option("--slots", type=click.IntRange(1), help="Default: one per processor.")
@click.option("--device", "devices", multiple=True, metavar="UUID", help="GPU of the next slot; repeatable.")
@click.option(
    "--position", type=click.IntRange(0), default=0, help="Index among this machine's nodes; added to the port."
)
@click.option("--listen", metavar="HOST:PORT", help="Address; off loopback it needs --web-config. Default: agent.port.")
@click.option("--web-config", metavar="FILE", help="TLS and passwords, in the exporter-toolkit's format.")
@click.option("--nvml-library", metavar="FILE", help="Instead of the system's libnvidia-ml.so.1.")
@click.option("--sysfs-root", metavar="DIR", help="Default: /sys.")
@click.option("--proc-root", metavar="DIR", help="Default: /proc.")
@click.option("--kubelet-socket", metavar="FILE", help="The kubelet's pod-resources socket; '' disables it.")
@click.option("--kubelet-pods", metavar="DIR", help="The kubelet's pods folder; ranks report in an emptyDir.")
@click.option(
    "--step-folder", metavar="DIR", help="Folder to create for agent.sock, where the ranks of all users report."
)
@click.option("--kernel-log", metavar="FILE", help="Default: /dev/kmsg.")
@click.option("--job-files", metavar="DIR", help="Folder where a Slurm prolog writes which job has which GPU.")
@click.option(
    "--gpu-burst", is_flag=True, help="Read each GPU ten times a second to catch extremes within an interval."
)
@click.option("--profile", type=click.Choice(("default", "full")), help="Metrics in /metrics.")
@click.option(
    "--compatibility", multiple=True, metavar="NAMES", help="dcgm, node_exporter or rdma_exporter; repeatable."
)
@click.option(
    "--metrics-file", metavar="FILE", help="CSV file in dcgm-exporter's form: selects the metrics in /metrics."
)
@click.option("--textfile-folder", metavar="DIR", help="Folder of *.prom files whose metrics are served too.")
@click.pass_context
def agent(
    context: click.Context,
    state: StateFolder,
    config_file: Path | None,
    node: str | None,
    slots: int | None,
    devices: tuple[str, ...],
    position: int,
    listen: str | None,
    web_config: str | None,
    nvml_library: str | None,
    sysfs_root: str | None,
    proc_root: str | None,
    kubelet_socket: str | None,
    kubelet_pods: str | None,
    step_folder: str | None,
    kernel_log: str | None,
    job_files: str | None,
    gpu_burst: bool,
    profile: str | None,
    compatibility: tuple[str, ...],
    metrics_file: str | None,
    textfile_folder: str | None,
) -> None:
    """Run one node's agent in the foreground, until SIGTERM. `gangwatch up` does this for every node. An agent also
    runs alone, without a controller.

    SIGHUP makes it read its configuration again. SIGUSR1 releases the GPUs, so that they can be reset or the driver
    can be unloaded; SIGUSR2 opens them again.

    Each pod, job and user has its own quota on the step socket: section [step_quotas] of gangwatch.toml
    (docs/how-to/agent.md). gangwatch_step_reporters_refused_total counts refused reporters.

    \b
    Examples:
      gangwatch agent --node node-0 --slots 2
      gangwatch agent --listen 0.0.0.0:9400 --web-config web.yml --compatibility dcgm
      gangwatch agent --no-collector.nfs --metrics-file default-counters.csv
    """
    from gangwatch.configuration.config_file import load
    from gangwatch.configuration.node_plan import node_name_of
    from gangwatch.daemons.agent_daemon import run_agent
    from gangwatch.health.machine import host_name, usable_processors

    given = {
        "agent.listen": listen,
        "agent.web_config": web_config,
        "agent.nvml_library": nvml_library,
        "agent.sysfs_root": sysfs_root,
        "agent.proc_root": proc_root,
        "agent.kubelet_socket": kubelet_socket,
        "agent.kubelet_pods": kubelet_pods,
        "agent.step_folder": step_folder,
        "agent.kernel_log": kernel_log,
        "agent.job_files": job_files,
        "agent.gpu_burst": True if gpu_burst else None,
        "exporter.profile": profile,
        "exporter.compatibility": list(compatibility) or None,
        "exporter.metrics_file": None if metrics_file is None else str(Path(metrics_file).absolute()),
        "agent.collectors": chosen_collectors(context) or None,
        "exporter.textfile_folder": textfile_folder,
    }
    configuration = load(config_file, given)
    if devices and slots is not None and len(devices) != slots:
        raise click.BadParameter(f"{len(devices)} devices for {slots} slots", param_hint="--device")
    # Do not count the GPUs here: if the driver hangs, the agent could not report it.
    run_agent(
        state,
        configuration,
        node or node_name_of(host_name()),
        slots or len(devices) or usable_processors(),
        devices,
        position,
        lambda: load(config_file, given),
    )


@click.command()
@needs("controller")
@state_option
@config_option
@cluster_options
@click.option("--textfile-folder", metavar="DIR", help="Folder of *.prom files whose metrics are served too.")
@click.option("--planned", hidden=True, help="The nodes as JSON, from the supervisor.")
@click.option("--check-config", is_flag=True, help="Only show the effective configuration and its changes.")
@json_option
def controller(
    state: StateFolder,
    config_file: Path | None,
    nodes: int | None,
    slots: int | None,
    port: int | None,
    no_gpus: bool,
    listen: str | None,
    web_config: str | None,
    textfile_folder: str | None,
    planned: str | None,
    check_config: bool,
    as_json: bool,
) -> None:
    """Run the controller in the foreground, until SIGTERM. `gangwatch up` does this.

    SIGHUP makes it read its configuration again (`gangwatch reload`). Only one controller can run per state folder.
    Off loopback it serves only TLS, to holders of the state folder's token and users in the web configuration.

    \b
    Examples:
      gangwatch controller --port 9420
      gangwatch controller --listen 0.0.0.0:9420 --web-config web.yml
    """
    from gangwatch.configuration.config_file import load

    given = overrides(nodes, slots, port, no_gpus, listen, web_config) | {"exporter.textfile_folder": textfile_folder}
    effective = load(config_file, given)
    if check_config:
        from gangwatch.commands.configuration import show

        show(state, effective, as_json)
        return
    from gangwatch.daemons.controller_daemon import run_controller

    changed = {key: value for key, value in given.items() if isinstance(value, int | str)}
    run_controller(state, effective, changed, _nodes_of(planned))


def _nodes_of(planned: str | None) -> tuple[NodePlan, ...] | None:
    if planned is None:
        return None
    try:
        return msgspec.json.decode(planned, type=tuple[NodePlan, ...])
    except msgspec.DecodeError as error:
        raise click.BadParameter(str(error), param_hint="--planned") from None
