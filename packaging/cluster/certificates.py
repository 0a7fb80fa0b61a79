"""Certificates and kubeconfigs of the test cluster's components, signed by an authority that openssl creates."""

from __future__ import annotations

import subprocess
from pathlib import Path

SERVER = "https://10.213.0.1:443"
_DAYS = "30"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(folder: Path) -> None:
    """Write ca.crt and ca.key, and the key accounts.key that signs the tokens of service accounts."""
    _openssl(
        folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", _DAYS, "-subj", "/CN=cluster",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 accepts no authority without it
    )  # fmt: skip
    _openssl(folder, "genrsa", "-out", "accounts.key", "2048")


def make_certificate(folder: Path, name: str, subject: str, names: str = "") -> None:
    """Write NAME.crt and NAME.key, for clients and servers. names: subject alternative names, in openssl's syntax."""
    _openssl(folder, "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
    extensions = folder / f"{name}.extensions"
    extensions.write_text("extendedKeyUsage=clientAuth,serverAuth\n" + (f"subjectAltName={names}\n" if names else ""))
    command = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    _openssl(folder, *command, "-out", f"{name}.crt", "-days", _DAYS, "-extfile", extensions.name)


def kubeconfig(folder: Path, name: str) -> str:
    """Return a kubeconfig that authenticates with the certificate NAME.crt in `folder`."""
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: cluster\n"
        "contexts: [{name: cluster, context: {cluster: cluster, user: user}}]\n"
        f"clusters: [{{name: cluster, cluster: {{server: '{SERVER}', certificate-authority: {folder}/ca.crt}}}}]\n"
        f"users: [{{name: user, user: {{client-certificate: {folder}/{name}.crt, client-key: {folder}/{name}.key}}}}]\n"
    )


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"cluster: openssl {arguments[0]} failed in {folder}: {done.stderr.strip()}")
