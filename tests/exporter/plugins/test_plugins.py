"""Plug-ins: correct metrics are served in both formats, and no plug-in can make /metrics unreadable."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import METRIC_TYPES
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.plugins import collector_thread
from exporter.plugins.collector_thread import COLLECT_SECONDS
from exporter.plugins.entry_points import GROUP
from exporter.plugins.metric_check import InvalidMetricError, checked
from exporter.plugins.plugins import Plugins
from exporter.prometheus.library_format import PROCESS_SECONDS, ProcessMetrics, family_text, page
from tests import needs
from tests.exporter.plugins import bad_collectors

Found = dict[str, float]


def plugins_of(*names: str, folder: str = "", deny: tuple[str, ...] = (), process: bool = False) -> Plugins:
    """Load these plug-ins of bad_collectors."""
    entries = {name: EntryPoint(name, f"{bad_collectors.__name__}:{name}", GROUP) for name in names}
    return Plugins(folder, deny, entries, process)


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    bad_collectors.RELEASED.clear()
    yield
    bad_collectors.RELEASED.set()


def samples_of(text: bytes, open_metrics: bool = False) -> Found:
    """Return the samples that a parser reads, by series. Fail if a family occurs twice."""
    whole = text.decode() + ("# EOF\n" if open_metrics else "")
    families = list((parse_open_metrics if open_metrics else parse_text)(whole))
    names = [family.name for family in families]
    assert sorted(names) == sorted(set(names))
    found: Found = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}"
            assert key not in found
            found[key] = sample.value
    return found


def without_own(found: Found) -> Found:
    return {key: value for key, value in found.items() if not key.startswith("gangwatch_")}


@pytest.mark.parametrize("open_metrics", [False, True])
def test_a_good_collector_is_served_unchanged(open_metrics: bool) -> None:
    plugins = plugins_of("Good", "REGISTRY", process=True)
    found = samples_of(plugins.text(open_metrics, (), (("node", "n0"),)), open_metrics)
    assert found['site_power_watts{rack=r"1\\\n}'] == 1234.5
    assert found["site_door_openings_total{}"] == 7
    assert found["site_latency_seconds_bucket{le=1.0}"] == 3
    assert found["site_room_info{name=north}"] == 1
    assert found["site_in_a_registry{}"] == 4
    assert found["gangwatch_plugin_success{node=n0,plugin=Good}"] == 1
    assert found["gangwatch_plugin_failures_total{node=n0,plugin=Good}"] == 0
    assert found["gangwatch_plugin_series{node=n0,plugin=Good}"] == 7
    assert found["process_open_fds{}"] > 2
    assert found["python_gc_collections_total{generation=0}"] >= 0


def test_an_unchanged_text_of_the_process_is_not_rendered_again() -> None:
    plugins, names = plugins_of(process=True), frozenset({"gangwatch_gpu_info"})
    text = plugins.text(False, names)
    assert plugins.text(False, names) is text
    assert b"# EOF" not in plugins.text(True, names) != text, "each format has its own text"
    taken = frozenset({*names, "process_open_fds"})
    assert "process_open_fds{}" in samples_of(text)
    assert "process_open_fds{}" not in samples_of(plugins.text(False, taken)), "another page has that name now"
    plugins.use("", ("process_*",))
    assert not any(name.startswith("process_") for name in samples_of(plugins.text(False, names)))


def test_the_metrics_of_the_process_are_read_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    process = ProcessMetrics(lambda: now[0])
    listed: list[object] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), listdir(path))[1])
    plugins = plugins_of(process=True)
    plugins._process = process
    first = plugins.text(False, ())
    now[0] += PROCESS_SECONDS - 0.1
    assert plugins.text(False, ()) is first and plugins.text(True, ()) != first
    assert len(listed) == 1
    now[0] += 0.2
    assert plugins.text(False, ()) is not first
    assert len(listed) == 2


BROKEN = {
    "Raises": "collect() raised ZeroDivisionError: no rack",
    "Exits": "collect() raised SystemExit: 3",
    "Endless": "more than 2000 families",
    "Huge": "more than 10000 series",
    "NotFamilies": "collect() returned a int, expected families",
    "fails_to_load": "RuntimeError: no licence",
    "not_a_collector": "has no method collect",
    "no_such_name": "can't load",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_collector_is_left_out_counted_and_named(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_thread, "COLLECT_SECONDS", 60.0)  # none of them hangs, but a machine may be busy
    caplog.set_level("INFO")
    plugins = plugins_of("Good", name)
    for count in (1, 2):
        found = samples_of(plugins.text(False, ()))
        assert found["gangwatch_plugin_success{plugin=Good}"] == 1
        assert found[f"gangwatch_plugin_success{{plugin={name}}}"] == 0
        assert found[f"gangwatch_plugin_failures_total{{plugin={name}}}"] == count
    assert len(without_own(found)) == 7, "only the good collector's series"
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 1, "each reason is logged once"
    assert logged[0].startswith(f"plugin={name} reason=") and BROKEN[name] in logged[0]
    assert BROKEN[name] in {report.name: report.error for report in plugins.reports()}[name]


def test_a_blocked_collector_delays_one_page_and_is_served_again_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    plugins = plugins_of("Good", "Hangs")
    began = time.monotonic()
    found = samples_of(plugins.text(False, ()))
    assert time.monotonic() - began >= COLLECT_SECONDS
    assert "site_door_openings_total{}" in found and "site_after_the_hang{}" not in found
    thread = plugins._threads["Hangs"]._thread
    for count in (2, 3, 4):
        found = samples_of(plugins.text(False, ()))
        assert found["gangwatch_plugin_failures_total{plugin=Hangs}"] == count
    assert plugins._threads["Hangs"]._thread is thread, "no further thread"
    assert plugins._threads["Hangs"]._requested == 1, "no further call while one is blocked"
    bad_collectors.RELEASED.set()
    deadline = time.monotonic() + 30
    while "site_after_the_hang{}" not in samples_of(plugins.text(False, ())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    logged = [record.getMessage() for record in caplog.records]
    assert [("no result for" in line, "served in full again" in line) for line in logged] == [
        (True, False),
        (False, True),
    ]
    plugins.stop()
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("open_metrics", [False, True])
def test_a_name_is_served_once(open_metrics: bool) -> None:
    plugins = plugins_of("Duplicates", process=True)
    found = samples_of(plugins.text(open_metrics, ("DCGM_FI_DEV_GPU_TEMP",)), open_metrics)
    assert {key for key in found if key.startswith(("site_", "DCGM"))} == {"site_only_here{}"}
    assert found["site_only_here{}"] == 5
    assert found["process_open_fds{}"] > 1
    assert found["gangwatch_plugin_series{plugin=Duplicates}"] == 1
    (report,) = plugins.reports(("DCGM_FI_DEV_GPU_TEMP",))
    for reason in (
        "site_twice: duplicate series site_twice{a=",
        "site_only_here: duplicate metric, the plug-in Duplicates has it already",
        "process_open_fds: duplicate metric, the process has it already",
        "process_cpu_seconds: duplicate metric, the process has it already",
        "gangwatch_new: names that begin with gangwatch_ are reserved",
        "DCGM_FI_DEV_GPU_TEMP: duplicate metric, gangwatch has it already",
    ):
        assert reason in report.error


@pytest.mark.parametrize("open_metrics", [False, True])
def test_invalid_families_are_left_out_one_by_one(open_metrics: bool) -> None:
    plugins = plugins_of("Good", "Invalid")
    text = plugins.text(open_metrics, ())
    found = without_own(samples_of(text, open_metrics))
    kept = {key for key in found if not key.startswith("site_") or "escaped" in key}
    assert kept == {"site_escaped_name{a_label=x\ny}", "_lives{}"}
    assert len(found) == 7 + 2
    assert b"injected" not in text
    (error,) = (report.error for report in plugins.reports() if report.name == "Invalid")
    assert error.count(";") == 15, error


def test_promtool_accepts_the_page_of_bad_collectors() -> None:
    promtool = needs.component("promtool", "prometheus")
    plugins = plugins_of("Good", "Invalid", "Duplicates", "Raises", process=True)
    text = plugins.text(False, ())
    checked_by = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=False)
    assert checked_by.returncode != 1, checked_by.stderr.decode()
    assert b"error while linting" not in checked_by.stderr


def test_denied_names_are_left_out_without_an_error() -> None:
    plugins = plugins_of("Good", deny=("site_d*", "site_room_info", "process_*"), process=True)
    found = samples_of(plugins.text(False, ()))
    assert "site_door_openings_total{}" not in found and "site_room_info{name=north}" not in found
    assert not any(key.startswith("process_") for key in found)
    assert found["site_latency_seconds_count{}"] == 4
    assert found["gangwatch_plugin_success{plugin=Good}"] == 1
    plugins.use("", ())
    assert "site_door_openings_total{}" in samples_of(plugins.text(False, ()))


ANYTHING = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5), st.booleans())
NAMES = st.one_of(st.sampled_from(["a", "a_total", "a_bucket", "a b", "le", "9", "é", "__x"]), ANYTHING)


@settings(max_examples=300)
@given(
    NAMES,
    st.one_of(st.sampled_from(METRIC_TYPES), ANYTHING),
    st.one_of(st.text(), ANYTHING),
    st.lists(
        st.tuples(NAMES, st.dictionaries(NAMES, st.one_of(st.text(), ANYTHING), max_size=3), ANYTHING, ANYTHING),
        max_size=4,
    ),
)
def test_any_family_is_refused_or_readable(name: object, kind: object, help: object, samples: list[object]) -> None:
    family = bad_collectors.odd(name, kind, *samples, help=help)  # type: ignore[arg-type]
    try:
        good = checked(family)
    except InvalidMetricError:
        return
    for sample in good.samples:
        assert sample.name.startswith(good.name)
    read = [sample for one in parse_text(family_text([good], False).decode()) for sample in one.samples]
    assert len(read) == len(good.samples)
    assert page([good], True)[0].endswith(b"# EOF\n")


# --- text files -------------------------------------------------------------------------------------------------------


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.prom").write_text(text)


def test_files_are_served_with_their_time_of_change(tmp_path: Path) -> None:
    write(tmp_path, rack='# HELP site_rack_info The rack.\n# TYPE site_rack_info gauge\nsite_rack_info{rack="7"} 1\n')
    (tmp_path / "rack.prom.tmp").write_text("half of a fi")
    plugins = plugins_of(folder=str(tmp_path))
    file = tmp_path / "rack.prom"
    for open_metrics in (False, True):
        found = samples_of(plugins.text(open_metrics, ()), open_metrics)
        assert found["site_rack_info{rack=7}"] == 1
        assert found[f"gangwatch_textfile_scrape_error{{file={file}}}"] == 0
        assert found[f"gangwatch_textfile_mtime_seconds{{file={file}}}"] == pytest.approx(file.stat().st_mtime)
    write(tmp_path, rack="site_rack 8\n")
    assert without_own(samples_of(plugins.text(False, ()))) == {"site_rack{}": 8}
    file.unlink()
    assert samples_of(plugins.text(False, ())) == {}


def test_files_share_a_family_but_no_series(tmp_path: Path) -> None:
    head = "# HELP site_disk_celsius Temperature.\n# TYPE site_disk_celsius gauge\n"
    write(
        tmp_path,
        a=head + 'site_disk_celsius{disk="a"} 30\n',
        b=head + 'site_disk_celsius{disk="b"} 31\n',
        c=head + 'site_disk_celsius{disk="a"} 32\n',
        d='# TYPE site_disk_celsius counter\nsite_disk_celsius{disk="d"} 33\n',
    )
    plugins = plugins_of(folder=str(tmp_path))
    for _ in range(2):
        text = plugins.text(False, ())
        assert text.count(b"# TYPE site_disk_celsius gauge") == 1
        assert without_own(samples_of(text)) == {"site_disk_celsius{disk=a}": 30, "site_disk_celsius{disk=b}": 31}
    errors = {Path(report.name).name: report.error for report in plugins.reports()}
    assert errors["a.prom"] == errors["b.prom"] == ""
    assert "duplicate series" in errors["c.prom"] and "duplicate metric" in errors["d.prom"]


BAD_FILES = {
    "site_power much\n": "line 1: could not convert",
    "site_ok 1\nsite power 3\n": "line 2: ",
    "# TYPE site_x bogus\nsite_x 1\n": "Invalid metric type",
    "site_x 1 1700000000000\n": "must not have timestamps",
    "site_x 1\nsite_x 2\n": "duplicate series",
    "gangwatch_node_score 1\n": "reserved",
    'site_x{a="b" 1\n': "line 1: ",
    "<html>not metrics</html>\n": "line 1: ",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_bad_file_is_left_out_as_a_whole_and_named(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, bad=text, good="site_good 1\n")
    plugins = plugins_of(folder=str(tmp_path))
    found = samples_of(plugins.text(False, ()))
    assert without_own(found) == {"site_good{}": 1}
    assert found[f"gangwatch_textfile_scrape_error{{file={tmp_path}/bad.prom}}"] == 1
    assert found[f"gangwatch_textfile_scrape_error{{file={tmp_path}/good.prom}}"] == 0
    plugins.text(False, ())
    (logged,) = (record.getMessage() for record in caplog.records)
    assert f"textfile={tmp_path}/bad.prom reason=" in logged and BAD_FILES[text] in logged


def test_what_is_not_a_readable_file_is_named_and_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "folder.prom").mkdir()
    (tmp_path / "link.prom").symlink_to(tmp_path / "absent")
    (tmp_path / "large.prom").write_bytes(b"#" * (1024 * 1024 + 1))
    (tmp_path / "bytes.prom").write_bytes(b"site_x 1\n\xff\n")
    errors = {Path(one.name).name: one.error for one in plugins_of(folder=str(tmp_path)).reports()}
    assert errors == {
        "pipe.prom": "not a regular file",
        "folder.prom": "not a regular file",
        "link.prom": "the symbolic link leads to no file",
        "large.prom": "1048577 bytes, the limit is 1048576",
        "bytes.prom": "byte 9 is not UTF-8",
    }
    (report,) = plugins_of(folder=str(tmp_path / "absent")).reports()
    assert (report.name, report.error) == (f"{tmp_path}/absent", "can't list the folder: No such file or directory")


def test_a_counter_without_total_keeps_its_name(tmp_path: Path) -> None:
    write(tmp_path, old="# TYPE site_old counter\nsite_old 3\n# TYPE site_new_total counter\nsite_new_total 4\n")
    plugins = plugins_of(folder=str(tmp_path))
    for open_metrics in (False, True):
        assert without_own(samples_of(plugins.text(open_metrics, ()), open_metrics)) == {
            "site_old{}": 3,
            "site_new_total{}": 4,
        }
