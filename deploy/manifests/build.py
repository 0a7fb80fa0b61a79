"""Generator of gangwatch.yaml, plain manifests of the chart's defaults for clusters without Helm.

    python deploy/manifests/build.py HELM

The file contains no secrets, since each cluster needs its own certificate and password. docs/how-to/kubernetes.md
describes how to create them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE.parent / "helm" / "gangwatch"
_HEAD = """\
# Made by deploy/manifests/build.py from the chart in deploy/helm/gangwatch: its defaults, without the secrets
# gangwatch-tls and gangwatch-agent (docs/how-to/kubernetes.md). Change the chart, not this file.
"""
_DROPPED_LABELS = ("app.kubernetes.io/managed-by",)


def manifests(helm: str) -> str:
    """Return the text of gangwatch.yaml. helm: path of the program. Raises CalledProcessError if it cannot render the
    chart."""
    command = [helm, "template", "gangwatch", str(CHART), "--namespace", "gangwatch", "--no-hooks", "--include-crds"]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bodies = [body for body in yaml.safe_load_all(rendered) if body and body["kind"] != "Secret"]
    bodies.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gangwatch"}})
    cluster_wide = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for body in bodies:
        for label in _DROPPED_LABELS:
            body["metadata"].get("labels", {}).pop(label, None)
        if body["kind"] not in cluster_wide:
            body["metadata"]["namespace"] = "gangwatch"
    return _HEAD + yaml.safe_dump_all(bodies, sort_keys=False, width=1000)


if __name__ == "__main__":
    (HERE / "gangwatch.yaml").write_text(manifests(sys.argv[1]))
