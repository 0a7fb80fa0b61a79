"""Inputs that made a parser fail in `python -m benchmarks.fuzz`, unchanged."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from agent import rank_attribution
from agent.schema.errors import ConfigError, SourceError, TraceError
from agent.sources.kernel import kernel_log
from agent.sources.proc import mountstats
from agent.sources.proc.cgroup import parse_cgroup
from agent.sources.rdma import ethtool
from gangwatch.configuration import config_file
from gangwatch.configuration.durations import parse_duration
from gangwatch.configuration.sections import parse_listen
from scheduler_feedback.fabric_file import read_fabric
from scheduler_feedback.sim.traces import slurm as sacct
from tests.security.serving import read_until_closed, served

DIGITS = "9" * 5000
"""int() refuses more than 4,300 digits with an unexpected ValueError (sys.get_int_max_str_digits)."""


def test_too_many_digits_are_not_a_number() -> None:
    with pytest.raises(SourceError, match="is not a statistic"):
        ethtool.parse_recorded(f"rx: {DIGITS}\n".encode())
    with pytest.raises(SourceError, match="not a valid record"):
        kernel_log.parse_record(f"4,{DIGITS},1,-;x".encode())
    with pytest.raises(SourceError, match="mountstats"):
        mountstats.parse_mountstats(
            b"device h:/x mounted on /y with fstype nfs statvers=1.0\n\tbytes: 1 2 3 4 5 6 7 " + DIGITS.encode()
        )
    found = parse_cgroup(f"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_{DIGITS}\n")
    assert found is not None and (found.slurm_job, found.slurm_task) == ("7", None)
    assert parse_cgroup(f"0::/system.slice/slurmstepd.scope/job_{DIGITS}\n") is None, "part of a number is no job"


def test_an_infinite_duration_is_refused(tmp_path: Path) -> None:
    """An infinite duration was accepted, and `gangwatch config` printed `null`, which is not valid TOML."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration("9" * 400)
    file = tmp_path / "gangwatch.toml"
    file.write_text(f'[policy]\nreplan_seconds = "{"9" * 400}"\n')
    with pytest.raises(ConfigError, match=r"policy\.replan_seconds: .999"):
        config_file.load(file)


def test_control_characters_in_the_configuration_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "gangwatch.toml"
    file.write_text('[agent]\njob_files = "/x\\u007f"\n')
    loaded = config_file.load(file)
    file.write_text(config_file.as_toml(loaded))
    assert config_file.load(file).agent.job_files == "/x\x7f"


def test_a_huge_node_list_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    for nodes in ("[1-1000][1-1000][1-1000]", f"[{DIGITS}]"):
        file.write_text(f"SwitchName=a Nodes=n{nodes}\n")
        tracemalloc.start()
        with pytest.raises(ConfigError, match="line 1"):
            read_fabric(file)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 64 << 20


def test_an_overlong_time_in_sacct_drops_only_its_line(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    header = "JobID|JobName|Submit|Start|End|ElapsedRaw|AllocTRES\n"
    good = "7|a|2026-11-22T10:00:00|2026-11-22T10:00:05|2026-11-22T11:00:00|5|gres/gpu=8\n"
    file.write_text(header + good + good.replace("2026-11-22T10:00:00", "9" * 400).replace("7|", "8|", 1))
    trace = sacct.read(file)
    assert [job.job.job_id if hasattr(job, "job") else job.job_id for job in trace.jobs] == ["7"]
    assert len(trace.refused) == 1
    file.write_text(header)
    with pytest.raises(TraceError):
        sacct.read(file)


def test_a_deeply_nested_rank_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": ' + "[" * 100_000)
    assert rank_attribution._list(str(tmp_path)).ranks == ()


def test_a_head_request_with_a_malformed_body_gets_a_response_without_body(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn wrote a body, which h11 refuses, so each such request logged a traceback."""
    with served() as site:
        sent = b"HEAD /wait HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n"
        answer = read_until_closed(site.connect(sent + b"GET / HTTP/1.1\r\n\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert (head.partition(b"\r\n")[0], body) == (b"HTTP/1.1 400 Bad Request", b"")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("port", ["9" * 5003, "65536", "-1", "٣", "", "0x10"])
def test_an_invalid_port_is_refused_with_its_key(port: str) -> None:
    """Python converts at most 4,300 digits (sys.set_int_max_str_digits); more raised ValueError."""
    with pytest.raises(ConfigError, match=r"^agent\.listen: expected HOST:PORT"):
        parse_listen(f"127.0.0.1:{port}", "agent.listen")
