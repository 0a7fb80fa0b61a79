"""Commands that write dashboards, rules and provisioning files: dashboards build, dashboards provision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from gangwatch.commands.options import json_option, print_json, say, state_option
from gangwatch.extras import needs
from gangwatch.state_folder import StateFolder

if TYPE_CHECKING:
    from dashboards.provisioning import Files, Target

# dashboards.provisioning loads Grafana's SDK and YAML, which `--help` and shell completion must not load: the functions
# that need it import it.


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dashboards() -> None:
    """Write Grafana dashboards, recording rules, alerts, and the configuration to serve them.

    \b
    Example:
      gangwatch dashboards build build/dashboards
      gangwatch dashboards provision ~/gangwatch-monitoring
    """


@dashboards.command()
@needs("dashboards")
@click.argument("folder", metavar="OUT", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Build the dashboards of DIR (FOLDER/NAME.dashboard.py) instead, to OUT/FOLDER/TITLE.json.",
)
@json_option
def build(folder: Path, source: Path | None, as_json: bool) -> None:
    """Write all dashboards (Grafana JSON) and all rules to OUT.

    Import dashboards/FOLDER/NAME.json into Grafana, or mount them with a side-car. Add rules/recording.yml and
    rules/alerts.yml to Prometheus's rule_files; rules/prometheus-rule.yml holds both for the Prometheus operator. The
    build fails if a query uses a metric that neither agents nor the controller export. Unchanged files are not
    rewritten.

    \b
    Example:
      gangwatch dashboards build build/dashboards
      gangwatch dashboards build build/dashboards --json
      gangwatch dashboards build build/ours --source my-dashboards
    """
    from dashboards.provisioning import built_files, own_files

    _write(folder, built_files() if source is None else own_files(source), as_json)


@dashboards.command()
@needs("dashboards")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path, resolve_path=True))
@state_option
@click.option(
    "--cluster", default="local", show_default=True, metavar="NAME", help="Cluster name; a label of every series."
)
@click.option(
    "--prometheus", default="http://127.0.0.1:9090", show_default=True, metavar="URL", help="Prometheus for Grafana."
)
@click.option(
    "--alertmanager",
    default="127.0.0.1:9093",
    show_default=True,
    metavar="HOST:PORT",
    help="Alertmanager for Prometheus.",
)
@click.option(
    "--webhook", default="http://127.0.0.1:9095/", show_default=True, metavar="URL", help="Receiver of alerts."
)
@json_option
def provision(
    folder: Path, state: StateFolder, cluster: str, prometheus: str, alertmanager: str, webhook: str, as_json: bool
) -> None:
    """Write to DIR all files that Grafana, Prometheus and Alertmanager need to monitor this machine's `gangwatch up`.

    In addition to the files of `build`: Grafana's provisioning tree (data source, folders, dashboards), Prometheus's
    configuration with the running agents and controller as targets, and Alertmanager's with inhibitions. Run it again
    when agents or ports change; Prometheus reloads the targets automatically.

    \b
    Example:
      gangwatch dashboards provision ~/gangwatch-monitoring
      prometheus --config.file ~/gangwatch-monitoring/prometheus/prometheus.yml
      GF_PATHS_PROVISIONING=~/gangwatch-monitoring/grafana/provisioning grafana server --homepath /usr/share/grafana
    """
    from dashboards.provisioning import Machine, provisioned_files

    agents = tuple(_target(record.url, node) for node, record in sorted(state.agents().items()))
    running = state.controller()
    controller = None if running is None else _target(running.url)
    machine = Machine(cluster, folder, agents, controller, prometheus, alertmanager, webhook)
    if not agents:
        say(f"no agent runs for {state}: the targets are empty; run this again after `gangwatch up`")
    _write(folder, provisioned_files(machine), as_json)


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
    say(f"{len(every)} files, {len(every) - len(written)} of them unchanged")
