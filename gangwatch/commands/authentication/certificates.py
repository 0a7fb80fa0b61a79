"""Commands for certificates without Kubernetes: an authority in a folder issues one certificate per node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import Command, json_option, plain, print_json, say
from gangwatch.extras import require

if TYPE_CHECKING:
    from gangwatch.certificates.folder import AuthorityFolder, Entry


def _folder_option(command: Command) -> Command:
    return click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path, resolve_path=True),
        default=Path("/etc/gangwatch/certificates"),
        show_default=True,
        metavar="DIR",
        help="Folder of the authority.",
    )(command)


def _who_options(command: Command) -> Command:
    for option in (
        click.option(
            "--client", "clients", multiple=True, metavar="NAME", help="Client that reads metrics, such as prometheus."
        ),
        click.option("--controller", is_flag=True, help="The controller."),
        click.argument("nodes", nargs=-1, metavar="[NODES]..."),
    ):
        command = option(command)
    return command


def _days_option(days: float | None, text: str) -> Callable[[Command], Command]:
    return click.option(
        "--days", type=click.FloatRange(min=0, min_open=True), default=days, show_default=days is not None, help=text
    )


@click.group()
def certificates() -> None:
    """Create an authority; issue, renew and revoke one certificate per node. On Kubernetes the chart does this.

    The controller accepts frames from an agent only if the agent's certificate names its node. An agent sends frames
    only to the controller's certificate. See docs/how-to/certificates.md.

    \b
    Examples:
      gangwatch certificates authority
      gangwatch certificates issue --controller 'gpu[001-512]'
      gangwatch certificates renew
      gangwatch certificates revoke gpu007 --reason "its disk was stolen"
    """


@certificates.command()
@_folder_option
@_days_option(3650, "Validity of the authority.")
def authority(folder: Path, days: float) -> None:
    """Create the authority that signs all certificates. Its key stays in the folder.

    \b
    Example:
      gangwatch certificates authority --folder /etc/gangwatch/certificates
    """
    made = _authority(folder).make(int(days))
    click.echo(
        f"{folder}/authority.crt: valid until {made.not_after:%Y-%m-%d}. Back up authority.key; keep it off the nodes."
    )


@certificates.command()
@_folder_option
@_who_options
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Additional DNS name or address in it.")
@_days_option(90, "Validity of the certificate.")
def issue(
    folder: Path,
    nodes: tuple[str, ...],
    controller: bool,
    clients: tuple[str, ...],
    hosts: tuple[str, ...],
    days: float,
) -> None:
    """Issue certificates, with new keys. NODES: names or host lists, such as 'gpu[001-512]'.

    Copy the folder nodes/NODE to each node. --host adds a name that scrapers use.

    \b
    Examples:
      gangwatch certificates issue --controller --host controller.example.org
      gangwatch certificates issue --client prometheus
      gangwatch certificates issue 'gpu[001-512]'
    """
    kept = _authority(folder)
    for kind, name in _chosen(nodes, controller, clients):
        # Scrapers usually address the agent by its node's name.
        also = hosts or ((name,) if kind == "node" else ())
        _report(kept.issue(kind, name, also, days))


@certificates.command()
@_folder_option
@_days_option(90, "Validity of the certificate.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Additional DNS name or address in it.")
@click.argument("node")
@click.argument("request", type=click.Path(dir_okay=False, path_type=Path, exists=True))
def sign(folder: Path, node: str, request: Path, hosts: tuple[str, ...], days: float) -> None:
    """Sign a node's own request, so that its key never leaves the node.

    \b
    Example:
      openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \\
        -subj /CN=gpu001 -addext subjectAltName=DNS:gpu001 -keyout tls.key -out gpu001.csr
      gangwatch certificates sign gpu001 gpu001.csr
    """
    _report(_authority(folder).issue("node", node, hosts or (node,), days, request.read_bytes()))


@certificates.command()
@_folder_option
@_days_option(None, "Validity of the new certificates. Default: that of the old ones.")
@click.option(
    "--left",
    type=click.FloatRange(0, 1),
    default=1 / 3,
    help="Renew below this remaining share of the lifetime. Default: a third.",
)
@click.option("--all", "everything", is_flag=True, help="Renew all, whatever remains of their lifetime.")
def renew(folder: Path, left: float, days: float | None, everything: bool) -> None:
    """Renew the certificates that have less than a third of their lifetime left. Run it from a timer.

    Copy the folders to their nodes afterwards; daemons load new files within seconds.

    \b
    Example:
      gangwatch certificates renew
    """
    renewed, failed = _authority(folder).renew(left, days, everything)
    for entry in renewed:
        _report(entry)
    if not renewed and not failed:
        say("no certificate is due")
    if failed:
        raise GangwatchError("; ".join(failed))


@certificates.command()
@_folder_option
@_who_options
@click.option("--reason", default="", callback=plain, metavar="TEXT", help="Shown to a refused client.")
def revoke(folder: Path, nodes: tuple[str, ...], controller: bool, clients: tuple[str, ...], reason: str) -> None:
    """Revoke all certificates issued so far to a node, the controller or a client, and issue no new ones.

    Copy revoked.json to the controller (feed.revoked_file). If you revoked the controller's certificate, also copy it
    to the agents (agent.revoked_file). Open streams are closed within ten seconds of the copy.

    \b
    Example:
      gangwatch certificates revoke gpu007 --reason "its disk was stolen"
    """
    kept = _authority(folder)
    for kind, name in _chosen(nodes, controller, clients):
        kept.revoke(kind, name, reason)
        click.echo(f"{_words(kind, name)}: revoked. Copy {folder}/revoked.json to the controller")


@certificates.command()
@_folder_option
@_who_options
def admit(folder: Path, nodes: tuple[str, ...], controller: bool, clients: tuple[str, ...]) -> None:
    """Allow new certificates for a revoked node, controller or client. The old certificates stay revoked.

    \b
    Example:
      gangwatch certificates admit gpu007 && gangwatch certificates issue gpu007
    """
    kept = _authority(folder)
    for kind, name in _chosen(nodes, controller, clients):
        kept.admit(kind, name)
        click.echo(f"{_words(kind, name)}: may have a new certificate")


@certificates.command(name="list")
@_folder_option
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List all certificates with expiry and revocation. The exit code is 1 if one has expired.

    \b
    Example:
      gangwatch certificates list
    """
    now = datetime.now(UTC)
    entries = _authority(folder).entries()
    if as_json:
        print_json({"certificates": [entry.document(now) for entry in entries]})
    else:
        width = max(len(_words(entry.kind, entry.name)) for entry in entries)
        for entry in entries:
            days = entry.left_seconds(now) / 86400
            state = f"revoked: {entry.revoked}" if entry.revoked else "expired" if days < 0 else f"{days:.0f} days left"
            click.echo(f"{_words(entry.kind, entry.name):{width}}  {entry.issued.not_after:%Y-%m-%d}  {state}")
    if any(entry.left_seconds(now) < 0 and not entry.revoked for entry in entries):
        raise SystemExit(1)


def _authority(folder: Path) -> AuthorityFolder:
    require(f"`{click.get_current_context().command_path}`", "controller")
    from gangwatch.certificates.folder import AuthorityFolder  # with cryptography, which `--help` must not load

    return AuthorityFolder(folder)


def _chosen(nodes: Iterable[str], controller: bool, clients: Iterable[str]) -> list[tuple[str, str]]:
    """Return (kind, name) of each selected certificate. Raises UsageError if none is selected."""
    from scheduler_feedback.backends.slurm.parsing.hostlist import expand  # loads the Slurm backend: 0.1 s

    found = [("controller", "")] if controller else []
    found += [("client", name) for name in clients]
    for text in nodes:
        try:
            found += [("node", name) for name in expand(text)]
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if not found:
        raise click.UsageError("name nodes, --controller or --client")
    return found


def _words(kind: str, name: str) -> str:
    return f"{kind} {name}".rstrip()


def _report(entry: Entry) -> None:
    click.echo(f"{_words(entry.kind, entry.name)}: {entry.path.parent}, until {entry.issued.not_after:%Y-%m-%d}")
