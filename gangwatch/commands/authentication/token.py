"""Commands for access tokens: token create, list, revoke, rotate; whoami."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import client_of, duration, json_option, plain, print_json, say, state_option
from gangwatch.state_folder import StateFolder, write_atomically
from scheduler_feedback.api.access.tokens import TokenEntry, hash_of, make_token, read_entries, write_entries

ROLE_WORDS = ("viewer", "submitter", "operator")


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _file_option(command: _Command) -> _Command:
    """Add the option --file FILE to a command. The command receives a path, or None if it is not given."""
    return click.option(
        "--file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Token file, for access.token_files or a Secret. Default: tokens.toml in the state folder.",
    )(command)


@click.group()
def token() -> None:
    """Create, list and revoke tokens. Each token has a name, a user and a role. Changes apply at once.

    \b
    viewer      reads; sees command lines and logs of the user's own jobs
    submitter   also submits jobs and cancels the user's own jobs
    operator    reads all but environments; acts on all jobs, nodes and verdicts; submits for other users

    The file `token` in the state folder holds an operator token. Hashes are stored in tokens.toml in the same folder.

    \b
    Example:
      gangwatch token create ana-laptop --user ana --role submitter --expires 90d
      gangwatch token list
    """


@token.command()
@state_option
@_file_option
@click.argument("name", callback=plain)
@click.option("--role", type=click.Choice(ROLE_WORDS), required=True, help="Permissions of the token.")
@click.option("--user", default="", callback=plain, help="User of the token, who owns its jobs. Default: NAME.")
@click.option(
    "--expires", callback=duration, metavar="DURATION", help="Lifetime from now: 12h, 90d. Default: unlimited."
)
@json_option
def create(
    state: StateFolder, file: Path | None, name: str, role: str, user: str, expires: float | None, as_json: bool
) -> None:
    """Create a token called NAME and print it. It is printed only once: only its hash is stored.

    Give it to its user in a file with mode 0600, for `client.token_file` or for the login of the page.

    \b
    Example:
      gangwatch token create ana-laptop --user ana --role submitter --expires 90d
    """
    made, now = make_token(), datetime.now(UTC).replace(microsecond=0)
    until = now + timedelta(seconds=expires) if expires is not None else None
    entry = TokenEntry(name, role, hash_of(made), user, now, until)
    with _held(state, file) as path:
        entries = _read(path)
        if any(one.name == name for one in entries):
            raise GangwatchError(f"token {name} already exists: `gangwatch token revoke {name}`, or use another name")
        _write(path, (*entries, entry))
    if as_json:
        print_json({**_document(entry), "token": made})
    else:
        click.echo(made)
        say(f"{name}: {role}, jobs of {entry.owner}; the token is shown only once")


@token.command(name="list")
@state_option
@_file_option
@json_option
def list_(state: StateFolder, file: Path | None, as_json: bool) -> None:
    """List tokens by name. The tokens themselves are not stored.

    \b
    Example:
      gangwatch token list --json
    """
    listed = [_document(entry) for entry in _read(file or state.tokens_file)]
    if as_json:
        print_json(listed)
        return
    from gangwatch.display import rendering  # with rich, which `--help` and shell completion must not load

    rendering.tokens(listed)


@token.command()
@state_option
@_file_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def revoke(state: StateFolder, file: Path | None, names: tuple[str, ...]) -> None:
    """Revoke tokens. The controller refuses them from the next request on and ends their logins.

    \b
    Example:
      gangwatch token revoke ana-laptop
    """
    with _held(state, file) as path:
        entries = _read(path)
        if unknown := sorted(set(names) - {entry.name for entry in entries}):
            raise GangwatchError(f"token {unknown[0]} does not exist: see `gangwatch token list`")
        _write(path, [entry for entry in entries if entry.name not in names])
    for name in names:
        say(f"{name}: revoked")


@token.command()
@state_option
def rotate(state: StateFolder) -> None:
    """Replace the state folder's own token. The controller refuses the old one from the next request on.

    \b
    Example:
      gangwatch token rotate
    """
    state.token()  # raises if there is no token to replace
    write_atomically(state.token_file, secrets.token_urlsafe(32).encode())
    say(f"{state.token_file}: replaced")


@click.command()
@state_option
@json_option
def whoami(state: StateFolder, as_json: bool) -> None:
    """Show your user and role at the controller, and how it authenticated you.

    \b
    Example:
      gangwatch whoami --json
    """
    found = client_of(state).get("/api/whoami")
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found['user'] or 'no user'}, {found['role']}: {found['means']}, from {found['peer'] or 'here'}")


@contextmanager
def _held(state: StateFolder, file: Path | None) -> Iterator[Path]:
    """Yield the path of the token file, locked against other `gangwatch token` commands."""
    if file is not None:
        yield file
        return
    state.prepare()
    with state.hold("tokens.lock", "another `gangwatch token`"):
        yield state.tokens_file


def _read(path: Path) -> tuple[TokenEntry, ...]:
    return read_entries(path) if path.exists() else ()


def _write(path: Path, entries: Sequence[TokenEntry]) -> None:
    try:
        write_atomically(path, write_entries(entries))
    except OSError as error:
        raise GangwatchError(f"{path}: {error.strerror}") from None


def _document(entry: TokenEntry) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(entry)
    document.pop("sha256")
    return {"user": entry.owner, **document}
