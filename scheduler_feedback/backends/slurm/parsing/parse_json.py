"""Parser of `squeue --json`, `sinfo --json` and `scontrol show nodes --json`, in all their forms. No I/O.

============== ====================== ==================================================================================
Slurm          data parser            what differs
============== ====================== ==================================================================================
21.08, 22.05   openapi v0.0.37/38     plain numbers, null for none; one state and a list of flags; features a string
23.02          data_parser v0.0.39    numbers as {set, infinite, number}; node states a list, flags among them
23.11 and on   data_parser v0.0.40+   job states a list too; nodes by `scontrol show nodes --json` alone
============== ====================== ==================================================================================

An incomplete document is refused, because jobs that are missing would count as ended. A single record is refused, with
the field's name, if a field has none of these types. A second record of a job is refused, too.

Slurm prints names and comments byte for byte, and users may submit bytes that are not UTF-8 (22.05.8 prints them
unchanged, which is not valid JSON). These bytes are replaced before decoding, so that one name does not make the whole
listing unreadable.

Between two listings most records stay equal, byte for byte. Such a record is not read again (``Records``), because a
listing of 10,000 nodes takes 130 ms to decode, and 15 ms to cut into records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.parsing.gres import gpus_of, indices_of, wanted
from scheduler_feedback.backends.slurm.parsing.hostlist import expand
from scheduler_feedback.backends.slurm.parsing.slurm_objects import (
    Jobs,
    Listed,
    Nodes,
    Refused,
    SlurmJob,
    SlurmNode,
    base_state,
)

_Key = TypeVar("_Key", int, str)
_Record = TypeVar("_Record", SlurmJob, SlurmNode)


class Records(Generic[_Record]):
    """The records of the newest listing, by the digest of their JSON. Empty before the first listing."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[bytes, _Record] = {}

    def read(self, entries: list[msgspec.Raw], read: Callable[[msgspec.Raw, int], _Record]) -> list[_Record | str]:
        """Return the record of each entry, or why it cannot be read. read: called with a new entry and its index."""
        newest: dict[bytes, _Record] = {}
        found: list[_Record | str] = []
        for at, entry in enumerate(entries):
            digest = blake2b(entry, digest_size=16).digest()
            record = self._newest.get(digest)
            if record is None:
                try:
                    record = read(entry, at)
                except BackendError as error:
                    found.append(str(error))
                    continue
            newest[digest] = record
            found.append(record)
        self._newest = newest
        return found


def jobs(document: bytes, command: str = "squeue --json", known: Records[SlurmJob] | None = None) -> Jobs:
    """Return the jobs by number. Raises BackendError if the document is incomplete or no record can be read.

    known: the records of the last listing, which are updated.
    """
    return _listing(
        _listed(document, "jobs", command), f"{command}: jobs", "job", _Fields.job, lambda job: job.number, "job_id",
        Records() if known is None else known,
    )  # fmt: skip


def nodes(document: bytes, command: str = "sinfo --json", known: Records[SlurmNode] | None = None) -> Nodes:
    """Return the nodes by name. Raises BackendError if the document is incomplete or no record can be read.

    known: the records of the last listing, which are updated.
    """
    return _listing(
        _listed(document, "nodes", command), f"{command}: nodes", "node", _Fields.node, lambda node: node.name, "name",
        Records() if known is None else known,
    )  # fmt: skip


def _listing(
    entries: list[msgspec.Raw],
    where: str,
    kind: str,
    read: Callable[[_Fields], _Record],
    key_of: Callable[[_Record], _Key],
    key_name: str,
    known: Records[_Record],
) -> Listed[_Key, _Record]:
    """Return all entries that can be read. Each unreadable entry is refused; the others are returned."""
    records: dict[_Key, _Record] = {}
    refused: list[Refused] = []
    found = known.read(entries, lambda entry, at: read(_Fields(_decoded(entry), f"{where}[{at}]")))
    for at, record in enumerate(found):
        place = f"{where}[{at}]"
        if isinstance(record, str):
            entry = _decoded(entries[at])
            key = entry.get(key_name) if isinstance(entry, Mapping) else None
            # bool is a subclass of int, but `true` is not a job number.
            usable = isinstance(key, str if kind == "node" else int) and not isinstance(key, bool)
            refused.append(Refused(place, record.removeprefix(place), kind, key if usable else None))
            continue
        if key_of(record) in records:
            refused.append(Refused(place, f": a second record of {kind} {key_of(record)}", kind, key_of(record)))
            continue
        records[key_of(record)] = record
    if refused and not records:
        raise BackendError(f"{refused[0].where}{refused[0].why}")
    return Listed(records, tuple(refused))


