"""Cost of the agent: ``python -m benchmarks.agent --json``.

On a fake node (eight H100 with 18 links each, eight NICs, a kubelet) our agent, nvitop-exporter and node_exporter run
side by side, each scraped once a second for five minutes. CPU is that of the whole process, including background
collection, with nothing subtracted; ``cpu_ms_per_scrape`` is that CPU over the scrapes. Our agent then runs once more
with ten-hertz sampling, with OTLP pushing, in its default profile, and beside nvitop-exporter on a board without GPU
processes, on which nvitop-exporter has less to read.

Calls of the fake driver cost almost nothing, so these figures do not contain the driver's own time. ``--real`` measures
the same agent on this machine's own GPUs and NICs.

Exits 1 if a budget or a ratio is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.server
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.agent.hardware import Hardware, HardwareProcess
from benchmarks.agent.peers import node_exporter, nvitop_exporter
from benchmarks.agent.programs import Program
from benchmarks.agent.scraping import Scraper, distinct_series
from tests.ports import held_port

SECONDS = 300.0
WARM_UP_SECONDS = 35.0
"""Seconds before the measurement. In them, even the slowest collectors have run twice, and start-up costs are over."""

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "peers"

Figures = dict[str, float | int | str]

BUDGETS: tuple[tuple[str, str, float], ...] = (
    ("cpu_percent_of_core_1hz", "at most", 0.5),
    ("cpu_percent_of_core_10hz", "at most", 3.0),
    ("rss_mib", "at most", 72.0),
    ("rss_10hz_mib", "at most", 72.0),
    ("rss_otlp_mib", "at most", 72.0),
    ("series", "at least", 3000),
    ("series_default", "at most", 1200),
    ("scrape_ms_p99", "at most", 5.0),
)
"""Limits of the agent's cost: (name of the figure, 'at most' or 'at least', limit)."""


def agent(folder: Path, name: str, configuration: str, hardware: Hardware | None, *, processes: bool = True) -> Program:
    """Return our agent as a program to measure, configured as its users run it without a controller.

    processes: whether the GPUs of the fake node have processes.
    """
    port = held_port()
    file = folder / f"{name}.toml"
    file.write_text(configuration)
    command = [
        sys.executable,
        *("-P", "-m", "gangwatch", "agent"),
        *("--state", str(folder / f"{name}-state")),
        *("--config", str(file)),
        *("--node", "benchmark", "--listen", f"127.0.0.1:{port}"),
    ]
    environment: dict[str, str] = {}
    if hardware is not None:
        environment = hardware.environment_of(processes)
        command += ["--nvml-library", str(hardware.library), "--kubelet-socket", str(hardware.kubelet)]
        command += ["--sysfs-root", str(hardware.root), "--proc-root", str(hardware.root)]
    return Program(f"gangwatch agent ({name})", command, port, folder / f"{name}.log", environment)


def measure(programs: list[Program], seconds: float, progress: Callable[[str], None]) -> list[tuple[Figures, str]]:
    """Scrape all programs once a second; return each program's figures and its newest exposition.

    Raises RuntimeError if a scrape failed: the cost of a failing program would look too low.
    """
    scrapers = [Scraper(program.port, index / len(programs)) for index, program in enumerate(programs)]
    for scraper in scrapers:
        scraper.start()
    _wait(WARM_UP_SECONDS, progress, "warming up")
    cpu_before = [program.cpu_seconds() for program in programs]
    scrapes_before = [len(scraper.milliseconds) for scraper in scrapers]
    begun = time.monotonic()
    _wait(seconds, progress, "measuring")
    elapsed = time.monotonic() - begun
    cpu = [program.cpu_seconds() - before for program, before in zip(programs, cpu_before, strict=True)]
    resident = [program.resident_mib() for program in programs]
    result = []
    for index, (program, scraper) in enumerate(zip(programs, scrapers, strict=True)):
        scraper.stop()
        if scraper.failures:
            raise RuntimeError(f"{program.name}: {len(scraper.failures)} scrapes failed, first: {scraper.failures[0]}")
        times = scraper.milliseconds[scrapes_before[index] :]
        figures: Figures = {
            "cpu_percent_of_core": round(100 * cpu[index] / elapsed, 3),
            "cpu_ms_per_scrape": round(1e3 * cpu[index] / len(times), 3),
            "rss_mib": round(resident[index], 1),
            "scrapes": len(times),
            "scrape_ms_p50": round(statistics.median(times), 2),
            "scrape_ms_p99": round(float(np.percentile(times, 99)), 2),
            "wire_bytes": int(statistics.median(scraper.sizes)),
        }
        result.append((figures, scraper.text()))
    return result


def _wait(seconds: float, progress: Callable[[str], None], what: str) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress(f"{what}: {left:.0f} s left")
        time.sleep(min(left, 5.0))


def gzip_milliseconds(text: str) -> float:
    """Return the milliseconds to compress one response of /metrics at the exporter's gzip level."""
    body, times = text.encode(), []
    for _ in range(20):
        begun = time.perf_counter()
        gzip.compress(body, 1)
        times.append((time.perf_counter() - begun) * 1e3)
    return round(statistics.median(times), 2)


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver that discards OTLP pushes, and yield its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics"
    finally:
        server.shutdown()
        server.server_close()


FULL = '[exporter]\nprofile = "full"\n'
TEN_HERTZ = FULL + "[agent]\ngpu_burst = true\n"


