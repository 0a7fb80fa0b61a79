"""Control plane on loopback for tests: etcd, kube-apiserver and, if it was built, kube-controller-manager.

The programs are in KUBEBUILDER_ASSETS, or where packaging/kubernetes/build.sh writes them. RBAC is on, and users are
identified by tokens. Two admission plug-ins are off: ServiceAccount would mount tokens into pods, which need a
controller that does not run here; TaintNodesByCondition adds taints that only the node lifecycle controller removes,
and that controller would mark the fake nodes as lost, because they renew no leases.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from tests.needs import absent, component
from tests.ports import held_ports

ADMIN = "admin-token"
START_SECONDS = 120.0
CONTROLLERS = (
    "job-controller,disruption-controller,garbage-collector-controller,namespace-controller,"
    "serviceaccount-controller,resourceclaim-controller"
)


def assets() -> Path:
    """Return the folder of the built programs; skip the test if they are missing, or fail if CI requires all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gangwatch" / "kubernetes" / "bin"
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", cache))
    if not (folder / "kube-apiserver").exists():
        absent(f"{folder}/kube-apiserver is absent: packaging/kubernetes/build.sh builds it (needs go)")
    return folder


class ControlPlane:
    """Control plane of one cluster, with its files in `folder`. Its programs run inside the ``with``."""

    def __init__(self, folder: Path, *, manager: bool = True, audited: str = "", options: Sequence[str] = ()) -> None:
        """audited: namespace; the API server writes each request of its service accounts to audit.log in the folder.
        options: further options of the API server.
        """
        self.folder = folder
        self._assets, self._etcd_program = assets(), component("etcd", "etcd-server")
        self._openssl = component("openssl", "openssl")
        self._manager_wanted = manager
        self._audited, self._options = audited, tuple(options)
        self._port, self._etcd_port, self._peer_port, self._manager_port = held_ports(4)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"https://127.0.0.1:{self._port}"

    @property
    def has_manager(self) -> bool:
        return (self._assets / "kube-controller-manager").exists()

    def access(self, token: str = ADMIN) -> Access:
        return Access(self.url, token=token, ca=(self.folder / "ca.crt").read_text())

    def process_id(self, name: str) -> int:
        """Return the process id of a program of the control plane."""
        return self._processes[name].pid

    def kubeconfig(self, token: str = ADMIN) -> Path:
        path = self.folder / f"kubeconfig-{token}"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: bed\n"
            "contexts: [{name: bed, context: {cluster: bed, user: bed}}]\n"
            f"clusters: [{{name: bed, cluster: {{server: '{self.url}', certificate-authority: ca.crt}}}}]\n"
            f"users: [{{name: bed, user: {{token: {token}}}}}]\n"
        )
        return path

    def __enter__(self) -> ControlPlane:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_certificates()
        (self.folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        (self.folder / "audit.yaml").write_text(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\n"
            f"rules: [{{level: Metadata, userGroups: ['system:serviceaccounts:{self._audited}']}}, {{level: None}}]\n"
        )
        try:
            self._run(
                "etcd",
                self._etcd_program,
                f"--data-dir={self.folder}/etcd",
                f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--listen-peer-urls=http://127.0.0.1:{self._peer_port}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{self._peer_port}",
                f"--initial-cluster=default=http://127.0.0.1:{self._peer_port}",
                "--log-level=error",
                "--quota-backend-bytes=4294967296",
            )
            self.start_server()
            if self._manager_wanted and self.has_manager:
                self._run(
                    "kube-controller-manager",
                    str(self._assets / "kube-controller-manager"),
                    f"--kubeconfig={self.kubeconfig()}",
                    f"--controllers={CONTROLLERS}",
                    "--leader-elect=false",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={self._manager_port}",
                    f"--cert-dir={self.folder}/manager",
                    "--kube-api-qps=500",
                    "--kube-api-burst=1000",
                )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self._end(name)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def start_server(self) -> None:
        folder = self.folder
        self._run(
            "kube-apiserver",
            str(self._assets / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={folder}/server.crt",
            f"--tls-private-key-file={folder}/server.key",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/server.key",
            f"--service-account-signing-key-file={folder}/server.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--enable-priority-and-fairness=false",
            *self._audit_options(),
            *self._options,
        )
        self._await_ready()

    def _audit_options(self) -> list[str]:
        if not self._audited:
            return []
        folder = self.folder
        return [
            f"--audit-policy-file={folder}/audit.yaml",
            f"--audit-log-path={folder}/audit.log",
            "--audit-log-mode=blocking",
        ]

    def kill_server(self) -> None:
        """Kill kube-apiserver with SIGKILL."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def _run(self, name: str, program: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM if name == "etcd" else signal.SIGKILL)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _await_ready(self) -> None:
        import ssl

        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            process = self._processes["kube-apiserver"]
            if process.poll() is not None:
                raise AssertionError(f"kube-apiserver ended with {process.returncode}:\n{self._tail('kube-apiserver')}")
            try:
                with urlopen(f"{self.url}/readyz", timeout=2, context=context) as answer:
                    if answer.status == 200:
                        return
            except (URLError, OSError):
                time.sleep(0.1)
        raise AssertionError(f"kube-apiserver is not ready after {START_SECONDS:g} s:\n{self._tail('kube-apiserver')}")

    def _tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _make_certificates(self) -> None:
        """Make a CA, and a certificate for 127.0.0.1 that the CA signs."""
        folder = self.folder

        def run(arguments: str) -> None:
            subprocess.run([self._openssl, *arguments.split()], check=True, capture_output=True, cwd=folder)

        run(
            "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=bed "
            "-addext keyUsage=critical,keyCertSign"
        )
        run("req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=server")
        (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
        run(
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 "
            "-extfile extensions"
        )
