"""Slurm's commands as child processes: argument lists, a time limit, bounded output and no shell.

Every call is a request to slurmctld, which serves thousands of users, so calls are counted. A command that does not end
in time is killed with its process group.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.parsing import columns, parse_json, parse_text
from scheduler_feedback.backends.slurm.parsing.parse_text import Gpus
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Jobs, Nodes, Refused, SlurmJob, SlurmNode

MOST_OUTPUT_BYTES = 256 * 1024 * 1024
"""Maximum output of a command. `squeue --json` prints 3 KiB a job (22.05.8); Slurm keeps 10,000 jobs by default
(MaxJobCount), rarely above 50,000."""

MOST_ERROR_BYTES = 4096

JSON_JOBS = (21, 8)
"""First release whose squeue and sinfo support --json (release notes of 21.08)."""

JSON_NODES = (23, 2)
"""First release whose scontrol supports --json (release notes of 23.02). From this release on, sinfo's JSON lists no
nodes."""

GPUS_A_LISTING = 20
"""Maximum number of jobs whose GPUs are read after one text listing, with one request for each job. The other jobs'
GPUs are read after later listings."""

DOUBTFUL_A_LISTING = 5
"""Maximum number of jobs whose GPUs are read again after one listing, because an earlier output was ambiguous. A job's
name can imitate a list of GPUs and so make it ambiguous; such jobs have a limit of their own."""

_FILTERS = ("SQUEUE_", "SINFO_")
"""Environment variables that filter, sort or format a user's squeue (squeue(1), ENVIRONMENT VARIABLES)."""

_IMITATED = (
    ": its GPUs are in doubt: scontrol shows its nodes not at all, or twice. "
    "A value that its user set (name, comment, folder) imitates Slurm's own words"
)

_VERSION = re.compile(r"\b(\d+)\.(\d+)(?:\.\d+)?")


