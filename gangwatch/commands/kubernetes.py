"""Commands for a Kubernetes cluster: controller, uninstall and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.schema.errors import ConfigError
from gangwatch.commands.options import config_option, plain, state_option
from gangwatch.extras import needs
from gangwatch.state_folder import StateFolder

if TYPE_CHECKING:
    from scheduler_feedback.backends.kubernetes.api_server.client import Access


@click.group()
def kubernetes() -> None:
    """Schedule a Kubernetes cluster's gangs, or advise its scheduler.

    \b
    Examples:
      gangwatch kubernetes controller --kubeconfig ~/.kube/config
      gangwatch kubernetes uninstall --kubeconfig ~/.kube/config
    """


def access_of(kubeconfig: Path | None) -> Access:
    """Return access to the cluster of the kubeconfig file, else of the files of $KUBECONFIG, else of this pod.

    Runs the credential plugin of the kubeconfig once, so that an invalid login ends the command at once. Raises
    ConfigError if there is no file and the process does not run in a pod, CredentialError if the plugin fails.
    """
    from scheduler_feedback.backends.kubernetes.api_server.kubeconfig import (
        from_environment,
        from_kubeconfig,
        in_cluster,
    )

    if kubeconfig is not None:
        access: Access | None = from_kubeconfig(kubeconfig)
    else:
        access = from_environment() or in_cluster()
    if access is None:
        raise ConfigError("not running in a pod: set $KUBECONFIG, or pass a kubeconfig with --kubeconfig")
    if access.plugin is not None:
        access.plugin.obtain()
    return access


kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Access to the cluster. Default: the files of $KUBECONFIG, else the service account of this pod.",
)


@kubernetes.command()
@needs("controller", "kubernetes")
@state_option
@config_option
@kubeconfig_option
@click.option("--advise", is_flag=True, help="Bind and evict nothing; only publish verdicts for other schedulers.")
@click.option(
    "--evict", is_flag=True, help="Use NoExecute for the quarantine taint, which evicts pods. Default: NoSchedule."
)
@click.option("--device-taints", is_flag=True, help="With --advise: also write DeviceTaintRules for single GPUs.")
@click.option("--scheduler-name", default="gangwatch", show_default=True, help="schedulerName of the pods to schedule.")
@click.option("--upstream-groups", is_flag=True, help="Also schedule PodGroups of scheduling.k8s.io/v1beta1.")
@click.option(
    "--probe-image", metavar="IMAGE", help="Image that runs policy.probe_command on a node before its quarantine ends."
)
@click.option(
    "--namespace", metavar="NAME", help="Namespace of the lease and probes. Default: the kubeconfig's or this pod's."
)
@click.option("--lease", default="gangwatch", show_default=True, help="Lease for leader election.")
@click.option("--spine-label", default="topology.gangwatch.io/spine", show_default=True, metavar="KEY")
@click.option("--rack-label", default="topology.gangwatch.io/rack", show_default=True, metavar="KEY")
@click.option("--rail-label", default="topology.gangwatch.io/rail", show_default=True, metavar="KEY")
@click.option("--island-label", default="nvidia.com/gpu.clique", show_default=True, metavar="KEY")
@click.option("--port", type=click.IntRange(0, 65535), help="API port on loopback. Default: controller.port.")
@click.option("--listen", metavar="HOST:PORT", help="Address instead of --port; off loopback it needs --web-config.")
@click.option("--web-config", metavar="FILE", help="TLS and users, in the exporter-toolkit's format.")
@click.option("--agents-service", metavar="HOST", help="Headless service of the agents. Default: read no agents.")
@click.option(
    "--agents-port", type=click.IntRange(1, 65535), default=9400, show_default=True, help="Port of the agents."
)
@click.option("--agents-plain", is_flag=True, help="The agents use HTTP without TLS.")
@click.option("--agents-account", metavar="NAME", help="The agents' service account; approve its certificate requests.")
@click.option("--signer", default="gangwatch.io/agent", show_default=True, help="Signer of the agents' certificates.")
@click.option("--signing-folder", metavar="DIR", help="Folder with ca.crt and ca.key; also sign the certificates.")
@click.option(
    "--signing-days", type=click.IntRange(1, 825), default=90, show_default=True, help="Validity of the certificates."
)
@click.option("--revoked-file", metavar="FILE", help="List of revoked certificates; their nodes get no new ones.")
def controller(
    state: StateFolder,
    config_file: Path | None,
    kubeconfig: Path | None,
    advise: bool,
    evict: bool,
    device_taints: bool,
    scheduler_name: str,
    upstream_groups: bool,
    probe_image: str | None,
    namespace: str | None,
    lease: str,
    spine_label: str,
    rack_label: str,
    rail_label: str,
    island_label: str,
    port: int | None,
    listen: str | None,
    web_config: str | None,
    agents_service: str | None,
    agents_port: int,
    agents_plain: bool,
    agents_account: str | None,
    signer: str,
    signing_folder: str | None,
    signing_days: int,
    revoked_file: str | None,
) -> None:
    """Run the cluster's controller in the foreground, until SIGTERM.

    Several may run: one leads, and a standby takes over within 15 seconds of its end. A leader that loses the lease
    becomes a standby. All required state is in API objects, so the state folder may be empty.
    """
    from gangwatch.commands.kubernetes_controller import Signing, run
    from gangwatch.configuration.config_file import load
    from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes
    from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
    from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels
    from scheduler_feedback.backends.kubernetes.published.state_config_map import memory_name

    access = access_of(kubeconfig)
    namespace = namespace or access.namespace
    settings = KubernetesSettings(
        access,
        scheduler_name,
        TopologyLabels(spine_label, rack_label, rail_label, island_label),
        memory=(namespace, memory_name(lease)),
        agents=f"{'http' if agents_plain else 'https'}://{{}}.{agents_service}:{agents_port}" if agents_service else "",
        evicts=evict,
        probes=Probes(probe_image or "", namespace, scheduler_name),
        upstream_groups=upstream_groups,
        device_taints=device_taints,
    )
    signing = None
    if agents_account is not None:
        hosts = (agents_service,) if agents_service else ()
        signing = Signing(agents_account, hosts, signer, signing_folder, signing_days, revoked_file)
    given = {"controller.port": port, "controller.listen": listen, "controller.web_config": web_config}
    config = load(config_file, given)
    if config.policy.uplink_rails > 1:
        raise ConfigError(
            "policy.uplink_rails: on Kubernetes the device plugin chooses the GPUs of a pod, so the rails of a gang "
            "are unknown; leave it out"
        )
    run(state, config, settings, (namespace, lease), advise=advise, signing=signing)


@kubernetes.command()
@needs("kubernetes")
@kubeconfig_option
@click.option("--namespace", metavar="NAME", help="Namespace of the lease. Default: the kubeconfig's or this pod's.")
@click.option("--lease", default="gangwatch", show_default=True, help="Name of the lease.")
def uninstall(kubeconfig: Path | None, namespace: str | None, lease: str) -> None:
    """Remove every label, annotation, taint, condition and lease that a controller wrote, and resume suspended Jobs.

    Stop the controllers first: a running controller would write them again.
    """
    import asyncio

    from scheduler_feedback.backends.kubernetes.api_server.client import Client
    from scheduler_feedback.backends.kubernetes.published.uninstall import remove_all

    access = access_of(kubeconfig)

    async def work() -> dict[str, int]:
        async with Client(access) as client:
            return await remove_all(client, namespace or access.namespace, lease)

    removed = asyncio.run(work())
    click.echo("removed from " + ", ".join(f"{count} {what}" for what, count in removed.items()))


@kubernetes.command(name="renew-certificate")
@needs("kubernetes")
@kubeconfig_option
@click.option("--namespace", metavar="NAME", help="Namespace of the secrets. Default: the kubeconfig's or this pod's.")
@click.option("--authority", default="gangwatch-authority", show_default=True, help="Secret with ca.crt and ca.key.")
@click.option("--secret", default="gangwatch-tls", show_default=True, help="Secret with tls.crt, tls.key and ca.crt.")
@click.option(
    "--days", type=click.IntRange(1, 825), default=90, show_default=True, help="Validity of the new certificate."
)
@click.option(
    "--left",
    type=click.FloatRange(0, 1),
    default=0.34,
    show_default=True,
    help="Renew below this remaining share of its lifetime.",
)
def renew_certificate(
    kubeconfig: Path | None, namespace: str | None, authority: str, secret: str, days: int, left: float
) -> None:
    """Replace the certificate of agents and controller if it expires soon. The chart's CronJob runs this every day."""
    import asyncio

    from gangwatch.commands.authentication.renew_certificate import renew

    access = access_of(kubeconfig)
    done = asyncio.run(renew(access, namespace or access.namespace, authority, secret, days, left))
    click.echo(f"{'renewed' if done.renewed else 'kept'}: valid until {done.until:%Y-%m-%d %H:%M} UTC")