def _listed(document: bytes, name: str, command: str) -> list[msgspec.Raw]:
    """Return the undecoded entries of the document's list with this name."""
    try:
        tree = _parts(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BackendError(f"{command}: {len(document)} bytes that are not a complete JSON document: {error}") from None
    if not isinstance(tree, dict):
        raise BackendError(f"{command}: the document is not an object")
    if errors := _decoded(tree.get("errors", b"null")):
        messages = errors if isinstance(errors, list) else [errors]
        words = "; ".join(str(one.get("error", one) if isinstance(one, dict) else one) for one in messages)
        raise BackendError(f"{command}: Slurm reports: {words[:300]}")
    try:
        return msgspec.json.decode(tree.get(name, b"null"), type=list[msgspec.Raw])
    except msgspec.ValidationError:
        raise BackendError(f"{command}: the document has no list named {name!r}") from None


def _parts(document: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the undecoded values of a JSON object by key; None for a document of another type.

    Checks the syntax of the whole document. Raises msgspec.DecodeError.
    """
    try:
        return msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return None
    except UnicodeDecodeError:  # in a key
        return _parts(document.decode("utf-8", "replace").encode())


def _decoded(part: bytes | msgspec.Raw) -> Any:
    """Decode a part of a document whose syntax is known to be right. Replace bytes that are not UTF-8 in a copy.

    Raises msgspec.DecodeError for a part that is nested too deeply.
    """
    try:
        return msgspec.json.decode(part)
    except UnicodeDecodeError:
        return msgspec.json.decode(bytes(part).decode("utf-8", "replace"))


class _Fields:
    """Reader of the fields of one JSON object. Errors are BackendErrors that name the field."""

    def __init__(self, tree: Any, where: str) -> None:
        if not isinstance(tree, Mapping):
            raise BackendError(f"{where}: {str(tree)[:40]!r} is not an object")
        self._tree, self._where = tree, where

    def job(self) -> SlurmJob:
        states = self.states("job_state")
        nodes = self.hosts("nodes")
        details = self.texts("gres_detail")
        gpus: tuple[tuple[int, ...], ...] = tuple(() for _ in nodes)
        if details:
            if len(details) != len(nodes):
                raise self.wrong("gres_detail", f"{len(details)} entries for {len(nodes)} nodes")
            gpus = tuple(self.indices(detail) for detail in details)
        limit = self.number("time_limit")
        base = base_state(states)
        return SlurmJob(
            number=self.count("job_id"),
            state=base,
            completing="COMPLETING" in states,
            nodes=nodes,
            gpus=gpus,
            restarts=self.count("restart_cnt", 0),
            comment=self.text("comment"),
            batch=self.truth("batch_flag"),
            requeue=self.truth("requeue"),
            user=self.text("user_name"),
            name=self.text("name"),
            partition=self.text("partition"),
            time_limit_seconds=None if limit is None else limit * 60,
            started_seconds=self.number("start_time") or 0.0 if base != "PENDING" else 0.0,
            begins_seconds=self.number("eligible_time") or 0.0,
            excluded=self.hosts("excluded_nodes"),
            least_nodes=int(self.number("node_count") or 1),
            held=self.number("priority") == 0 or bool({"REQUEUE_HOLD", "SPECIAL_EXIT"} & set(states)),
            exit_code=self.exit_code(),
            reason=self.text("state_reason").replace("None", ""),
            gpus_wanted=wanted(
                self.text("tres_per_job"),
                self.text("tres_per_node"),
                self.text("tres_per_socket"),
                self.text("tres_per_task"),
                int(self.number("node_count") or 1),
                int(self.number("tasks") or 1),
            ),
            submitted_seconds=self.number("submit_time") or 0.0,
        )

    def node(self) -> SlurmNode:
        gpus, gpu_type = gpus_of(self.text("gres"))
        return SlurmNode(
            name=self.name(),
            gpus=gpus,
            gpu_type=gpu_type,
            states=frozenset((*self.states("state"), *self.states("state_flags", needed=False))),
            reason=self.text("reason"),
            weight=int(self.number("weight") or 1),
            features=self.words("active_features") or self.words("features"),
            comment=self.text("comment"),
            partitions=self.words("partitions"),
        )

    # --- one field ---------------------------------------------------------------------------------------------------

    def wrong(self, key: str, why: str) -> BackendError:
        return BackendError(f"{self._where}.{key}: {why}")

    def name(self) -> str:
        name = self.text("name")
        if not name:
            raise self.wrong("name", "the value is missing")
        return name

    def text(self, key: str) -> str:
        """Return the key's string, printed plain or as {set, string}; '' if it is missing or null."""
        value = self._tree.get(key)
        if isinstance(value, Mapping) and "string" in value:
            value = value["string"]
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.wrong(key, f"expected a string, not {str(value)[:40]!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._tree.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, f"expected a list of strings, not {str(value)[:40]!r}")
        return tuple(value)

    def words(self, key: str) -> tuple[str, ...]:
        """Return the key's list of words. Older releases print the words as one string with commas."""
        value = self._tree.get(key)
        if isinstance(value, str):
            return tuple(word for word in value.split(",") if word)
        return self.texts(key)

    def states(self, key: str, needed: bool = True) -> tuple[str, ...]:
        value = self._tree.get(key)
        found = (value,) if isinstance(value, str) else self.texts(key)
        if needed and not any(found):
            raise self.wrong(key, "the value is missing")
        return tuple(one.upper() for one in found)

    def hosts(self, key: str) -> tuple[str, ...]:
        try:
            return expand(self.text(key))
        except ValueError as error:
            raise self.wrong(key, str(error)) from None

    def indices(self, detail: str) -> tuple[int, ...]:
        try:
            return indices_of(detail)
        except ValueError as error:
            raise self.wrong("gres_detail", str(error)) from None

    def number(self, key: str) -> float | None:
        """Return the key's number, printed plain or as {set, infinite, number}; None if it is missing, unset or
        infinite.
        """
        value = self._tree.get(key)
        if isinstance(value, Mapping):
            usable = value.get("set", True) and not value.get("infinite", False)
            value = value.get("number") if usable else None
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, f"expected a number, not {str(value)[:40]!r}")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key)
        if value is None and default is not None:
            return default
        if value is None or value < 0 or value != int(value):
            raise self.wrong(key, "the value is missing" if value is None else f"{value:g} is not a count")
        return int(value)

    def truth(self, key: str) -> bool:
        """Return the key's boolean; some versions print 0 and 1."""
        value = self._tree.get(key, False)
        return bool(value) if isinstance(value, bool | int) else bool(self.number(key))

    def exit_code(self) -> int | None:
        """Return the exit code as a shell shows it: from a wait(2) status until 22.05, from code and signal since
        23.02.
        """
        value = self._tree.get("exit_code")
        if isinstance(value, Mapping):
            inside = _Fields(value, f"{self._where}.exit_code")
            signal = inside.number("signal_id")
            if isinstance(value.get("signal"), Mapping):
                signal = _Fields(value["signal"], f"{self._where}.exit_code.signal").number("id")
            code = inside.number("return_code")
            return 128 + int(signal) if signal else None if code is None else int(code)
        status = self.number("exit_code")
        if status is None:
            return None
        return 128 + (int(status) & 127) if int(status) & 127 else int(status) >> 8
