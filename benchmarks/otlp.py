"""Cost of a push by OTLP: ``python -m benchmarks.otlp --json``.

Four agents run side by side on the fake node of ``benchmarks.agent``, in the full profile, each scraped once a second:
one without a push, and three that push every second, by gangwatch's own exporter, by opentelemetry-sdk over HTTP and
by opentelemetry-sdk over gRPC. The cost of a push is the processor time above that of the agent without one, divided by
the number of pushes. Pushes are fifteen times as frequent as by default, so that their cost stands out.

Exits 1 if an agent that pushes has more resident memory than its budget.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.agent.__main__ import FULL, Figures, agent, measure, receiver
from benchmarks.agent.hardware import HardwareProcess
from benchmarks.agent.scraping import distinct_series

SECONDS = 60.0
MOST_RESIDENT_MIB = 72.0


@contextlib.contextmanager
def grpc_receiver() -> Iterator[str]:
    """Receive OTLP pushes over gRPC and discard them."""
    import grpc

    def accept(request: bytes, context: Any) -> bytes:  # noqa: ARG001 - one signature
        return b""

    service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    handler = grpc.method_handlers_generic_handler(service, {"Export": grpc.unary_unary_rpc_method_handler(accept)})
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None)


def run(seconds: float) -> dict[str, Any]:
    """Return the figures of each agent, and ratios to gangwatch's own exporter in the same run."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangwatch-benchmark-")))
        hardware = stack.enter_context(HardwareProcess(folder))
        http, grpc = stack.enter_context(receiver()), stack.enter_context(grpc_receiver())
        push = FULL + "[otlp]\ninterval_seconds = 1.0\n"
        configurations = {
            "no_push": FULL,
            "own": push + f'endpoint = "{http}"\nexporter = "own"\n',
            "sdk_http": push + f'endpoint = "{http}"\nexporter = "sdk"\n',
            "sdk_grpc": push + f'endpoint = "{grpc}"\nprotocol = "grpc"\n',
        }
        programs = [stack.enter_context(agent(folder, name, text, hardware)) for name, text in configurations.items()]
        measured = measure(programs, seconds, lambda _: None)
    found: dict[str, Any] = {name: figures for name, (figures, _) in zip(configurations, measured, strict=True)}
    base = found["no_push"]
    for name in ("own", "sdk_http", "sdk_grpc"):
        found[name]["cpu_ms_per_push"] = _difference(found[name], base, "cpu_ms_per_scrape")
        found[name]["rss_above_no_push_mib"] = _difference(found[name], base, "rss_mib")
    own = found["own"]
    for name in ("sdk_http", "sdk_grpc"):
        found[f"{name}_to_own"] = {
            "cpu_per_push": round(found[name]["cpu_ms_per_push"] / max(own["cpu_ms_per_push"], 0.001), 2),
            "rss": round(found[name]["rss_mib"] / own["rss_mib"], 3),
            "rss_more_mib": _difference(found[name], own, "rss_mib"),
        }
    found["series"] = distinct_series(measured[0][1], own=True)
    return found


def _difference(figures: Figures, other: Figures, key: str) -> float:
    return round(float(figures[key]) - float(other[key]), 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.otlp", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output (the only format)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"measured time (default {SECONDS:.0f})")
    found = run(parser.parse_args().seconds)
    wrong = [
        f"{name}: {found[name]['rss_mib']} MiB resident, at most {MOST_RESIDENT_MIB}"
        for name in ("own", "sdk_http", "sdk_grpc")
        if found[name]["rss_mib"] > MOST_RESIDENT_MIB
    ]
    found["machine"] = {
        "processors": os.cpu_count() or 0,
        "python": platform.python_version(),
        "opentelemetry_sdk": version("opentelemetry-sdk"),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps({**found, "missed": wrong}, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