@kubernetes.command(name="certificate")
@needs("kubernetes")
@kubeconfig_option
@click.option("--node", envvar="GANGWATCH_NODE", required=True, metavar="NAME", help="Default: $GANGWATCH_NODE.")
@click.option("--signer", default="gangwatch.io/agent", show_default=True, help="Signer of the certificate.")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="Additional DNS name in the certificate; repeatable."
)
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for tls.crt and tls.key."
)
@click.option(
    "--authority",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Certificate of the signing authority; copied to the folder as ca.crt.",
)
@click.option(
    "--wait", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds to wait for the signature."
)
def certificate(
    kubeconfig: Path | None,
    node: str,
    signer: str,
    hosts: tuple[str, ...],
    folder: Path,
    authority: Path,
    wait: float,
) -> None:
    """Request a certificate with a new key for this node's agent from the API server. The agent runs this command
    (agent.certificate_command). The controller approves the request if the requesting pod runs on that node.

    \b
    Example:
      gangwatch kubernetes certificate --node gpu-7 --folder /run/gangwatch/tls --authority /etc/gangwatch/ca/ca.crt
    """
    import asyncio

    from gangwatch.certificates.request import obtain

    access = access_of(kubeconfig)
    click.echo(asyncio.run(obtain(access, signer, node, hosts, folder, authority, wait)))


