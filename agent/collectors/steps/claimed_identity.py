"""Comparison of the identity that a training process claims with the identity that the agent has found (attested)."""

from __future__ import annotations

import unicodedata

from agent.rank_attribution import Identity
from agent.schema.errors import ReporterError
from agent.schema.frame import Member
from agent.sources.steps.step_messages import Claim

ATTESTED = ("pod-", "slurm-")
"""Prefixes of gang names that the agent derives from control groups only. A process that claims a gang with one of
these prefixes must belong to this gang."""

_NAME_MARKS = " !#$%&()*+,-./:;=?@[]^_{|}~"


def judge(claim: Claim, identity: Identity) -> Member:
    """Return the rank of a training process from two sources: the attested identity, and the identity that it claims.

    identity: gang and possibly rank, as found by the agent from a control group, rank file or Slurm step daemon. Its
    values take precedence over the claimed values. Raise ReporterError if the claimed gang or rank contradicts it, or
    if neither source contains the rank number.
    """
    gang = claim.gang
    if identity.source == "slurm" and gang is not None and gang.isdecimal():
        gang = f"slurm-{gang}"  # SLURM_JOB_ID; the attested name may also contain the step
        agrees = identity.gang == gang or identity.gang.startswith(f"{gang}.")
    elif identity.source == "local" or (gang is not None and gang.startswith(ATTESTED)):
        agrees = gang is None or gang == identity.gang
    else:
        # A process in a pod does not know the pod's uid: ignore its claimed name.
        agrees = True
    if not agrees:
        raise ReporterError(f"claims gang {claim.gang}, but belongs to {identity.gang}", "identity")
    for word, claimed, attested in (
        ("attempt", claim.attempt, identity.attempt),
        ("rank", claim.rank, identity.rank),
    ):
        if claimed is not None and attested is not None and claimed != attested:
            raise ReporterError(f"claims {word} {claimed} of {identity.gang}, but is {word} {attested}", "identity")
    rank = identity.rank if identity.rank is not None else claim.rank
    if rank is None:
        raise ReporterError(f"belongs to {identity.gang}, but its rank is unknown: set RANK", "identity")
    attempt = identity.attempt if identity.attempt is not None else claim.attempt
    return Member(identity.gang, attempt or 0, rank)


def usable_name(name: str, most: int) -> str:
    """Return the gang name that an unattested process claims, if the name is allowed as a label.

    Raise ReporterError if the name is longer than `most` characters, begins or ends with a space, or has a forbidden
    character. Letters and digits of any script and the characters in ``_NAME_MARKS`` are allowed. Zero-width and
    bidirectional control characters are not.
    """
    if len(name) > most:
        raise ReporterError(
            f"the gang name has {len(name)} characters, at most {most} are allowed (step_quotas.name_length): shorten "
            "GANGWATCH_JOB",
            "name",
        )
    if not all(unicodedata.category(one)[0] in "LMN" or one in _NAME_MARKS for one in name) or name != name.strip():
        raise ReporterError(
            f"the gang name {name!a} has characters other than letters, digits and {_NAME_MARKS!r}: change "
            "GANGWATCH_JOB",
            "name",
        )
    return name
