"""MIG instances of the local backend: created for an attempt before it starts, and destroyed after its end.

Before the first instance of an attempt is created, the file ``mig/JOB.ATTEMPT.json`` of the state folder names all of
them. It is removed after the last one is destroyed. So a controller that is killed at any moment leaves no unknown
instance: the next one keeps the instances of attempts that run, and destroys the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agent.schema.errors import BackendError, SourceError
from scheduler_feedback.backends.local import attempt_files
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.mig import MigProfile

Key = tuple[str, int]
"""Job id and number of the attempt."""


class MigDriver(Protocol):
    """Creates and destroys MIG instances of this machine's GPUs. All methods raise SourceError."""

    def profiles(self, uuid: str) -> Sequence[tuple[str, int, int, tuple[int, ...]]]:
        """Return (name, compute slices, memory slices, starts) of a GPU's profiles; empty if its MIG mode is off."""

    def instances(self, uuid: str) -> Sequence[int]:
        """Return the first memory slice of each instance of the GPU."""

    def create(self, uuid: str, name: str, start: int) -> str:
        """Create an instance, and return its UUID."""

    def destroy(self, uuid: str, start: int) -> bool:
        """Destroy the instance that starts at this memory slice. Return whether there was one."""


class MigInstances:
    """Instances that this backend has created and not destroyed yet, by attempt."""

    def __init__(self, folder: Path, driver: MigDriver, nodes: Mapping[str, Sequence[str]]) -> None:
        """folder: of the records. nodes: UUIDs of the GPUs of each node.

        Raises BackendError if a GPU cannot be divided, or has instances that this backend has not created.
        """
        self._folder, self._driver = folder, driver
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._known: dict[Key, list[tuple[str, int]]] = {}
        for path in sorted(folder.glob("*.json")):
            job_id, _, attempt = path.stem.rpartition(".")
            record = attempt_files.read(str(path))
            if record is None or not attempt.isdigit():
                raise BackendError(
                    f"{path}: is no record of MIG instances; see which GPUs have unknown ones, remove it"
                )
            self._known[job_id, int(attempt)] = [(one["gpu"], one["start"]) for one in record["instances"]]
        self._devices = {name: tuple(uuids) for name, uuids in nodes.items()}
        self.profiles = {name: self._profiles_of(name, uuids) for name, uuids in self._devices.items() if uuids}
        """Profiles of the GPUs of each node with GPUs."""

    def _profiles_of(self, node: str, uuids: Sequence[str]) -> tuple[MigProfile, ...]:
        own = {one for instances in self._known.values() for one in instances}
        found: set[tuple[MigProfile, ...]] = set()
        for uuid in uuids:
            try:
                profiles = tuple(MigProfile(*one) for one in self._driver.profiles(uuid))
                strange = [start for start in self._driver.instances(uuid) if (uuid, start) not in own]
            except SourceError as error:
                raise BackendError(f"cluster.mig: node {node}: {error}") from error
            if not profiles:
                raise BackendError(
                    f"cluster.mig: MIG mode of GPU {uuid} of node {node} is off: turn it on with `nvidia-smi -i {uuid} "
                    "-mig 1`, or set cluster.mig = false"
                )
            if strange:
                raise BackendError(
                    f"cluster.mig: GPU {uuid} of node {node} has MIG instances that gangwatch has not created: destroy "
                    f"them with `nvidia-smi mig -i {uuid} -dci` and `-dgi`, or set cluster.mig = false"
                )
            found.add(profiles)
        if len(found) > 1:
            raise BackendError(f"cluster.mig: the GPUs of node {node} have different MIG profiles")
        return found.pop()

    @property
    def attempts(self) -> list[Key]:
        """Attempts with instances."""
        return list(self._known)

    def create(self, action: StartGang) -> list[str]:
        """Create the instances of an attempt, all or none. Return their UUIDs, by rank.

        A rank on a whole GPU gets one instance with all of its slices. Raises BackendError.
        """
        key = (action.job_id, action.attempt)
        wanted = []
        for rank, slot in enumerate(action.placement):
            profiles = self.profiles[slot.node]
            name = action.spec.mig_profile or max(profiles, key=lambda one: (one.memory, one.compute)).name
            start = action.mig_starts[rank] if action.spec.mig_profile else 0
            wanted.append((self._devices[slot.node][slot.slot], name, start))
        if not self.destroy(key):  # of a start that was interrupted
            raise BackendError(f"{action.job_id}: the MIG instances of an interrupted start still exist")
        busy = {one for other, instances in self._known.items() if other != key for one in instances}
        record = {"instances": [{"gpu": gpu, "profile": name, "start": start} for gpu, name, start in wanted]}
        if clash := busy & {(gpu, start) for gpu, _, start in wanted}:
            raise BackendError(f"{action.job_id}: the MIG instances {sorted(clash)} of an ended attempt still exist")
        attempt_files.write(str(self._path(key)), record, durable=True)
        self._known[key] = [(gpu, start) for gpu, _, start in wanted]
        found = []
        try:
            for gpu, name, start in wanted:
                found.append(self._driver.create(gpu, name, start))
        except SourceError as error:
            self._known[key] = self._known[key][: len(found)]
            self.destroy(key)
            raise BackendError(f"{action.action_id} ({action.job_id}): {error}") from error
        return found

    def destroy(self, key: Key, failed: Callable[[str], None] = lambda _: None) -> bool:
        """Destroy the instances of an attempt that has ended. Return whether none is left.

        failed: gets the reason why one could not be destroyed; the next call tries again.
        """
        left = []
        for gpu, start in self._known.get(key, ()):
            try:
                self._driver.destroy(gpu, start)
            except SourceError as error:
                failed(f"{key[0]}, attempt {key[1]}: {error}")
                left.append((gpu, start))
        if left:
            self._known[key] = left
            return False
        self._known.pop(key, None)
        self._path(key).unlink(missing_ok=True)
        return True

    def _path(self, key: Key) -> Path:
        return self._folder / f"{key[0]}.{key[1]}.json"
