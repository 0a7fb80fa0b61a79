"""Certificates without Kubernetes: an authority in a folder that issues, renews and revokes one certificate a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import Command, json_option, plain, print_json, say

if TYPE_CHECKING:
    from gangwatch.certificates.folder import AuthorityFolder, Entry


def _folder_option(command: Command) -> Command:
    return click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path, resolve_path=True),
        default=Path("/etc/gangwatch/certificates"),
        show_default=True,
        metavar="DIR",
        help="Of the authority.",
    )(command)


def _who_options(command: Command) -> Command:
    for option in (
        click.option(
            "--client", "clients", multiple=True, metavar="NAME", help="Who reads metrics, such as prometheus."
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
    """One certificate a node: make an authority, issue, renew and revoke. On Kubernetes the chart does this.

    The controller takes frames from an agent only if its certificate is made out to the node; an agent gives frames to
    the controller's certificate alone. docs/how-to/certificates.md has all of it.

    \b
    Examples:
      gangwatch certificates authority
      gangwatch certificates issue --controller 'gpu[001-512]'
      gangwatch certificates renew
      gangwatch certificates revoke gpu007 --reason "its disk was stolen"
    """


@certificates.command()
@_folder_option
@_days_option(3650, "How long it lasts.")
def authority(folder: Path, days: float) -> None:
    """Make the authority that signs all certificates. Its key stays in the folder.

    \b
    Example:
      gangwatch certificates authority --folder /etc/gangwatch/certificates
    """
    made = _of(folder).make(int(days))
    click.echo(
        f"{folder}/authority.crt: valid until {made.not_after:%Y-%m-%d}. Back up authority.key; keep it off nodes."
    )


@certificates.command()
@_folder_option
@_who_options
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A DNS name or address to be in it, too.")
@_days_option(90, "How long it lasts.")
def issue(
    folder: Path,
    nodes: tuple[str, ...],
    controller: bool,
    clients: tuple[str, ...],
    hosts: tuple[str, ...],
    days: float,
) -> None:
    """Issue certificates, with new keys. NODES: names or host lists, such as 'gpu[001-512]'.

    A node's folder, nodes/NODE, is what is to be copied there. --host adds what scrapers reach it by.

    \b
    Examples:
      gangwatch certificates issue --controller --host controller.example.org
      gangwatch certificates issue --client prometheus
      gangwatch certificates issue 'gpu[001-512]'
    """
    kept = _of(folder)
    for kind, name in _chosen(nodes, controller, clients):
        # Whoever scrapes the agent reaches it by its node's name, as a rule.
        also = hosts or ((name,) if kind == "node" else ())
        _tell(kept.issue(kind, name, also, days))


@certificates.command()
@_folder_option
@_days_option(90, "How long it lasts.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A DNS name or address to be in it, too.")
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
    _tell(_of(folder).issue("node", node, hosts or (node,), days, request.read_bytes()))


@certificates.command()
@_folder_option
@_days_option(None, "How long the new ones last. Default: as long as the old ones.")
@click.option("--left", type=click.FloatRange(0, 1), default=1 / 3, help="Share of its life left. Default: a third.")
@click.option("--all", "everything", is_flag=True, help="Whatever is left of them.")
def renew(folder: Path, left: float, days: float | None, everything: bool) -> None:
    """Renew the certificates of which less than a third is left. For a timer: it does nothing while none is due.

    Copy the folders to their nodes again; daemons take new files over by themselves, within seconds.

    \b
    Example:
      gangwatch certificates renew
    """
    renewed, failed = _of(folder).renew(left, days, everything)
    for entry in renewed:
        _tell(entry)
    if not renewed and not failed:
        say("none is due")
    if failed:
        raise GangwatchError("; ".join(failed))


@certificates.command()
@_folder_option
@_who_options
@click.option("--reason", default="", callback=plain, metavar="TEXT", help="For whoever is refused because of it.")
def revoke(folder: Path, nodes: tuple[str, ...], controller: bool, clients: tuple[str, ...], reason: str) -> None:
    """Revoke all certificates that a node, the controller or a client has until now, and issue no new one.

    Copy revoked.json to the controller (feed.revoked_file) and, where the controller's was revoked, to the agents
    (agent.revoked_file). Open streams end as soon as the file is read: within ten seconds.

    \b
    Example:
      gangwatch certificates revoke gpu007 --reason "its disk was stolen"
    """
    kept = _of(folder)
    for kind, name in _chosen(nodes, controller, clients):
        kept.revoke(kind, name, reason)
        click.echo(f"{_words(kind, name)}: revoked. Copy {folder}/revoked.json to the controller")


@certificates.command()
@_folder_option
@_who_options
def admit(folder: Path, nodes: tuple[str, ...], controller: bool, clients: tuple[str, ...]) -> None:
    """Let what was revoked have new certificates. The old ones stay revoked.

    \b
    Example:
      gangwatch certificates admit gpu007 && gangwatch certificates issue gpu007
    """
    kept = _of(folder)
    for kind, name in _chosen(nodes, controller, clients):
        kept.admit(kind, name)
        click.echo(f"{_words(kind, name)}: may have a new certificate")


@certificates.command(name="list")
@_folder_option
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List all certificates, when they end, and which are revoked. Exit code 1 where one has ended.

    \b
    Example:
      gangwatch certificates list
    """
    now = datetime.now(UTC)
    entries = _of(folder).entries()
    if as_json:
        print_json({"certificates": [entry.document(now) for entry in entries]})
    else:
        width = max(len(_words(entry.kind, entry.name)) for entry in entries)
        for entry in entries:
            days = entry.left_seconds(now) / 86400
            state = f"revoked: {entry.revoked}" if entry.revoked else "ended" if days < 0 else f"{days:.0f} days left"
            click.echo(f"{_words(entry.kind, entry.name):{width}}  {entry.issued.not_after:%Y-%m-%d}  {state}")
    if any(entry.left_seconds(now) < 0 and not entry.revoked for entry in entries):
        raise SystemExit(1)


def _of(folder: Path) -> AuthorityFolder:
    from gangwatch.certificates.folder import AuthorityFolder

    return AuthorityFolder(folder)


def _chosen(nodes: Iterable[str], controller: bool, clients: Iterable[str]) -> list[tuple[str, str]]:
    """(kind, name) of all that is named. Raises UsageError where nothing is."""
    from scheduler_feedback.backends.slurm.parsing.hostlist import expand

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


def _tell(entry: Entry) -> None:
    click.echo(f"{_words(entry.kind, entry.name)}: {entry.path.parent}, until {entry.issued.not_after:%Y-%m-%d}")
