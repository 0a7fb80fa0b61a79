"""Commands for the cluster: nodes, queue, node, freeze, thaw."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import click

from gangwatch.client import Client, RefusedError
from gangwatch.commands.options import (
    client_of,
    duration,
    json_option,
    plain,
    print_json,
    say,
    state_option,
    user_name,
)
from gangwatch.state_folder import NotRunningError, StateFolder

POLL_SECONDS = 0.5
"""Between two looks at a node that is being drained."""


@click.command()
@state_option
@json_option
def nodes(state: StateFolder, as_json: bool) -> None:
    """List nodes: slots, who is on them, state and why.

    \b
    Example:
      gangwatch nodes --json
    """
    listed = client_of(state).get_all("/api/nodes")
    if as_json:
        print_json(listed)
        return
    from gangwatch.display import rendering

    rendering.nodes(listed)


@click.command()
@state_option
@json_option
def queue(state: StateFolder, as_json: bool) -> None:
    """List the jobs that wait, first the first, with the reason and the expected start of each; and draw the cluster.

    The drawing has a line a node and a sign a slot: who holds it, what is kept for the first in the queue ('+'), and
    who went ahead of it meanwhile.

    \b
    Example:
      gangwatch queue --json
    """
    client = client_of(state)
    waiting = client.get_all("/api/queue", "waiting")
    if as_json:
        print_json(waiting)
        return
    from gangwatch.display import rendering

    rendering.queue(waiting, client.get_all("/api/nodes"), client.get_all("/api/jobs?active=1"))


@click.command()
@state_option
@click.argument("action", type=click.Choice(["release", "quarantine", "maintenance", "remove"]))
@click.argument("node")
@click.option("--reason", default="", callback=plain, help="Kept in the node's story.")
@click.option(
    "--drain", is_flag=True, help="With maintenance: move restartable jobs away, and wait until the node is empty."
)
@click.option(
    "--timeout", callback=duration, metavar="DURATION", help="With --drain: the longest wait. Default: no limit."
)
@json_option
def node(
    state: StateFolder, action: str, node: str, reason: str, drain: bool, timeout: float | None, as_json: bool
) -> int:
    """Release NODE, put it in quarantine, take it out for maintenance, or remove it for good.

    Quarantine takes nothing new and ends by a probe; maintenance ends only by `release`. Running jobs are left alone,
    and listed. With --drain, each restartable job is stopped (it saves first) and goes on elsewhere, or waits where
    there is no room; jobs that are not restartable stay until they end. The command then waits until nothing runs on
    the node. Ctrl-C ends the wait alone: the node stays in maintenance and restartable jobs still leave it.

    `remove` forgets a node that is gone. A node that still reports, or that a job holds slots of, is refused.

    Exit codes: 0 done; with --drain, 0 once the node is empty; 1 refused, or the timeout has passed.

    \b
    Example:
      gangwatch node maintenance node-2 --reason "new NIC"
      gangwatch node maintenance node-2 --drain --timeout 30m
      gangwatch node remove node-7 --reason "sold"
    """
    if action != "maintenance" and (drain or timeout is not None):
        raise click.UsageError(f"--drain and --timeout belong to maintenance, not to {action}")
    if timeout is not None and not drain:
        raise click.UsageError("--timeout needs --drain")
    client = client_of(state)
    path = f"/api/nodes/{quote(node, safe='')}/{action}"
    body = {"by": user_name(), "reason": reason}
    left: dict[str, Any] = client.post(path, body | {"drain": True} if drain else body)
    say({"remove": f"{node}: removed", "release": f"{node}: released"}.get(action, f"{node}: in {action}"))
    empty = True
    if action in ("maintenance", "quarantine"):
        from gangwatch.display import rendering

        for line in rendering.still_there(node, left):
            say(line)
        if drain:
            empty = _wait_until_empty(client, f"/api/nodes/{quote(node, safe='')}/jobs", node, left, timeout)
    if as_json:
        print_json({"node": node, "command": action, "empty": empty, "jobs": left["jobs"]})
    return 0 if empty else 1


def _wait_until_empty(client: Client, path: str, node: str, left: dict[str, Any], timeout: float | None) -> bool:
    """Wait until no job holds slots of the node, and say each change; whether that came before the timeout.

    False too where somebody releases the node meanwhile.
    """
    until_s = None if timeout is None else time.monotonic() + timeout
    held = ""
    said = {job["job"]: (job["moving"], job["state"]) for job in left["jobs"]}
    while left["jobs"]:
        why = _why_nothing_moves(left)
        if why and why != held:
            say(why)
        held = why
        if until_s is not None and time.monotonic() >= until_s:
            say(f"{node}: not empty after {timeout:g} s; it stays in maintenance")
            return False
        time.sleep(POLL_SECONDS)
        left = _read_patiently(client, path, left)
        if not left["draining"]:
            say(f"{node} is no longer being drained: it is {left['state']}")
            return False
        now = {job["job"]: (job["moving"], job["state"]) for job in left["jobs"]}
        for job in said.keys() - now.keys():
            say(f"{job} has left {node}; {len(now)} left")
        for job in left["jobs"]:
            if said.get(job["job"]) != now[job["job"]] and job["moving"]:
                say(f"{job['job']} is being stopped")
        said = now
    say(f"{node} is empty")
    return True


def _why_nothing_moves(left: dict[str, Any]) -> str:
    if left["frozen"] and any(job["movable"] for job in left["jobs"]):
        return "actions are frozen: nothing is moved until `gangwatch thaw`"
    if left["mode"] == "observe" and any(job["movable"] for job in left["jobs"]):
        return "mode observe: nothing is moved; jobs leave the node as they end"
    return ""


def _read_patiently(client: Client, path: str, before: dict[str, Any]) -> dict[str, Any]:
    """What is left on the node; while the controller is being restarted, what was known before."""
    try:
        left: dict[str, Any] = client.get(path)
    except (NotRunningError, RefusedError) as error:
        restarting = isinstance(error, NotRunningError) or error.status == 503
        if not restarting or client.state.supervisor() is None:
            raise
        return before
    return left


@click.command()
@state_option
def freeze(state: StateFolder) -> None:
    """Stop all actions within a second: nothing is started, moved or stopped until `thaw`. Survives restarts.

    Running jobs go on; verdicts are still found and decisions still logged. Only your own `cancel` still acts.

    \b
    Example:
      gangwatch freeze
    """
    answer = client_of(state).post("/api/freeze", {"by": user_name()})
    if warning := answer.get("warning"):
        say(f"warning: {warning}")
    say("frozen: running jobs go on, nothing is started, moved or stopped")


@click.command()
@state_option
def thaw(state: StateFolder) -> None:
    """Allow actions again.

    \b
    Example:
      gangwatch thaw
    """
    client_of(state).post("/api/thaw", {"by": user_name()})
    say("thawed")
