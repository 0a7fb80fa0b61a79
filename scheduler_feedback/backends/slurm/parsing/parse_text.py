"""Parser of `scontrol --oneliner show nodes` and `... --details show job`. No I/O.

A record is a line of words KEY=VALUE without quoting. Only operators set values of nodes; a value may have spaces and
even words with '=' in them (a comment, a reason), so keys are recognised by a list.

Users set some values of jobs, such as names, and may put line ends and words like 'Nodes=' into them. So text about a
job may imitate Slurm's own output. Only a job's GPUs are read from it, because no other text listing has them: the
output is about this job alone, and if it lists the GPUs of a node twice, none are used. columns.py reads all other
values.
"""

from __future__ import annotations

import re

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.parsing.gres import gpus_of, indices_of
from scheduler_feedback.backends.slurm.parsing.hostlist import expand
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Nodes, Refused, SlurmNode

Gpus = tuple[tuple[int, ...], ...]
"""Indices of the job's GPUs on each of its nodes, in the order of the nodes."""

_KEY = re.compile(r"(?:^|(?<=[ \t]))([A-Za-z][A-Za-z/_:&.]*)=")
_NONE = frozenset({"", "(null)", "N/A", "None", "n/a", "Unknown"})
_STAMP = re.compile(r"(.*?) ?\[([^@\]]*)@[^\]]*\]\s*\Z", re.DOTALL)
_GROUP = re.compile(r"(?<!\S)Nodes=(\S*) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_FREE = frozenset({"Reason", "Comment", "Extra", "OS"})
"""Keys with values that people write. In such a value, a word with '=' belongs to the value, unless it begins with a
known key."""

_AFTER_FREE = frozenset({"RealMemory", "Comment", "Reason", "Extra"})
"""Keys that may follow the value of a key in _FREE, and so end it."""


# --- which GPUs a job has --------------------------------------------------------------------------------------------


def gpus_of_job(text: str, nodes: tuple[str, ...]) -> Gpus | None:
    """Return the GPUs of a job from `scontrol --details show job N`; None if they are ambiguous.

    Slurm prints the GPUs of each node once. A node that is listed twice makes the GPUs ambiguous: one of the two
    entries may be a user's text in the job's name or comment.
    """
    wanted = set(nodes)
    by_node: dict[str, tuple[int, ...]] = {}
    for group, gres in _GROUP.findall(text):
        try:
            names, indices = expand(group), indices_of(gres)
        except ValueError:
            return None
        for name in wanted.intersection(names):
            if name in by_node:
                return None
            by_node[name] = indices
    return tuple(by_node[name] for name in nodes) if by_node.keys() == wanted else None


# --- nodes -----------------------------------------------------------------------------------------------------------


def nodes(text: str) -> Nodes:
    """Return the nodes by name. Raises BackendError if no line can be read."""
    found: dict[str, SlurmNode] = {}
    refused: list[Refused] = []
    for at, text_line in enumerate(text.split("\n"), 1):
        if not text_line.strip():
            continue
        where = f"scontrol show nodes: line {at}"
        line = _Line(text_line, where)
        try:
            node = _node(line)
        except BackendError as error:
            refused.append(Refused(where, str(error).removeprefix(where), "node", line.word("NodeName") or None))
            continue
        if node.name in found:
            refused.append(Refused(where, f": a second record of node {node.name}", "node", node.name))
            continue
        found[node.name] = node
    if not found:
        why = f"{refused[0].where}{refused[0].why}" if refused else "scontrol show nodes: the output is empty"
        raise BackendError(why)
    return Nodes(found, tuple(refused))


class _Line:
    """Values of one line by key. Errors are BackendErrors that name the line and the key."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self._where = text, where
        self.values: dict[str, str] = {}
        newest, begin = "", 0
        for match in _KEY.finditer(text):
            if newest in _FREE and match[1] not in _AFTER_FREE:
                continue
            if newest:
                self.values.setdefault(newest, text[begin : match.start()].strip())
            newest, begin = match[1], match.end()
        if newest:
            self.values.setdefault(newest, text[begin:].strip())

    def wrong(self, key: str, why: str) -> BackendError:
        return BackendError(f"{self._where}: {key}: {why}")

    def word(self, key: str, needed: bool = False) -> str:
        value = self.values.get(key, "")
        if needed and not value:
            raise self.wrong(key, "the value is missing")
        return "" if value in _NONE else value

    def count(self, key: str, default: int) -> int:
        value = self.word(key)
        if not value:
            return default
        if not (value.isascii() and value.isdecimal() and len(value) < 16):
            raise self.wrong(key, f"{value[:40]!r} is not a count")
        return int(value)


def _node(line: _Line) -> SlurmNode:
    gpus, gpu_type = gpus_of(line.word("Gres"))
    states = line.word("State", needed=True).upper()
    # Until 21.08 a mark means a flag: '*' is a node that does not respond.
    flags = {"NOT_RESPONDING"} if "*" in states else set()
    stamp = _STAMP.match(line.word("Reason"))
    return SlurmNode(
        name=line.word("NodeName", needed=True),
        gpus=gpus,
        gpu_type=gpu_type,
        states=frozenset({*re.split(r"[+]", re.sub(r"[*~#!%$@^-]", "", states)), *flags}),
        reason=stamp[1] if stamp is not None else line.word("Reason"),
        weight=line.count("Weight", 1),
        features=tuple(word for word in line.word("ActiveFeatures").split(",") if word),
        comment=line.word("Comment"),
        partitions=tuple(word for word in line.word("Partitions").split(",") if word),
    )