class Commands:
    """Runner of Slurm's commands, one or several at a time, in one event loop.

    folder: where the programs are; None: on PATH. configuration: path of slurm.conf; None for the default path. text:
    use the text output in every version. requests: number of calls so far that slurmctld had to answer.
    """

    def __init__(
        self,
        folder: str | None = None,
        configuration: str | None = None,
        timeout_seconds: float = 20.0,
        text: bool = False,
    ) -> None:
        self._folder = folder
        mine = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
        # Times without a zone are local times, and one hour of them occurs twice a year.
        self._environment = {**mine, "LC_ALL": "C", "TZ": "UTC"}
        # These commands would print times in the SLURM_TIME_FORMAT of the user who started us.
        self._environment.pop("SLURM_TIME_FORMAT", None)
        if configuration is not None:
            self._environment["SLURM_CONF"] = configuration
        self._timeout_seconds = timeout_seconds
        self._text = text
        self._version: tuple[int, int] | None = None
        self._gpus: dict[int, tuple[_Attempt, Gpus | None]] = {}
        self._known_jobs: parse_json.Records[SlurmJob] = parse_json.Records()
        self._known_nodes: parse_json.Records[SlurmNode] = parse_json.Records()
        self.requests = 0

    async def run(self, *command: str, given: str | None = None) -> bytes:
        """Run a command and return its standard output. Raises BackendError if it cannot start, fails, hangs or prints
        too much.
        """
        self.requests += 1
        return await self._run(command, given)

    async def _run(self, command: tuple[str, ...], given: str | None = None) -> bytes:
        program = command[0] if self._folder is None else str(Path(self._folder, command[0]))
        shown = " ".join(command[:3])
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise BackendError(f"{shown}: {program}: {error.strerror}") from error
        assert process.stdout is not None and process.stderr is not None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                if given is not None:
                    assert process.stdin is not None
                    process.stdin.write(given.encode())
                    process.stdin.close()
                output, errors = await asyncio.gather(
                    _read(process.stdout, MOST_OUTPUT_BYTES), _head(process.stderr, MOST_ERROR_BYTES)
                )
                code = await process.wait()
        except _TooMuchError:
            raise BackendError(f"{shown}: killed: it printed more than {MOST_OUTPUT_BYTES} bytes") from None
        except TimeoutError:
            raise BackendError(f"{shown}: killed: it did not end within {self._timeout_seconds:g} s") from None
        finally:
            if process.returncode is None:
                _kill(process.pid)
            # A process that outlives the command may hold the pipes open, and asyncio's wait() returns only once they
            # are closed. Process has no public method to close them.
            process._transport.close()  # type: ignore[attr-defined]
            await process.wait()
        if code:
            message = " ".join(errors.decode(errors="replace").split()) or "no error message"
            raise BackendError(f"{shown}: exit code {code}: {message[:300]}")
        return output

    # --- queries -----------------------------------------------------------------------------------------------------

    async def version(self) -> tuple[int, int]:
        """Return Slurm's release, as (22, 5). It is read once, without a request to slurmctld."""
        if self._version is None:
            output = (await self._run(("sinfo", "--version"))).decode(errors="replace")
            found = _VERSION.search(output)
            if found is None:
                raise BackendError(f"sinfo --version: {output[:60]!r} has no release number")
            self._version = int(found[1]), int(found[2])
        return self._version

    async def jobs(self) -> Jobs:
        """Return every job that slurmctld has in memory."""
        if self._text or await self.version() < JSON_JOBS:
            return await self._jobs_in_columns()
        listed = parse_json.jobs(await self.run("squeue", "--json"), known=self._known_jobs)
        self._gpus = {number: (_attempt(job), job.gpus) for number, job in listed.records.items() if any(job.gpus)}
        return listed

    async def nodes(self) -> Nodes:
        version = await self.version()
        if self._text or version < JSON_JOBS:
            return parse_text.nodes(_decoded(await self.run("scontrol", "--oneliner", "show", "nodes")))
        if version < JSON_NODES:
            return parse_json.nodes(await self.run("sinfo", "--json"), known=self._known_nodes)
        output = await self.run("scontrol", "show", "nodes", "--json")
        return parse_json.nodes(output, "scontrol show nodes --json", self._known_nodes)

    async def _columns(self, *options: str) -> Jobs:
        """Return the jobs, without their GPUs, from two listings. Omit a job that only one of the listings has."""
        squeue = ("squeue", "--noheader", "--all", "--states=all", *options)
        output = await self.run(*squeue, f"--Format={columns.FORMAT}")
        return columns.jobs(output, columns.places(await self.run(*squeue, f"--format={columns.PLACES_FORMAT}")))

    async def _jobs_in_columns(self) -> Jobs:
        """Return the jobs with their GPUs.

        In each call, GPUs are read only for some new attempts and ambiguous outputs.
        """
        listed = await self._columns()
        holding = {number: job for number, job in listed.records.items() if job.runs and job.gpus_wanted and job.nodes}
        self._gpus = {
            number: (attempt, gpus)
            for number, (attempt, gpus) in self._gpus.items()
            if number in holding and attempt == _attempt(holding[number])
        }
        unasked = [number for number in holding if number not in self._gpus]
        doubtful = [number for number, (_, gpus) in self._gpus.items() if gpus is None]
        for number in (*unasked[:GPUS_A_LISTING], *doubtful[:DOUBTFUL_A_LISTING]):
            await self._ask_gpus(holding[number])
        records = dict(listed.records)
        refused: list[Refused] = []
        for number, job in holding.items():
            gpus = self._gpus[number][1] if number in self._gpus else None
            if gpus is not None:
                records[number] = replace(job, gpus=gpus)
                continue
            del records[number]
            if number in self._gpus:
                refused.append(Refused(f"scontrol show job {number}", _IMITATED, "job", number))
        unread = frozenset(number for number in holding if number not in self._gpus)
        return Jobs(records, (*listed.refused, *refused), unread)

    async def _ask_gpus(self, job: SlurmJob) -> Gpus | None:
        """Read a job's GPUs and record them in `_gpus`. Return None if the output is ambiguous or the job is gone."""
        try:
            output = await self.run("scontrol", "--oneliner", "--details", "show", "job", str(job.number))
        except BackendError as error:
            if "Invalid job id" not in str(error):
                raise
            output = b""
        found = parse_text.gpus_of_job(_decoded(output), job.nodes)
        self._gpus.pop(job.number, None)
        self._gpus[job.number] = _attempt(job), found
        return found

    async def running(self) -> str:
        """Return one line for each job that uses nodes or is releasing them. A change of any such job changes the text.

        It has a few bytes for each job: listing the whole queue costs a hundred times as much.
        """
        return _decoded(
            await self.run("squeue", "--noheader", "--states=R,CG,CF,S,ST", "--array", "--format=%A|%T|%N|%k")
        )

    async def job(self, number: int) -> SlurmJob | None:
        """Read one job now and return it; None if slurmctld no longer has it. Raises BackendError if it cannot be read.

        The returned job has no GPUs if Slurm's output does not show clearly which ones it has.
        """
        try:
            listed = await self._columns(f"--jobs={number}")
        except BackendError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        job = listed.records.get(number)
        if job is None:
            why = f"{listed.refused[0].where}{listed.refused[0].why}" if listed.refused else "the job is not listed"
            raise BackendError(f"squeue --jobs={number}: {why}")
        if not (job.runs and job.gpus_wanted and job.nodes):
            return job
        attempt, gpus = self._gpus.get(number, (None, None))
        if attempt != _attempt(job):
            gpus = await self._ask_gpus(job)
        return job if gpus is None else replace(job, gpus=gpus)

    async def script(self, number: int) -> str:
        """Return the job's batch script; '' if there is none or it may not be read."""
        try:
            return _decoded(await self.run("scontrol", "write", "batch_script", str(number), "-"))
        except BackendError:
            return ""


_Attempt = tuple[int, float, tuple[str, ...]]


def _attempt(job: SlurmJob) -> _Attempt:
    """Return a key of the job's attempt. It changes when the job may have other GPUs, or another job has its number."""
    return job.restarts, job.submitted_seconds, job.nodes


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class _TooMuchError(Exception):
    """A command printed more than the limit."""


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    """Read the whole stream. Raises _TooMuchError as soon as it exceeds the limit."""
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(1 << 18):
        size += len(part)
        if size > most:
            raise _TooMuchError
        parts.append(part)
    return b"".join(parts)


async def _head(stream: asyncio.StreamReader, most: int) -> bytes:
    """Return the first bytes of the stream; read and drop the rest, so that the writer is not blocked."""
    kept = b""
    while part := await stream.read(1 << 16):
        kept += part[: most - len(kept)]
    return kept


def _kill(pid: int) -> None:
    """Kill the command and its children, which share its session."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def programs(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the required programs that are not on PATH."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    needed = ("squeue", "sinfo", "scontrol", "scancel", "sbatch")
    return [name for name in needed if not any(os.access(Path(folder, name), os.X_OK) for folder in folders)]
