"""Step reporter: the records in its step ring. No error in it affects the training."""

from __future__ import annotations

import ast
import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.frame import Member
from agent.sources.steps import rings
from agent.sources.steps.rings import RingRecord
from agent.sources.steps.step_connection import Admission, Registered
from agent.sources.steps.step_messages import Place
from agent.sources.steps.step_socket import StepSocket
from agent.sources.steps.tenants import Tenant
from gangwatch import steps

REPOSITORY = Path(__file__).resolve().parents[2]


def wait_until(condition: object, what: str, seconds: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


TENANT = Tenant("job", "test")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[StepSocket]:
    listening = StepSocket(
        str(tmp_path / "run" / "n.sock"),
        lambda peer, claim, waited: Admission(Member(claim.gang or "", 0, claim.rank or 0), TENANT),
    )
    yield listening
    listening.close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"GANGWATCH_SOCKET": str(tmp_path / "run" / "n.sock"), "GANGWATCH_JOB": "j-000001", "RANK": "3"}


@pytest.fixture
def reporter(environment: dict[str, str]) -> Iterator[steps.Reporter]:
    made = steps.Reporter(environment)
    yield made
    made.close()


def registered(agent: StepSocket) -> Registered:
    wait_until(agent.registered, "the reporter never registered")
    return agent.registered()[0]


def read(agent: StepSocket) -> list[RingRecord]:
    return registered(agent).ring.read(time.monotonic_ns())


def test_a_step_with_a_collective_is_recorded_in_the_ring(agent: StepSocket, reporter: steps.Reporter) -> None:
    before_ns = time.monotonic_ns()
    with reporter.step(tokens=7), reporter.wait():
        time.sleep(0.002)
    after_ns = time.monotonic_ns()
    begun, entered, left, ended = read(agent)
    assert [record.kind for record in (begun, entered, left, ended)] == [
        steps.STEP_BEGUN,
        steps.COLLECTIVE_ENTERED,
        steps.COLLECTIVE_LEFT,
        steps.STEP_ENDED,
    ]
    assert before_ns <= begun.time_ns <= entered.time_ns <= left.time_ns <= ended.time_ns <= after_ns
    assert ended.duration_ns == ended.time_ns - begun.time_ns
    assert ended.wait_ns == left.duration_ns == left.time_ns - entered.time_ns >= 2_000_000
    assert (ended.tokens, ended.abandoned) == (7, False)
    assert reporter.dropped == 0


def test_the_claim_names_gang_and_rank(agent: StepSocket, reporter: steps.Reporter) -> None:
    found = registered(agent)
    assert found.peer == (os.getpid(), os.getuid())
    assert (found.claim.gang, found.claim.rank, found.claim.pid) == ("j-000001", 3, os.getpid())
    wait_until(lambda: reporter.status == "registered", reporter.status)


def test_a_wait_that_was_not_measured_is_unknown_and_not_zero(agent: StepSocket, reporter: steps.Reporter) -> None:
    with reporter.step():
        pass
    reporter.report(5, 0.25)
    reporter.report(6, 0.25, wait_seconds=0)
    ended = [record for record in read(agent) if record.kind == steps.STEP_ENDED]
    assert [(record.number, record.wait_ns, record.tokens) for record in ended] == [
        (0, None, None),
        (5, None, None),
        (6, 0, None),
    ]
    assert ended[1].duration_ns == 250_000_000


def test_a_wait_counts_only_for_its_own_step(agent: StepSocket, reporter: steps.Reporter) -> None:
    with reporter.wait():
        time.sleep(0.001)
    for _ in range(2):
        with reporter.step():
            for _ in range(2):
                with reporter.wait():
                    pass
    records = read(agent)
    ended = [record for record in records if record.kind == steps.STEP_ENDED]
    waits = [record.duration_ns for record in records if record.kind == steps.COLLECTIVE_LEFT]
    assert [record.wait_ns for record in ended] == [waits[1] + waits[2], waits[3] + waits[4]]


