"""Names of pods by uid, from the kubelet's folder of logs, without the API server.

The folder of a pod is ``/var/log/pods/NAMESPACE_NAME_UID`` (pkg/kubelet/kuberuntime, BuildPodLogsDirectory). The uid
of a static pod is a hash.
"""

from __future__ import annotations

import os
import re

FOLDER = "/var/log/pods"

MAX_PODS = 4096
"""Maximum number of pod folders that are listed. A node runs 110 pods by default and at most 500; folders of ended pods
remain for some time."""

_ENTRY = re.compile(
    r"([a-z0-9][a-z0-9-]{0,62})_([a-z0-9][a-z0-9.-]{0,252})_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})\Z"
)
"""Pattern of the name of a pod's log folder. Namespaces (DNS labels) and pod names (DNS subdomains) contain no
underscore."""


def pods_by_uid(folder: str = FOLDER) -> dict[str, tuple[str, str]]:
    """Return the (namespace, name) of each pod, by uid; {} if the folder does not exist."""
    found: dict[str, tuple[str, str]] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if (match := _ENTRY.match(entry.name)) is not None:
                    namespace, name, uid = match.groups()
                    found[uid] = (namespace, name)
                    if len(found) >= MAX_PODS:
                        break
    except OSError:
        return {}
    return found
