"""Labels of this node's pods, which the API server lists for the service account of the agent's own pod.

Only metadata is requested, and from the API server's cache (``resourceVersion=0``), which has an index of pods by
node. The kubelet's own list would need the right ``nodes/proxy``, which allows commands in every pod.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from agent.schema.errors import SourceError, UnsupportedError

ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder with the token and the certificate authority of a pod's service account."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum size of a response in bytes. A node runs some hundreds of pods at most, with a few KiB of metadata each."""

DEADLINE_SECONDS = 5.0
"""Time limit of connecting, and of each read."""

_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

PodName = tuple[str, str]
"""Namespace and name of a pod."""


class _Metadata(msgspec.Struct):
    name: str
    namespace: str
    labels: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[_Pod] | None


_decode = msgspec.json.Decoder(_List).decode


class PodLabels:
    """Client of the API server for the pods of one node. The token is read for each call, because it is rotated.

    Raise UnsupportedError outside a pod, or in a pod without a service account.
    """

    def __init__(self, node: str, folder: str = ACCOUNT_FOLDER, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        self._token, self._authority = f"{folder}/token", f"{folder}/ca.crt"
        if not self._host or not port.isdecimal() or not os.path.exists(self._token):
            raise UnsupportedError(
                f"pod-labels: not in a pod with a service account ({self._token}, KUBERNETES_SERVICE_HOST)"
            )
        self._port = int(port)
        self._path = f"/api/v1/pods?resourceVersion=0&fieldSelector={quote(f'spec.nodeName={node}', safe='')}"

    def list(self) -> dict[PodName, dict[str, str]]:
        """Return the labels of each pod of the node. Raise SourceError without a valid response in time."""
        where = f"API server {self._host}:{self._port}: list of pods"
        try:
            body = self._get(where)
            found = _decode(body).items or []
        except msgspec.DecodeError as error:
            raise SourceError(f"{where}: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise SourceError(f"{where}: {reason}") from None
        return {(pod.metadata.namespace, pod.metadata.name): pod.metadata.labels or {} for pod in found}

    def _get(self, where: str) -> bytes:
        import ssl  # two megabytes, which agents without this option never need

        with open(self._token, encoding="ascii") as file:
            token = file.read().strip()
        context = ssl.create_default_context(cafile=self._authority)
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=DEADLINE_SECONDS, context=context)
        try:
            headers = {"Authorization": f"Bearer {token}", "Accept": _METADATA, "User-Agent": "gangwatch-agent"}
            connection.request("GET", self._path, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()
        if response.status in (401, 403):
            right = "the agent's service account needs the right to list pods (Helm: agent.podLabelNames)"
            raise SourceError(f"{where}: HTTP status {response.status}: {right}")
        if response.status != 200:
            raise SourceError(f"{where}: HTTP status {response.status}")
        if len(body) > MAX_ANSWER_BYTES:
            raise SourceError(f"{where}: response of over {MAX_ANSWER_BYTES} bytes")
        return body
