"""Principals: the user of a request, how the user was authenticated, and the rights of the user's role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from agent.schema.errors import GangwatchError


class Role(IntEnum):
    """Roles. Each role includes the rights of the roles above it in this list.

    ::

        ANONYMOUS  read public fields: jobs, states, verdicts, without command lines, folders and logs
        VIEWER     the same on a server that requires a login, and all fields of the user's own jobs
        SUBMITTER  submit jobs, and control the user's own jobs
        OPERATOR   read everything but environments; control all jobs, nodes and verdicts; submit for others
    """

    ANONYMOUS = 0
    VIEWER = 1
    SUBMITTER = 2
    OPERATOR = 3

    @property
    def word(self) -> str:
        return "nobody" if self is Role.ANONYMOUS else self.name.lower()


ROLES = {role.word: role for role in Role if role is not Role.ANONYMOUS}
"""Roles by their names in configuration and token files."""


class AccessError(GangwatchError):
    """A request is not authenticated or not allowed. status: the HTTP status (401, 403, 429, 503)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated user of a request."""

    user: str = ""
    """The user's name as in jobs; '' for the state folder's token and for a request without a login."""
    role: Role = Role.ANONYMOUS
    means: str = "not logged in"
    """How the user was authenticated, such as 'token ci', 'OpenID Connect' or 'local socket, uid 1000'."""
    peer: str = ""
    """Address of the client, as seen by the server."""
    by_cookie: bool = False
    """Whether a cookie authenticated the user. Browsers send cookies without being asked, so changes also need the
    page's CSRF token."""

    @property
    def logged_in(self) -> bool:
        return self.role is not Role.ANONYMOUS

    @property
    def name(self) -> str:
        """Name of the principal on pages and in messages, such as 'ana (submitter)' or 'operator'."""
        return f"{self.user} ({self.role.word})" if self.user else self.role.word

    def owns(self, user: str) -> bool:
        """Return whether a job of this user is the principal's own. A job without a user has no owner."""
        return bool(user) and self.logged_in and self.user == user

    def sees(self, user: str) -> bool:
        """Return whether the principal may see the private fields of this user's jobs."""
        return self.role >= Role.OPERATOR or self.owns(user)

    def require(self, role: Role, what: str) -> None:
        """Raise AccessError if the role is too low: 401 if the user is not logged in, else 403."""
        if not self.logged_in:
            raise AccessError(401, f"{what} requires the role {role.word}: {LOG_IN}")
        if self.role < role:
            raise AccessError(403, f"{what} requires the role {role.word}; you are {self.name}")

    def require_own(self, user: str, what: str) -> None:
        """Raise AccessError unless this is an operator, or a submitter and the job's own user."""
        self.require(Role.SUBMITTER, what)
        if not self.sees(user):
            whose = f"is a job of {user}" if user else "has no user"
            raise AccessError(403, f"{what} requires the role operator: it {whose}; you are {self.name}")

    def signature(self, claimed: str) -> str:
        """Return the user name that is written to the journal and the story.

        claimed: the name that the request contains. This name is used only with the state folder's token, which several
        users share.
        """
        return self.user or (claimed if self.role >= Role.OPERATOR else "")


LOG_IN = (
    "send 'Authorization: Bearer TOKEN' (the token of the state folder, or one of `gangwatch token create`), "
    "or log in at /login"
)
"""Text of a 401 response that says how to log in."""
