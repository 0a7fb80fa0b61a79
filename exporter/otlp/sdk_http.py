"""OTLP over HTTP by the exporters of opentelemetry-sdk."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from exporter.otlp.http_protocol import OtlpHttp
from exporter.otlp.signals import METRICS, Signal
from exporter.push.delivery import Outcome, outcome_of
from exporter.push.sender import MOST_ANSWER_BYTES, retry_after_seconds
from exporter.push.target import PushTarget
from exporter.push.target_files import TargetFiles


class HttpExporter:
    """Exporter of one signal over HTTP. last_log: returns the last message of the SDK."""

    def __init__(
        self,
        target: PushTarget,
        signal: Signal,
        files: TargetFiles,
        language: OtlpHttp,
        last_log: Callable[[], str],
    ) -> None:
        self._session, self._last_log = _Session(files, language), last_log
        make = OTLPMetricExporter if signal == METRICS else OTLPSpanExporter
        self._exporter = make(
            endpoint=target.endpoint,
            certificate_file=str(target.ca_file or _authorities_of_the_machine() or ""),
            client_certificate_file=str(target.cert_file or ""),
            client_key_file=str(target.key_file or ""),
            timeout=target.timeout_seconds,
            compression=Compression.Gzip if target.compression == "gzip" else Compression.NoCompression,
            session=self._session,
        )

    def export(self, data: Any) -> Outcome:
        """Send once. Raises RuntimeError if the SDK sent nothing, which is a bug."""
        self._session.forget()
        self._exporter.export(data)
        if self._session.outcome is None:
            raise RuntimeError(f"opentelemetry-sdk sent no request: {self._last_log()}")
        return self._session.outcome

    def close(self) -> None:
        self._exporter.shutdown()


class _Session(requests.Session):  # type: ignore[misc] # requests has no types
    """Connection with the current headers, which keeps the outcome of the last request.

    The SDK also reads OTEL_EXPORTER_OTLP_HEADERS itself. Headers here replace all of the SDK's, so that a line of the
    headers file wins, and a value that HTTP does not allow stays out.
    """

    def __init__(self, files: TargetFiles, language: OtlpHttp) -> None:
        super().__init__()
        self.outcome: Outcome | None = None
        self._files, self._language = files, language
        # With a function here, requests does not take a password from ~/.netrc, which would replace a token.
        self.auth = lambda request: request

    def forget(self) -> None:
        """Drop the outcome of the last request."""
        self.outcome = None

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        """Send a request. Raises _NotAcceptedError for any failure, which the SDK does not retry."""
        # Without `verify`, requests prefers REQUESTS_CA_BUNDLE to the authorities of the session.
        options |= {"headers": self._files.headers(), "stream": True, "verify": self.verify}
        try:
            response = super().request(method, url, **options)
            # Only so much of a response is of interest. The connection is used again if this is all of it.
            answer = response.raw.read(MOST_ANSWER_BYTES, decode_content=True)
        except (requests.RequestException, OSError) as error:
            self.outcome = Outcome(False, _reason(error), again=True)
            raise _NotAcceptedError from None
        wait_seconds = retry_after_seconds(response.headers.get("Retry-After", ""))
        self.outcome = outcome_of(self._language, response.status_code, answer, wait_seconds)
        response.close()
        if not self.outcome.accepted:
            raise _NotAcceptedError
        return response


class _NotAcceptedError(Exception):
    """The receiver has not accepted a request. Not one of the errors after which the SDK sends again."""


def _reason(error: Exception) -> str:
    """Return the innermost error, because those of requests repeat the address and the path."""
    inner: Any = error
    while (next_one := getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)) is not None:
        if not isinstance(next_one, Exception):
            break
        inner = next_one
    return f"{type(inner).__name__}: {inner}"


def _authorities_of_the_machine() -> str | None:
    """Return the file or folder of the machine's authorities; None if it has none. The SDK would use certifi's."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath
