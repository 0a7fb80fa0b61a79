"""Commands that write dashboards, rules and what shows them: dashboards build, dashboards provision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from agent.schema.errors import DashboardError
from gangwatch.commands.options import json_option, print_json, say, state_option
from gangwatch.state_folder import StateFolder

if TYPE_CHECKING:
    from dashboards.provisioning import Files, Machine, Target


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dashboards() -> None:
    """Write Grafana dashboards, recording rules and alerts, and the configuration that shows them.

    \b
    Example:
      gangwatch dashboards build build/dashboards
      gangwatch dashboards provision ~/gangwatch-monitoring
    """


@dashboards.command()
@click.argument("folder", metavar="OUT", type=click.Path(file_okay=False, path_type=Path))
@json_option
def build(folder: Path, as_json: bool) -> None:
    """Write all dashboards as Grafana's JSON, and all rules, to OUT.

    dashboards/FOLDER/NAME.json are what Grafana imports or a side-car mounts; rules/recording.yml and rules/alerts.yml
    go into Prometheus's rule_files; rules/prometheus-rule.yml is both as an object of its operator. A name that no
    agent and no controller publishes fails the build. What is the same already is left as it is.

    \b
    Example:
      gangwatch dashboards build build/dashboards
      gangwatch dashboards build build/dashboards --json
    """
    _require_sdk()
    from dashboards.provisioning import built_files

    _write(folder, built_files(), as_json)


@dashboards.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path, resolve_path=True))
@state_option
@click.option(
    "--cluster", default="local", show_default=True, metavar="NAME", help="Its name, a label of every series."
)
@click.option(
    "--prometheus", default="http://127.0.0.1:9090", show_default=True, metavar="URL", help="Where Grafana finds it."
)
@click.option(
    "--alertmanager",
    default="127.0.0.1:9093",
    show_default=True,
    metavar="HOST:PORT",
    help="Where Prometheus finds it.",
)
@click.option(
    "--webhook", default="http://127.0.0.1:9095/", show_default=True, metavar="URL", help="Who is told of alerts."
)
@json_option
def provision(
    folder: Path, state: StateFolder, cluster: str, prometheus: str, alertmanager: str, webhook: str, as_json: bool
) -> None:
    """Write to DIR all that Grafana, Prometheus and Alertmanager need to show this machine's `gangwatch up`.

    Beside what `build` writes: Grafana's provisioning tree (data source, folders, dashboards), Prometheus's
    configuration with the agents and the controller that run now as targets, and Alertmanager's with inhibitions.
    Run it again when agents have come or gone, or have another port: Prometheus takes the targets over by itself.

    \b
    Example:
      gangwatch dashboards provision ~/gangwatch-monitoring
      prometheus --config.file ~/gangwatch-monitoring/prometheus/prometheus.yml
      GF_PATHS_PROVISIONING=~/gangwatch-monitoring/grafana/provisioning grafana server --homepath /usr/share/grafana
    """
    _require_sdk()
    from dashboards.provisioning import Machine, provisioned_files

    agents = tuple(_target(record.url, node) for node, record in sorted(state.agents().items()))
    running = state.controller()
    controller = None if running is None else _target(running.url)
    machine: Machine = Machine(cluster, folder, agents, controller, prometheus, alertmanager, webhook)
    if not agents:
        say(f"no agent runs for {state}: the targets are empty; run this again after `gangwatch up`")
    _write(folder, provisioned_files(machine), as_json)


def _require_sdk() -> None:
    try:
        import grafana_foundation_sdk  # noqa: F401 - whether it is there
    except ImportError:
        raise DashboardError(
            "dashboards are built with grafana-foundation-sdk: pip install 'gangwatch[dashboards]'"
        ) from None


def _target(url: str, node: str = "") -> Target:
    from dashboards.provisioning import Target

    parts = urlsplit(url)
    return Target(parts.netloc, node, parts.scheme)


def _write(folder: Path, files: Files, as_json: bool) -> None:
    from dashboards.provisioning import write

    every, written = write(folder, files)
    if as_json:
        print_json({"folder": str(folder), "files": every, "written": written})
        return
    for name in written:
        click.echo(f"wrote {folder / name}")
    say(f"{len(every)} files, {len(every) - len(written)} of them as they were")