@kubernetes.command()
@needs("kubernetes")
@kubeconfig_option
@click.option("--namespace", metavar="NAME", help="Namespace of the release. Default: the kubeconfig's or this pod's.")
@click.option("--release", default="gangwatch", show_default=True, help="The chart's release.")
@click.option("--reason", default="", callback=plain, metavar="TEXT", help="Shown to a refused client.")
@click.argument("nodes", nargs=-1, required=True)
def revoke(kubeconfig: Path | None, namespace: str | None, release: str, reason: str, nodes: tuple[str, ...]) -> None:
    """Revoke all certificates issued so far to the agents of these nodes, and sign no new ones.

    The controller closes their streams within two minutes, the time a kubelet takes to update the mounted list.

    \b
    Example:
      gangwatch kubernetes revoke gpu-7 --reason "root access by an intruder" && kubectl cordon gpu-7
    """
    _change_revocations(kubeconfig, namespace, release, nodes, reason)


@kubernetes.command()
@needs("kubernetes")
@kubeconfig_option
@click.option("--namespace", metavar="NAME", help="Namespace of the release. Default: the kubeconfig's or this pod's.")
@click.option("--release", default="gangwatch", show_default=True, help="The chart's release.")
@click.argument("nodes", nargs=-1, required=True)
def admit(kubeconfig: Path | None, namespace: str | None, release: str, nodes: tuple[str, ...]) -> None:
    """Allow new certificates for the agents of these nodes. Revoked certificates stay revoked. Delete the agents' pods
    afterwards: a new pod requests a certificate at once.

    \b
    Example:
      gangwatch kubernetes admit gpu-7
    """
    _change_revocations(kubeconfig, namespace, release, nodes, None)


def _change_revocations(
    kubeconfig: Path | None, namespace: str | None, release: str, nodes: tuple[str, ...], reason: str | None
) -> None:
    """Revoke the certificates of the nodes' agents.

    If `reason` is None, allow new certificates for the nodes instead.
    """
    import asyncio

    from gangwatch.certificates.cluster_revocations import change

    access = access_of(kubeconfig)
    for words in asyncio.run(change(access, namespace or access.namespace, release, nodes, reason)):
        click.echo(words)
