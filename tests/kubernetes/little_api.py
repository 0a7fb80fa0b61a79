"""In-memory API server for the real client, with a record of all requests."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client, RefusedError

_anything = msgspec.json.Decoder()


class LittleApi(Client):
    """In-memory API server. It merges patches, and refuses a PUT or DELETE with an old resourceVersion or uid.

    objects: by path. fails: by (method, path), the exceptions to raise, one for each request; None lets it succeed.
    done: (method, path) of every request except GET. asked: paths and parameters of GETs.
    """

    def __init__(self, objects: Mapping[str, Any] | None = None, lists: tuple[str, ...] = ()) -> None:
        super().__init__(Access("http://little"))
        self.objects: dict[str, Any] = copy.deepcopy(dict(objects or {}))
        self.lists = lists
        self.fails: dict[tuple[str, str], list[Exception | None]] = {}
        self.done: list[tuple[str, str]] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.kinds: list[str] = []
        self.version = 100

    def body_of(self, method: str, path: str) -> Any:
        return self.bodies[len(self.done) - 1 - self.done[::-1].index((method, path))]

    async def _ask(
        self, method: str, path: str, body: Any = None, kind: str = "", parameters: Mapping[str, str] | None = None
    ) -> bytes:
        if method == "GET":
            self.asked.append((path, dict(parameters or {})))
        else:
            self.done.append((method, path))
            self.bodies.append(copy.deepcopy(body))
            self.kinds.append(kind)
        failures = self.fails.get((method, path))
        failure = failures.pop(0) if failures and len(failures) > 1 else failures[0] if failures else None
        if failure is not None:
            raise failure
        answer = self._answer(method, path, body)
        label, _, value = (parameters or {}).get("labelSelector", "").partition("=")
        if method == "GET" and label and path in self.lists:
            answer["items"] = [
                one for one in answer["items"] if (one["metadata"].get("labels") or {}).get(label) == value
            ]
        return msgspec.json.encode(answer)

    def _answer(self, method: str, path: str, body: Any) -> Any:
        if method == "POST":
            name = body["metadata"].get("name", f"made-{len(self.done)}")
            if path.endswith(("/eviction", "/binding")):
                return {}
            if f"{path}/{name}" in self.objects:
                raise refused(409, "AlreadyExists")
            return self._store(f"{path}/{name}", body)
        if method == "GET" and path in self.lists:
            below = [
                one for at, one in self.objects.items() if at.startswith(f"{path}/") and "/" not in at[len(path) + 1 :]
            ]
            return {"metadata": {"resourceVersion": str(self.version)}, "items": below}
        found, _, parameters = path.removesuffix("/status").partition("?")
        if found not in self.objects:
            raise refused(404, "NotFound")
        known = self.objects[found]
        if method == "GET":
            return known
        if method == "DELETE":
            return self.objects.pop(found)
        if method == "PUT":
            expected = body["metadata"].get("resourceVersion")
            if expected is not None and expected != known["metadata"].get("resourceVersion"):
                raise refused(409, "Conflict")
            return self._store(found, body)
        made = _patched(known, body) if isinstance(body, list) else _merged(known, body)
        return made if parameters == "dryRun=All" else self._store(found, made)

    def _store(self, path: str, body: Any) -> Any:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = body
        return body


def refused(code: int, reason: str = "", message: str = "") -> RefusedError:
    return RefusedError("a request", code, reason, message or reason)


def _patched(known: Any, operations: list[Any]) -> Any:
    """Return `known` with a JSON patch of add, replace and test applied (RFC 6902)."""
    made = copy.deepcopy(known)
    for one in operations:
        *parents, last = [int(part) if part.isdigit() else part for part in one["path"].split("/")[1:]]
        place = made
        for part in parents:
            place = place[part]
        if one["op"] == "test" and place[last] != one["value"]:
            raise refused(422, "Invalid", f"testing value {one['path']} failed")
        if one["op"] == "replace" and last not in place:
            raise refused(422, "Invalid", f"replace operation does not apply: {one['path']} is missing")
        place[last] = one["value"]
    return made


def _merged(known: Any, patch: Any) -> Any:
    """Return `known` with a JSON merge patch applied (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(known) if isinstance(known, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
