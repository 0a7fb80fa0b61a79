"""Installer of the Prometheus operator's resource definitions (monitors and rules) for the tests.

python packaging/kubernetes/monitoring.py

It installs them once per machine, next to the API server's programs (see build.sh). They come from the operator's Go
module, through the first proxy of GOPROXY. Go itself is not needed.
"""

from __future__ import annotations

import hashlib
import io
import os
import urllib.request
import zipfile
from pathlib import Path

MODULE = "github.com/prometheus-operator/prometheus-operator"
VERSION = "v0.85.0"
SHA256 = "0bdb88ed823d0f2e86cf909638439b6ad1da744a228172c7411d9987527dc5d1"
"""SHA-256 of the module's archive: the same from every proxy."""
_MEMBERS = tuple(
    f"{MODULE}@{VERSION}/example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
    for kind in ("podmonitors", "servicemonitors", "prometheusrules")
)


def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gangwatch" / "kubernetes" / "bin"
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", cache))
    target, stamp = folder / "monitoring", folder / "monitoring.version"
    if (
        all((target / Path(member).name).exists() for member in _MEMBERS)
        and stamp.exists()
        and stamp.read_text().strip() == VERSION
    ):
        return
    proxy = os.environ.get("GOPROXY", "").split(",")[0] or "https://proxy.golang.org"
    with urllib.request.urlopen(f"{proxy.rstrip('/')}/{MODULE}/@v/{VERSION}.zip", timeout=120) as answer:
        content = answer.read()
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        raise SystemExit(f"{MODULE} {VERSION} of {proxy} has the checksum {found}, expected {SHA256}")
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in _MEMBERS:
            (target / Path(member).name).write_bytes(archive.read(member))
    stamp.write_text(VERSION)


if __name__ == "__main__":
    main()