def test_step_numbers_continue_from_the_start_of_a_resumed_training(
    agent: StepSocket, reporter: steps.Reporter
) -> None:
    for number in (None, 40, None):
        with reporter.step(number=number) as step:
            step.tokens = step.number * 2
    assert reporter.begin() == 42
    ended = [record for record in read(agent) if record.kind == steps.STEP_ENDED]
    assert [(record.number, record.tokens) for record in ended] == [(0, 0), (40, 80), (41, 82)]


def test_squared_lengths_are_recorded_with_the_tokens(agent: StepSocket, reporter: steps.Reporter) -> None:
    long = 16_000_000  # length of one sequence
    for squares in (None, 3 * 512**2, long**2):
        with reporter.step(tokens=1536, squares=squares):
            pass
    with reporter.step() as step:
        step.squares = 2**48 - 1
    reporter.report(9, 0.1, tokens=1, squares=2)
    assert reporter.dropped == 0
    for nonsense in (2**48, -1, "many"):
        with reporter.step(tokens=7, squares=nonsense):  # type: ignore[arg-type]
            pass
    assert reporter.dropped == 3
    ended = [record for record in read(agent) if record.kind == steps.STEP_ENDED]
    assert [record.squares for record in ended] == [None, 786_432, long**2, 2**48 - 1, 2, None, None, None]
    assert [record.tokens for record in ended] == [1536, 1536, 1536, None, 1, 7, 7, 7], (
        "invalid squares keep the tokens"
    )


def test_a_step_left_by_an_exception_is_abandoned(agent: StepSocket, reporter: steps.Reporter) -> None:
    with pytest.raises(ZeroDivisionError), reporter.step(), reporter.wait():
        raise ZeroDivisionError
    assert [record.kind for record in read(agent)][-1] == steps.STEP_ENDED
    assert [record.abandoned for record in read(agent)] == []
    with pytest.raises(ZeroDivisionError), reporter.step():
        raise ZeroDivisionError
    assert [(record.kind, record.abandoned) for record in read(agent)] == [
        (steps.STEP_BEGUN, False),
        (steps.STEP_ENDED, True),
    ]


def test_invalid_calls_are_counted_and_never_raise(agent: StepSocket, reporter: steps.Reporter) -> None:
    reporter.report(1, float("nan"))
    reporter.report(1, -1.0)
    reporter.report("one", 1.0)  # type: ignore[arg-type]
    with reporter.step(number="one", tokens="many"):  # type: ignore[arg-type]
        pass
    with reporter.step(number=2**80, tokens=-1):
        pass
    reporter.leave(0, 2**70)
    assert reporter.dropped == 8
    good = [record for record in read(agent) if record.kind == steps.STEP_ENDED]
    assert [(record.number, record.tokens) for record in good] == [(0, None), (1, None)]


def test_without_the_variable_no_thread_and_no_memory_file_is_created() -> None:
    threads = threading.active_count()
    descriptors = open_descriptors()
    reporter = steps.Reporter({})
    with reporter.step(tokens=1) as step, reporter.wait():
        pass
    reporter.report(step.number, 1.0)
    # Threads of earlier tests may end meanwhile.
    assert threading.active_count() <= threads and open_descriptors() <= descriptors
    assert reporter.status == "off: GANGWATCH_SOCKET is not set"
    assert reporter.dropped == 0
    reporter.close()


def test_an_old_kernel_disables_the_reporter_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    reporter = steps.Reporter({"GANGWATCH_SOCKET": "/nowhere"})
    assert "memfd_create" in reporter.status
    with reporter.step():
        pass


@pytest.mark.parametrize("failing", ["ftruncate", "memfd_create"])
def test_a_failure_during_start_disables_the_reporter(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    descriptors = open_descriptors()
    monkeypatch.setattr(os, failing, fail)
    reporter = steps.Reporter({"GANGWATCH_SOCKET": "/nowhere"})
    assert reporter.status.startswith("off: ") and "No space left" in reporter.status
    with reporter.step():
        pass
    assert open_descriptors() == descriptors


def test_failing_thread_creation_disables_the_reporter(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    gc.collect()  # of earlier tests
    descriptors = open_descriptors()
    monkeypatch.setattr(threading.Thread, "start", fail)
    reporter = steps.Reporter({"GANGWATCH_SOCKET": "/nowhere"})
    assert reporter.status == "off: can't start new thread"
    gc.collect()
    assert open_descriptors() == descriptors


def test_the_rank_is_read_from_the_variables_of_launchers() -> None:
    for name in ("RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        assert steps._count({name: "5"}, steps._RANK) == 5
    assert steps._count({"RANK": "", "SLURM_PROCID": "6"}, steps._RANK) == 6
    for nonsense in ("five", "-1", str(2**31), ""):
        assert steps._count({"RANK": nonsense}, steps._RANK) is None
    assert steps._word({"SLURM_JOB_ID": "12", "TORCHELASTIC_RUN_ID": "x"}, steps._GANG) == "12"


def test_the_place_is_read_from_the_variables_of_launch_scripts(agent: StepSocket, environment: dict[str, str]) -> None:
    environment |= {"GANGWATCH_LAYOUT": "tensor=2, data=4, pipeline=2", "WORLD_SIZE": "16", "RANK": "13"}
    environment |= {"GANGWATCH_EXPERT_RANK": "5", "GANGWATCH_TENSOR_RANK": "nonsense"}
    reporter = steps.Reporter(environment)
    try:
        assert registered(agent).place == Place(data=2, stage=1, tensor=1, expert=5)
        assert reporter.dropped == 0
    finally:
        reporter.close()


@pytest.mark.parametrize(
    ("layout", "rank", "place"),
    [
        ("tensor=8,data=2", 11, {"data": 1, "stage": 0, "tensor": 3}),
        ("data=4,pipeline=4", 7, {"data": 3, "stage": 1, "tensor": 0}),
        ("tensor=2,context=2,expert=2,data=2,pipeline=2", 31, {"data": 7, "stage": 1, "tensor": 1, "expert": 1}),
    ],
)
def test_a_layout_numbers_its_fastest_dimension_first(layout: str, rank: int, place: dict[str, int]) -> None:
    assert steps.place_in_layout(layout, rank, None) == place


def test_each_rank_of_a_layout_has_a_unique_place() -> None:
    places = [steps.place_in_layout("tensor=2,expert=3,data=2,pipeline=2", rank, 24) for rank in range(24)]
    assert len({(place["data"], place["stage"], place["tensor"]) for place in places}) == 24


@pytest.mark.parametrize(
    "layout", ["tensor=8", "tensor=0", "depth=2", "tensor=2,tensor=8", "16", "tensor=-1,data=2", "="]
)
def test_an_invalid_layout_loses_no_step(layout: str, agent: StepSocket, environment: dict[str, str]) -> None:
    reporter = steps.Reporter({**environment, "GANGWATCH_LAYOUT": layout, "WORLD_SIZE": "16"})
    try:
        assert registered(agent).place == Place()
        assert reporter.dropped == 1
    finally:
        reporter.close()


def test_a_later_place_is_sent_once_and_again_to_the_next_agent(
    environment: dict[str, str], reporter: steps.Reporter
) -> None:
    def listen() -> StepSocket:
        return StepSocket(
            environment["GANGWATCH_SOCKET"], lambda peer, claim, waited: Admission(Member("g", 0, 0), TENANT)
        )

    reporter.place(stage=1)  # no agent listens yet
    agent = listen()
    try:
        assert registered(agent).place == Place(stage=1)
        wait_until(lambda: reporter.status == "registered", reporter.status)
        reporter.place(data=0, stage=2, tensor=7)
        reporter.place(data=-1)
        reporter.place(data="one")  # type: ignore[arg-type]
        wait_until(lambda: registered(agent).place == Place(0, 2, 7), "the later place was not received")
        assert reporter.dropped == 2
    finally:
        agent.close()
    agent = listen()
    try:
        assert registered(agent).place == Place(0, 2, 7)
    finally:
        agent.close()


def test_the_place_is_read_from_megatron_if_the_program_uses_it(
    agent: StepSocket, reporter: steps.Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = types.ModuleType("megatron.core.parallel_state")
    for name, value in {
        "model_parallel_is_initialized": False,
        "get_pipeline_model_parallel_rank": 3,
        "get_tensor_model_parallel_rank": 2,
        "get_expert_model_parallel_world_size": 4,
        "get_expert_model_parallel_rank": 1,
    }.items():
        setattr(state, name, lambda value=value: value)
    setattr(state, "get_data_parallel_rank", lambda with_context_parallel: 9 if with_context_parallel else 4)  # noqa: B010
    reporter.place()
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    reporter.place()
    wait_until(lambda: reporter.status == "registered", reporter.status)
    assert registered(agent).place == Place(), "no groups yet"
    setattr(state, "model_parallel_is_initialized", lambda: True)  # noqa: B010
    reporter.place()
    wait_until(lambda: registered(agent).place == Place(9, 3, 2, 1), "Megatron was not queried")
    assert reporter.dropped == 0


def test_a_socket_that_appears_later_is_found(environment: dict[str, str], reporter: steps.Reporter) -> None:
    with reporter.step():
        pass
    wait_until(lambda: reporter.status.startswith("waiting"), reporter.status)
    agent = StepSocket(
        environment["GANGWATCH_SOCKET"], lambda peer, claim, waited: Admission(Member("g", 0, 0), TENANT)
    )
    try:
        assert [record.kind for record in read(agent)] == [steps.STEP_BEGUN, steps.STEP_ENDED]
    finally:
        agent.close()


def test_a_hanging_rank_registers_again_with_a_restarted_agent(
    environment: dict[str, str], reporter: steps.Reporter
) -> None:
    def listen() -> StepSocket:
        return StepSocket(
            environment["GANGWATCH_SOCKET"], lambda peer, claim, waited: Admission(Member("g", 0, 0), TENANT)
        )

    first = listen()
    with reporter.step():
        pass
    assert len(read(first)) == 2
    with reporter.step(), reporter.wait():
        first.close()
        second = listen()
        try:
            # The ring still holds all records, so the new agent sees which collective the rank is in.
            assert [record.kind for record in read(second)] == [
                steps.STEP_BEGUN,
                steps.STEP_ENDED,
                steps.STEP_BEGUN,
                steps.COLLECTIVE_ENTERED,
            ]
        finally:
            second.close()


def test_the_status_reports_a_refused_registration(environment: dict[str, str], tmp_path: Path) -> None:
    def refuse(*_: object) -> Admission:
        raise rings.ReporterError("not you")

    agent = StepSocket(environment["GANGWATCH_SOCKET"], refuse)
    reporter = steps.Reporter(environment)
    try:
        wait_until(lambda: reporter.status == "refused: not you", reporter.status)
    finally:
        reporter.close()
        agent.close()


def test_invalid_responses_of_the_agent_are_ignored(environment: dict[str, str]) -> None:
    path = Path(environment["GANGWATCH_SOCKET"])
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(30)
        reporter = steps.Reporter(environment)
        try:
            for garbage in (b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x05hello", b""):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(garbage)
                wait_until(lambda: reporter.status.startswith("waiting"), reporter.status)
                with reporter.step():
                    pass
        finally:
            reporter.close()


def test_threads_and_signal_handlers_write_whole_records(agent: StepSocket, environment: dict[str, str]) -> None:
    reporter = steps.Reporter(environment, slots=65536)
    interrupted = signal.signal(signal.SIGALRM, lambda *_: reporter.report(10**6, 1.0))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [
            threading.Thread(target=lambda at=at: [reporter.report(at, 1.0) for at in range(at, at + 2000)])
            for at in (0, 10_000, 20_000, 30_000)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, interrupted)
        sys.setswitchinterval(interval)
    ring = registered(agent).ring
    numbers = [record.number for record in ring.read(time.monotonic_ns()) if record.number < 10**6]
    assert sorted(numbers) == [at + offset for at in (0, 10_000, 20_000, 30_000) for offset in range(2000)]
    assert (ring.malformed, ring.lost, reporter.dropped) == (0, 0, 0)
    reporter.close()


def test_a_forked_child_reports_nothing_and_does_not_keep_the_connection(
    agent: StepSocket, environment: dict[str, str], tmp_path: Path
) -> None:
    # The parent dies while its child continues: the agent must detect that the rank ended.
    program = textwrap.dedent(
        """
        import os, sys, time
        from gangwatch import steps
        reporter = steps.reporter()
        while reporter.status != "registered":
            time.sleep(0.01)
        with reporter.step():
            child = os.fork()
            if child == 0:
                with reporter.wait():
                    reporter.report(1000, 1.0)
                reporter.close()
                assert "forked" in reporter.status, reporter.status
                assert steps.reporter() is reporter
                open(sys.argv[1], "w").close()
                time.sleep(60)
                os._exit(0)
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
        print(child, flush=True)
        os._exit(0)
        """
    )
    child_ran = tmp_path / "child-ran"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(child_ran)],
        env={**os.environ, **environment, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.wait(30)
            found = registered(agent)
            wait_until(lambda: found.closed, "the child keeps its parent's connection open")
            os.kill(child, 0)
            numbers = {record.number for record in found.ring.read(time.monotonic_ns())}
            assert numbers == {0}
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("listening", [True, False])
def test_the_interpreter_exits_cleanly_and_without_delay(
    listening: bool, environment: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if listening:
        request.getfixturevalue("agent")
    program = textwrap.dedent(
        """
        import time
        from gangwatch import steps
        reporter = steps.reporter()
        end = time.monotonic() + 30
        while reporter.status == "connecting" and time.monotonic() < end:
            time.sleep(0.01)
        with reporter.step():
            pass
        print(reporter.status)
        """
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        env={**os.environ, **environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr == ""
    assert ended.stdout.startswith("registered" if listening else "waiting: ")


def test_each_process_has_one_reporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANGWATCH_SOCKET", raising=False)
    monkeypatch.setattr(steps, "_of_process", {})
    assert steps.reporter() is steps.reporter()


def test_close_ends_the_thread_and_closes_the_descriptors(agent: StepSocket, environment: dict[str, str]) -> None:
    def threads() -> int:
        return sum(thread.name == "gangwatch-steps" for thread in threading.enumerate())

    before = threads()
    reporter = steps.Reporter(environment)
    found = registered(agent)
    assert threads() == before + 1
    reporter.close()
    reporter.close()
    with reporter.step():
        pass
    assert reporter.status == "closed"
    wait_until(lambda: threads() == before, "the thread still runs")
    wait_until(lambda: found.closed, "the connection stays open")


def test_reporter_and_agent_use_the_same_ring_format() -> None:
    for name in ("MAGIC", "HEADER_BYTES", "SLOT_BYTES", "MAX_NUMBER", "STEP_BEGUN", "STEP_ENDED", "COLLECTIVE_ENTERED"):
        assert getattr(steps, name) == getattr(rings, name)
    for name in ("COLLECTIVE_LEFT", "WAIT_KNOWN", "TOKENS_KNOWN", "ABANDONED"):
        assert getattr(steps, name) == getattr(rings, name)
    assert steps._SLOT.size == rings._SLOT.size == steps.SLOT_BYTES
    assert steps._SLOT.pack(*range(1, 12)) == rings._SLOT.pack(*range(1, 12))


def test_the_module_parses_in_old_python_versions() -> None:
    ast.parse(Path(steps.__file__).read_text(), feature_version=(3, 8))


def test_the_memory_file_is_sealed(agent: StepSocket, reporter: steps.Reporter) -> None:
    registration = reporter._registration
    assert registration is not None
    with pytest.raises(PermissionError):
        os.ftruncate(registration._memory, mmap.PAGESIZE)
