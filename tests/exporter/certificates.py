"""Certificate authority and certificates, made by openssl when a test needs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import needs


class Authority:
    """Certificate authority in a folder. Its keys are P-256, because openssl makes them in milliseconds."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._openssl = needs.component("openssl", "openssl")
        self._folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        self._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate)),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),  # Python 3.13 accepts no authority without it
        )

    def sign(self, name: str, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> tuple[Path, Path]:
        """Return the paths of a new certificate and its key. names: subjectAltName. days: validity; negative:
        expired."""
        certificate, key, request = (self._folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self._run(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)),
        )
        self._run(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions), "-out", str(certificate)),
        )
        return certificate, key

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._openssl, *arguments], check=True, capture_output=True)