def on_the_fake(seconds: float, progress: Callable[[str], None]) -> dict[str, Figures]:
    """Return the figures of all programs on the fake node: our agent and the peer exporters."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangwatch-benchmark-")))
        hardware = stack.enter_context(HardwareProcess(folder))
        with contextlib.ExitStack() as running:
            programs = [
                running.enter_context(program)
                for program in (
                    agent(folder, "full", FULL, hardware),
                    nvitop_exporter(hardware, CACHE, folder / "nvitop.log"),
                    node_exporter(hardware, folder / "node_exporter.log"),
                )
            ]
            (ours, text), (nvitop, nvitop_text), (node, node_text) = measure(programs, seconds, progress)
        with contextlib.ExitStack() as running:
            endpoint = running.enter_context(receiver())
            push = FULL + f'[otlp]\nendpoint = "{endpoint}"\n'
            programs = [
                running.enter_context(program)
                for program in (
                    agent(folder, "ten-hertz", TEN_HERTZ, hardware),
                    agent(folder, "otlp", push, hardware),
                    agent(folder, "default", "", hardware),
                    agent(folder, "no-processes", FULL, hardware, processes=False),
                    nvitop_exporter(hardware, CACHE, folder / "nvitop-no-processes.log", processes=False),
                )
            ]
            (ten, _), (otlp, _), (default, default_text), (idle, _), (nvitop_idle, idle_text) = measure(
                programs, seconds, progress
            )
    nvitop["series"], node["series"] = distinct_series(nvitop_text), distinct_series(node_text)
    nvitop_idle["series"] = distinct_series(idle_text)
    return {
        "ours": _ours(ours, text, ten, otlp, default, default_text),
        "ours_no_processes": idle,
        "nvitop_exporter": nvitop,
        "nvitop_exporter_no_processes": nvitop_idle,
        "node_exporter": node,
    }


def _ours(ours: Figures, text: str, ten: Figures, otlp: Figures, default: Figures, default_text: str) -> Figures:
    return {
        "cpu_percent_of_core_1hz": ours["cpu_percent_of_core"],
        "cpu_percent_of_core_10hz": ten["cpu_percent_of_core"],
        "cpu_percent_of_core_otlp": otlp["cpu_percent_of_core"],
        "cpu_percent_of_core_default": default["cpu_percent_of_core"],
        "rss_mib": ours["rss_mib"],
        "rss_10hz_mib": ten["rss_mib"],
        "rss_otlp_mib": otlp["rss_mib"],
        "series": distinct_series(text, own=True),
        "series_default": distinct_series(default_text, own=True),
        "scrapes": ours["scrapes"],
        "scrape_ms_p50": ours["scrape_ms_p50"],
        "scrape_ms_p99": ours["scrape_ms_p99"],
        "cpu_ms_per_scrape": ours["cpu_ms_per_scrape"],
        "bytes": len(text.encode()),
        "wire_bytes": ours["wire_bytes"],
        "gzip_ms": gzip_milliseconds(text),
    }


def ratios(found: dict[str, Figures]) -> Figures:
    """Return our figures divided by those of each peer exporter."""

    def of(name: str, key: str) -> float:
        return float(found[name][key])

    cost = of("ours", "cpu_ms_per_scrape")
    a_series = of("node_exporter", "cpu_ms_per_scrape") / of("node_exporter", "series")
    return {
        "cpu_a_scrape_of_nvitop_exporter": round(cost / of("nvitop_exporter", "cpu_ms_per_scrape"), 3),
        "cpu_a_scrape_of_nvitop_exporter_no_processes": round(
            of("ours_no_processes", "cpu_ms_per_scrape") / of("nvitop_exporter_no_processes", "cpu_ms_per_scrape"), 3
        ),
        "series_of_nvitop_exporter": round(of("ours", "series") / of("nvitop_exporter", "series"), 2),
        "cpu_a_series_of_node_exporter": round(cost / of("ours", "series") / a_series, 3),
    }


def missed(found: dict[str, Figures]) -> list[str]:
    """Return a sentence for each budget or ratio that a figure exceeds."""
    ours, against = found["ours"], found["ratios"]
    wrong = []
    for key, bound, limit in BUDGETS:
        value = float(ours[key])
        if (value > limit) if bound == "at most" else (value < limit):
            wrong.append(f"{key} is {value}, {bound} {limit}")
    for key, bound, limit in (
        ("cpu_a_scrape_of_nvitop_exporter", "at most", 0.2),
        ("cpu_a_scrape_of_nvitop_exporter_no_processes", "at most", 0.5),
        ("series_of_nvitop_exporter", "at least", 5.0),
        ("cpu_a_series_of_node_exporter", "at most", 1.0),
    ):
        value = float(against[key])
        if (value > limit) if bound == "at most" else (value < limit):
            wrong.append(f"{key} is {value}, {bound} {limit}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agent",
        description=(__doc__ or "").split("\n\n")[1],
        epilog="Example: python -m benchmarks.agent --seconds 60 --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"measured time a round (default {SECONDS:.0f})")
    parser.add_argument("--real", action="store_true", help="this machine's own hardware instead of the fake")
    arguments = parser.parse_args()

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text:<40}", end="", file=sys.stderr, flush=True)

    if arguments.real:
        from benchmarks.agent.real import on_the_real

        try:
            found = on_the_real(arguments.seconds, progress)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        wrong: list[str] = []
    else:
        found = on_the_fake(arguments.seconds, progress)
        found["ratios"] = ratios(found)
        wrong = missed(found)
    found["machine"] = {
        "processors": os.cpu_count() or 0,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "seconds": arguments.seconds,
    }
    if arguments.json:
        print(json.dumps({**found, "missed": wrong}, indent=2))
    else:
        for name, figures in found.items():
            print(name)
            for key, value in figures.items():
                print(f"  {key:<34} {value}")
        for line in wrong:
            print(f"MISSED: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
