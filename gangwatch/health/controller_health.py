"""How the controller of a state folder is: what `gangwatch check` says of it."""

from __future__ import annotations

from agent.schema.errors import GangwatchError
from gangwatch.client import Client
from gangwatch.health.machine import Finding
from gangwatch.state_folder import NotRunningError, StateFolder

NAME = "controller"

TIMEOUT_SECONDS = 5.0


def findings(state: StateFolder) -> tuple[Finding, ...]:
    """Whether the controller runs, and each of its parts that a bug has hit."""
    try:
        parts = Client(state, TIMEOUT_SECONDS).get("/api/parts")
    except NotRunningError as error:
        return (Finding(NAME, "missing", str(error), "`gangwatch up`, where jobs are to run on this machine"),)
    except GangwatchError as error:
        return (Finding(NAME, "limited", str(error), f"see {state.log_file('controller')}"),)
    if not parts:
        return (Finding(NAME, "found", "it runs, and every part of it is in service"),)
    remedy = f"see {state.log_file('controller')}, and report the traceback"
    return tuple(
        Finding(NAME if number == 0 else f"{NAME}: {part['part']}", "limited", part["words"], remedy)
        for number, part in enumerate(parts)
    )
