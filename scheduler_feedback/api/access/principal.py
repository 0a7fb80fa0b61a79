"""Principals: who makes a request, how that was proven, and what the role allows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from agent.schema.errors import GangwatchError


class Role(IntEnum):
    """Each role may do what the one before it may.

    ::

        NOBODY     read what everyone may see: jobs, states, verdicts, without command lines, folders and logs
        VIEWER     the same where the server answers nobody without a login; and all of the own jobs
        SUBMITTER  submit jobs, and act on the own ones
        OPERATOR   read everything but environments; act on all jobs, nodes and verdicts; submit for others
    """

    NOBODY = 0
    VIEWER = 1
    SUBMITTER = 2
    OPERATOR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


ROLES = {role.word: role for role in Role if role is not Role.NOBODY}
"""Roles by the word that configuration and token files have for them."""


class AccessError(GangwatchError):
    """Somebody is not let in, or not allowed to. status: of HTTP (401, 403, 429, 503)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request."""

    user: str = ""
    """As jobs have it; '' for the state folder's token and for nobody."""
    role: Role = Role.NOBODY
    means: str = "not logged in"
    """How it was proven: 'token ci', 'OpenID Connect', 'Kubernetes', 'local socket, uid 1000'."""
    peer: str = ""
    """Address, as the server saw it."""
    by_cookie: bool = False
    """Whether a browser's cookie proved it, which it sends on its own: changes then need proof of intent."""

    @property
    def logged_in(self) -> bool:
        return self.role is not Role.NOBODY

    @property
    def name(self) -> str:
        """For people: 'ana (submitter)', 'operator', 'nobody'."""
        return f"{self.user} ({self.role.word})" if self.user else self.role.word

    def owns(self, user: str) -> bool:
        """Whether a job of this user is the principal's own. A job without a user is nobody's."""
        return bool(user) and self.logged_in and self.user == user

    def sees(self, user: str) -> bool:
        """Whether the owner's fields of a job of this user may be shown."""
        return self.role >= Role.OPERATOR or self.owns(user)

    def require(self, role: Role, what: str) -> None:
        """Raises AccessError: 401 where nobody is logged in, 403 naming the role that is missing."""
        if not self.logged_in:
            raise AccessError(401, f"{what} takes the role {role.word}: {LOG_IN}")
        if self.role < role:
            raise AccessError(403, f"{what} takes the role {role.word}; you are {self.name}")

    def require_own(self, user: str, what: str) -> None:
        """For a submitter's own job, or any with the role operator. Raises AccessError."""
        self.require(Role.SUBMITTER, what)
        if not self.sees(user):
            whose = f"is a job of {user}" if user else "has no user"
            raise AccessError(403, f"{what} takes the role operator: it {whose}; you are {self.name}")

    def signature(self, claimed: str) -> str:
        """Who is named in the journal and the story. claimed: what the request says, which only the state folder's
        token, that no one person has, may say for itself."""
        return self.user or (claimed if self.role >= Role.OPERATOR else "")


LOG_IN = (
    "send 'Authorization: Bearer TOKEN' (the token of the state folder, or one of `gangwatch token create`), "
    "or log in at /login"
)
"""What to do about a 401."""
