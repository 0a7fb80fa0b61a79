"""A real OpenTelemetry Collector that prints the metrics and spans that it receives."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests import needs
from tests.exporter.certificates import Authority
from tests.ports import held_ports


class Collector:
    """OpenTelemetry Collector that serves OTLP over HTTP and gRPC, and the output of all its runs.

    authority: signs its certificate; None for no TLS. is_mutual: whether it verifies client certificates. token:
    required value of the header "authorization"; '' for none.
    """

    def __init__(
        self, folder: Path, authority: Authority | None = None, is_mutual: bool = False, token: str = ""
    ) -> None:
        self._program = needs.otlp_program("otelcol")
        self._output, self._configuration = folder / "collector.log", folder / "collector.yaml"
        self._token_file = folder / "collector.token"
        self._process: subprocess.Popen[bytes] | None = None
        self.set_token(token)
        http, grpc = held_ports(2)
        scheme = "http" if authority is None else "https"
        self.http, self.grpc = f"{scheme}://127.0.0.1:{http}", f"{scheme}://127.0.0.1:{grpc}"
        options = "auth: {authenticator: fileauth}, " if token else ""
        if authority is not None:
            certificate, key = authority.sign("collector")
            options += f"tls: {{cert_file: {certificate}, key_file: {key}"
            options += f", client_ca_file: {authority.certificate}}}, " if is_mutual else "}, "
        self._configuration.write_text(
            f"""
extensions: {{fileauth: {{file: {self._token_file}}}}}
receivers:
  otlp:
    protocols:
      http: {{{options}endpoint: 127.0.0.1:{http}}}
      grpc: {{{options}endpoint: 127.0.0.1:{grpc}}}
exporters: {{debug: {{verbosity: detailed, use_internal_logger: false}}}}
service:
  extensions: [fileauth]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [debug]}}
    traces: {{receivers: [otlp], exporters: [debug]}}
"""
        )

    def set_token(self, token: str) -> None:
        """Require this value of the header "authorization" from now on."""
        self._token_file.write_text(token)

    def start(self) -> Collector:
        begun = self.text().count("Everything is ready")
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, f"--config={self._configuration}"], stdout=output, stderr=output
            )

        def ready() -> bool:
            assert self._process is not None and self._process.poll() is None, self.text()
            return self.text().count("Everything is ready") > begun

        wait_until(ready, self.text)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def text(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def metrics(self) -> set[str]:
        return set(re.findall(r"^     -> Name: (.*)$", self.text(), re.MULTILINE))

    def spans(self) -> set[str]:
        return set(re.findall(r"^    Name +: (.*)$", self.text(), re.MULTILINE))

    def resources(self) -> list[dict[str, str]]:
        """Return the resource attributes of each received request."""
        blocks = re.findall(r"^Resource attributes:\n((?:     -> .*\n)+)", self.text(), re.MULTILINE)
        return [dict(re.findall(r"-> (.*?): Str\((.*)\)\n", block)) for block in blocks]


def wait_until(condition: Callable[[], object], complaint: Callable[[], str], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, complaint()[-5000:]
        time.sleep(0.05)
