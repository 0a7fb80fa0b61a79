"""Disclosure: the table of which field may appear in which output, and for which reader. Every output uses it.

Outputs:

- documents: the API's JSON, the page, `gangwatch jobs` and `top`. They differ by reader, so a field has an audience.
- text: stories, explanations, daemons' logs, metric labels, alerts, traces. All readers get the same text.
- journal: the export of the journal (`GET /api/journal`), which requires the operator's role.
- bundle: the support bundle, which leaves the organisation.

A text field without a row is withheld from all outputs. tests/security/test_secrets.py checks every field of the
schema. It fails if a field has no row or appears in an output that its row does not allow.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from scheduler_feedback.core.actions import Action, StartGang
from scheduler_feedback.core.events import Event, Hosted, Submitted
from scheduler_feedback.core.job import JobSpec


class Audience(StrEnum):
    """Readers who see a field in the API's JSON documents."""

    ANYONE = "anyone"  # every reader that may use the server
    OWNER = "owner"  # the job's user, and operators
    NOBODY = "nobody"  # stored because a restart needs it


class Share(StrEnum):
    """Part of a field that goes into the support bundle."""

    WHOLE = "whole"
    KEYS = "keys"  # the keys of a mapping, without their values
    NOTHING = "nothing"  # only whether it was set, and the length of a list


@dataclass(frozen=True, slots=True)
class Rule:
    """Outputs in which one field may appear."""

    documents: Audience
    text: bool
    journal: bool
    bundle: Share


NAME = Rule(Audience.ANYONE, text=True, journal=True, bundle=Share.WHOLE)
"""Rule for names (of jobs, users, queues, nodes, devices, types), ids, and notes that people write for others."""

ARGUMENTS = Rule(Audience.OWNER, text=False, journal=True, bundle=Share.NOTHING)
"""Rule for argument lists of jobs. Command lines often contain passwords or keys, which must not reach any other
output."""

FOLDER = Rule(Audience.OWNER, text=False, journal=True, bundle=Share.NOTHING)
"""Rule for paths in a user's file system."""

VARIABLES = Rule(Audience.NOBODY, text=False, journal=False, bundle=Share.KEYS)
"""Rule for environment variables of jobs. They often contain keys for other services."""

SETTINGS = Rule(Audience.ANYONE, text=True, journal=True, bundle=Share.NOTHING)
"""Rule for argument lists that the operator wrote in the configuration."""

RULES: dict[str, Rule] = {
    # submitted specifications
    "JobSpec.name": NAME,
    "JobSpec.command": ARGUMENTS,
    "JobSpec.user": NAME,
    "JobSpec.queue": NAME,
    "JobSpec.checkpoint_signal": NAME,
    "JobSpec.working_directory": FOLDER,
    "JobSpec.environment": VARIABLES,
    "JobSpec.pinned_node": NAME,
    "JobSpec.gpu_types": NAME,
    "JobSpec.throughput": NAME,
    "JobSpec.workload": NAME,
    "JobSpec.dataset": NAME,
    "JobSpec.mig_profile": NAME,
    "MigProfile.name": NAME,
    "JobSpec.constraint": NAME,
    "JobSpec.requests": NAME,
    "JobSpec.checkpoint_command": ARGUMENTS,
    "Group.role": NAME,
    "Group.command": ARGUMENTS,
    "Dependency.job_id": NAME,
    "Submitted.job_id": NAME,
    "Submitted.array_of": NAME,
    "Submitted.by": NAME,
    # user requests: who and why; the story keeps both
    "CancelRequested.job_id": NAME,
    "CancelRequested.by": NAME,
    "NodeCommanded.node": NAME,
    "NodeCommanded.by": NAME,
    "NodeCommanded.reason": NAME,
    "VerdictJudged.verdict_id": NAME,
    "VerdictJudged.by": NAME,
    "FreezeSet.by": NAME,
    "PolicySet.by": NAME,
    # settings
    "Policy.probe_command": SETTINGS,
    "Policy.throughput": NAME,
    "Policy.pair_speeds": NAME,
    "Queue.name": NAME,
    "Queue.parent": NAME,
    # observations of the backend and the agents; their reasons name a field and never quote a user's value
    "NodeSeen.node": NAME,
    "NodeSeen.devices": NAME,
    "NodeSeen.machine": NAME,
    "NodeSeen.gpu_type": NAME,
    "NodeSeen.spine": NAME,
    "NodeSeen.rack": NAME,
    "NodeSeen.rail": NAME,
    "NodeSeen.island": NAME,
    "NodeSeen.refuses": NAME,
    "NodeSeen.queues": NAME,
    "NodeSeen.free": NAME,
    "Limit.constraint": NAME,
    "AttemptRunning.job_id": NAME,
    "RankSeen.node": NAME,
    "Hosted.job_id": NAME,
    "Slot.node": NAME,
    "HostedWait.queue": NAME,
    "AttemptEnded.job_id": NAME,
    "AttemptEnded.reason": NAME,
    "AttemptEnded.why": NAME,
    "Checkpointed.reason": NAME,
    "RankFailed.job_id": NAME,
    "AttemptUnknown.job_id": NAME,
    "FirstStep.job_id": NAME,
    "Progressed.job_id": NAME,
    "LatencyMeasured.job_id": NAME,
    "SharedSpeed.job_id": NAME,
    "SharedSpeed.partners": NAME,
    "SpeedMeasured.job_id": NAME,
    "MemoryMeasured.job_id": NAME,
    "SpeedMeasured.unit": NAME,
    "PowerSeen.node": NAME,
    "ActionFailed.action_id": NAME,
    "ActionFailed.job_id": NAME,
    "ActionFailed.reason": NAME,
    # detector results
    "Verdict.verdict_id": NAME,
    "Verdict.gang": NAME,
    "Verdict.node": NAME,
    "Verdict.frames": NAME,
    "Verdict.detector": NAME,
    "Verdict.device": NAME,
    "Verdict.level": NAME,
    "Verdict.suspects": NAME,
    "Verdict.aggressor": NAME,
    "Verdict.resource": NAME,
    "Evidence.measure": NAME,
    "Evidence.unit": NAME,
    "Evidence.against": NAME,
    "Cleared.verdict_id": NAME,
    "Cleared.gang": NAME,
    "Cleared.reason": NAME,
    "Cleared.explained_by": NAME,
    "Abstention.gang": NAME,
    "Abstention.reason": NAME,
    "Abstention.detector": NAME,
    # decisions of the cycle
    "StartGang.action_id": NAME,
    "StartGang.job_id": NAME,
    "StartGang.reason": NAME,
    "StopGang.action_id": NAME,
    "StopGang.job_id": NAME,
    "StopGang.signal": NAME,
    "StopGang.reason": NAME,
    "StopGang.checkpoint_command": ARGUMENTS,
    "Entry.subject": NAME,
    "Entry.kind": NAME,
    "Entry.text": NAME,
    "Entry.detail": NAME,
}

WITHHELD = Rule(Audience.NOBODY, text=False, journal=False, bundle=Share.NOTHING)
"""Rule of a field that the table of rules does not list: no output contains the field."""

REMOVED = "[removed]"


def rule_of(owner: type, field: str) -> Rule:
    """Return the rule of this field of the class `owner`.

    A field without a row in the table is withheld from all outputs.
    """
    return RULES.get(f"{owner.__name__}.{field}", WITHHELD)


# --- documents --------------------------------------------------------------------------------------------------------

OWNERS_FIELDS = tuple(
    field for field in JobSpec.__struct_fields__ if RULES.get(f"JobSpec.{field}", NAME).documents is Audience.OWNER
)
"""Fields of a job that only its user and operators see."""


def hide(document: dict[str, Any]) -> dict[str, Any]:
    """Return the job's document for a reader that is neither the job's user nor an operator.

    A withheld field keeps its type and is empty. The field `hidden` lists the names of withheld fields.
    """
    hidden = [field for field in OWNERS_FIELDS if document.get(field)]
    empty = {field: type(document[field])() for field in hidden}
    return {**document, **empty, "hidden": hidden}


# --- journal ----------------------------------------------------------------------------------------------------------


def _emptied_for_journal() -> dict[str, Any]:
    empty = JobSpec("", (), 0)
    return {
        field: getattr(empty, field)
        for field in JobSpec.__struct_fields__
        if not RULES.get(f"JobSpec.{field}", NAME).journal
    }


_EMPTIED = _emptied_for_journal()


def for_journal(record: Event | Action) -> Event | Action:
    """Return the record for the journal's export. Fields of the specification that the export must not contain are
    empty."""
    if isinstance(record, Submitted | Hosted | StartGang):
        return replace(record, spec=replace(record.spec, **_EMPTIED))
    return record


# --- bundle -----------------------------------------------------------------------------------------------------------


def for_bundle(value: object) -> Any:
    """Return an event, an action or a part of one as plain values, without data that must not leave the
    organisation."""
    if isinstance(value, msgspec.Struct):
        named = [(field, getattr(value, field)) for field in value.__struct_fields__]
    elif is_dataclass(value):
        named = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, dict):
        return {str(key): for_bundle(one) for key, one in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        return [for_bundle(one) for one in value]
    elif isinstance(value, Enum):
        return value.value
    else:
        return value
    return {field: shared(one, rule_of(type(value), field)) for field, one in named}


def shared(value: object, rule: Rule) -> Any:
    """Return the part of a field's value that the rule allows.

    Numbers, booleans and enum members are always returned, because they contain no secrets.
    """
    if rule.bundle is Share.WHOLE or not _holds_text(value):
        return for_bundle(value)
    if isinstance(value, dict) and rule.bundle is Share.KEYS:
        return dict.fromkeys(map(str, value), REMOVED)
    if isinstance(value, list | tuple):
        return f"{REMOVED} {len(value)} argument{'' if len(value) == 1 else 's'}" if value else []
    return REMOVED if value else value


def _holds_text(value: object) -> bool:
    """Return whether the field contains text. Inner structures do not count, because they have their own rules."""
    if isinstance(value, Enum):
        return False
    if isinstance(value, str):
        return True
    if isinstance(value, dict):
        return any(_holds_text(one) for one in (*value, *value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds_text(one) for one in value)
    return (
        not isinstance(value, int | float | None) and not isinstance(value, msgspec.Struct) and not is_dataclass(value)
    )
