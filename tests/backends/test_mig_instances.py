"""MIG instances on this machine: created by the driver, given to ranks, destroyed at the end and after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.errors import BackendError, SourceError
from agent.sources.nvml.nvml_mig import MigGpus
from scheduler_feedback.backends.local.local_backend import LocalNode
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning
from scheduler_feedback.core.job import JobSpec, Slot
from scheduler_feedback.core.mig import MODELS
from tests import needs
from tests.backends.local_gangs import LocalGangs, python
from tests.fakes.nvml.build import build
from tests.fakes.nvml.control import NO_PERMISSION, FakeNvml

GPU = "GPU-00000001-0000-4000-8000-00000000000{}".format
PRINT = python("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
WAIT = python("import time; time.sleep(60)")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"), compiler=needs.component("gcc", "gcc"))


@pytest.fixture
def nvml(library: Path) -> Iterator[FakeNvml]:
    fake = FakeNvml(library)
    fake.reset()
    for gpu in (0, 1):
        fake.set_mig(gpu, 3)
    yield fake
    fake.reset()
    assert not fake.is_initialized(), "the driver is released"


@pytest.fixture
def gpus(nvml: FakeNvml) -> MigGpus:
    return MigGpus(str(nvml.library))


@pytest.fixture
def gangs(gpus: MigGpus, tmp_path: Path) -> LocalGangs:
    return LocalGangs(tmp_path, [LocalNode("n0", 2, (GPU(0), GPU(1)))], mig=gpus)


def action(
    command: tuple[str, ...], profile: str, *places: tuple[int, int], job_id: str = "j-1", **spec: object
) -> StartGang:
    """Return the start of a job with an instance at each (GPU, memory slice)."""
    specification = JobSpec("part", command, len(places), mig_profile=profile, **spec)  # type: ignore[arg-type]
    slots = tuple(Slot("n0", gpu) for gpu, _ in places)
    starts = tuple(start for _, start in places) if profile else ()
    return StartGang(f"a-{job_id}", job_id, 1, specification, slots, mig_starts=starts)


# --- the driver ------------------------------------------------------------------------------------------------------


def test_the_driver_reports_the_profiles_of_the_documentation(gpus: MigGpus) -> None:
    found = sorted(gpus.profiles(GPU(0)))
    assert found == sorted((one.name, one.compute, one.memory, one.starts) for one in MODELS["H100-80GB"])
    assert gpus.profiles(GPU(2)) == (), "its MIG mode is off"


def test_instances_are_created_where_they_fit_and_destroyed_one_by_one(gpus: MigGpus) -> None:
    first, second = gpus.create(GPU(0), "3g.40gb", 4), gpus.create(GPU(0), "1g.10gb", 0)
    assert first.startswith("MIG-") and first != second and gpus.instances(GPU(0)) == (0, 4)
    with pytest.raises(SourceError, match="nvmlDeviceCreateGpuInstance"):
        gpus.create(GPU(0), "4g.40gb", 0)
    assert gpus.destroy(GPU(0), 0) and gpus.instances(GPU(0)) == (4,)
    assert not gpus.destroy(GPU(0), 0)
    assert gpus.create(GPU(0), "4g.40gb", 0) not in (first, second)


@pytest.mark.parametrize("place", [("3g.40gb", 2), ("2g.20gb", 6), ("5g.40gb", 0)])
def test_an_impossible_instance_is_refused_with_the_gpu(gpus: MigGpus, place: tuple[str, int]) -> None:
    with pytest.raises(SourceError, match=GPU(1)):
        gpus.create(GPU(1), *place)
    assert gpus.instances(GPU(1)) == ()


def test_a_gpu_instance_without_compute_instance_is_removed_again(gpus: MigGpus, nvml: FakeNvml) -> None:
    nvml.set_call("nvmlGpuInstanceCreateComputeInstance", NO_PERMISSION)
    with pytest.raises(SourceError, match="must run as root"):
        gpus.create(GPU(0), "1g.10gb", 0)
    assert gpus.instances(GPU(0)) == ()


def test_an_instance_in_use_is_not_destroyed(gpus: MigGpus, nvml: FakeNvml) -> None:
    gpus.create(GPU(0), "1g.10gb", 0)
    nvml.add_process(0, 4711, 1 << 20, gpu_instance=1)
    with pytest.raises(SourceError, match="nvmlComputeInstanceDestroy"):
        gpus.destroy(GPU(0), 0)
    nvml.clear_processes()
    assert gpus.destroy(GPU(0), 0)


# --- the backend -----------------------------------------------------------------------------------------------------


def test_each_rank_gets_its_own_instance_for_the_time_of_the_attempt(gangs: LocalGangs, gpus: MigGpus) -> None:
    (node,) = gangs.backend.nodes()
    assert {one.name for one in node.mig_profiles} == {one.name for one in MODELS["H100-80GB"]}
    gangs.backend.apply(action(PRINT, "1g.10gb", (0, 6), (0, 5), (1, 6)))
    assert gpus.instances(GPU(0)) == (5, 6) and gpus.instances(GPU(1)) == (6,)
    gangs.wait_for(AttemptEnded)
    seen = [gangs.log(rank).strip() for rank in range(3)]
    assert len(set(seen)) == 3 and all(one.startswith("MIG-") for one in seen)
    assert gpus.instances(GPU(0)) == gpus.instances(GPU(1)) == ()
    assert not list((gangs.state_folder / "mig").iterdir())


def test_a_rank_on_a_whole_gpu_gets_one_instance_with_all_slices(gangs: LocalGangs, gpus: MigGpus) -> None:
    gangs.backend.apply(action(PRINT, "", (1, 0)))
    with pytest.raises(SourceError):
        gpus.create(GPU(1), "1g.10gb", 6)
    gangs.wait_for(AttemptEnded)
    assert gangs.log(0).startswith("MIG-") and gpus.instances(GPU(1)) == ()


def test_a_refused_instance_leaves_none_of_the_gang(gangs: LocalGangs, gpus: MigGpus) -> None:
    gangs.backend.apply(action(WAIT, "7g.80gb", (1, 0)))
    with pytest.raises(BackendError, match=GPU(1)):
        gangs.backend.apply(action(PRINT, "1g.10gb", (0, 0), (1, 6), job_id="j-2"))
    assert gpus.instances(GPU(0)) == ()
    gangs.stop(0.0, "SIGKILL")
    gangs.wait_for(AttemptEnded)
    assert gpus.instances(GPU(1)) == ()


def test_a_restarted_controller_keeps_instances_of_running_attempts(gangs: LocalGangs, gpus: MigGpus) -> None:
    gangs.backend.apply(action(WAIT, "2g.20gb", (0, 0)))
    gangs.wait_for(AttemptRunning)
    gangs.restart_controller()
    gangs.wait_for(AttemptRunning)
    assert gpus.instances(GPU(0)) == (0,)
    gangs.stop(0.0, "SIGKILL")
    gangs.wait_for(AttemptEnded)
    assert gpus.instances(GPU(0)) == ()


def test_an_instance_in_use_is_destroyed_by_a_later_observation(
    gangs: LocalGangs, gpus: MigGpus, nvml: FakeNvml
) -> None:
    gangs.backend.apply(action(PRINT, "1g.10gb", (0, 0)))
    nvml.add_process(0, 4711, 1 << 20, gpu_instance=1)
    gangs.wait_for(AttemptEnded)
    gangs.backend.observe([])
    assert gpus.instances(GPU(0)) == (0,)
    gangs.restart_controller()
    nvml.clear_processes()
    gangs.backend.observe([])
    assert gpus.instances(GPU(0)) == ()


KILLED = """
import os, sys
from pathlib import Path
from agent.sources.nvml.nvml_mig import MigGpus
from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode
from tests.backends.test_mig_instances import GPU, WAIT, action

class Killed(MigGpus):
    def create(self, *place):
        found = super().create(*place)
        os.kill(os.getpid(), 9)

backend = LocalBackend(Path(sys.argv[1]), [LocalNode("n0", 2, (GPU(0), GPU(1)))], mig=Killed(sys.argv[2]))
backend.apply(action(WAIT, "1g.10gb", (0, 0), (1, 0)))
"""


def test_a_controller_killed_while_it_creates_instances_leaks_none(library: Path, tmp_path: Path) -> None:
    control, state = tmp_path / "control", tmp_path / "state"
    environment = {**os.environ, "GANGWATCH_FAKE_NVML_CONTROL": str(control)}
    prepare = "import sys; from pathlib import Path; from tests.fakes.nvml.control import FakeNvml\n"
    prepare += "f = FakeNvml(Path(sys.argv[2]), Path(sys.argv[1])); f.reset(); f.set_mig(0, 3); f.set_mig(1, 3)"
    subprocess.run([sys.executable, "-c", prepare, str(control), str(library)], check=True, env=environment)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(state), str(library)], env=environment)
    assert killed.returncode == -9
    after = (
        "import sys; from pathlib import Path; from agent.sources.nvml.nvml_mig import MigGpus\n"
        "from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode\n"
        "from tests.backends.test_mig_instances import GPU\n"
        "gpus = MigGpus(sys.argv[2]); print(gpus.instances(GPU(0)), gpus.instances(GPU(1)))\n"
        "backend = LocalBackend(Path(sys.argv[1]), [LocalNode('n0', 2, (GPU(0), GPU(1)))], mig=gpus)\n"
        "backend.observe([]); print(gpus.instances(GPU(0)), gpus.instances(GPU(1)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", after, str(state), str(library)], env=environment, check=True, capture_output=True
    )
    assert found.stdout.decode().split("\n")[:2] == ["(0,) ()", "() ()"]


def test_a_gpu_without_mig_mode_or_with_unknown_instances_is_refused(gpus: MigGpus, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"nvidia-smi -i GPU-.* -mig 1"):
        LocalGangs(tmp_path, [LocalNode("n0", 1, (GPU(2),))], mig=gpus)
    gpus.create(GPU(0), "1g.10gb", 0)
    with pytest.raises(BackendError, match="not created"):
        LocalGangs(tmp_path, [LocalNode("n0", 1, (GPU(0),))], mig=gpus)
    gpus.destroy(GPU(0), 0)


def test_a_backend_without_mig_refuses_a_profile(tmp_path: Path) -> None:
    gangs = LocalGangs(tmp_path, [LocalNode("n0", 1, (GPU(0),))])
    with pytest.raises(BackendError, match="not divided by MIG"):
        gangs.backend.apply(action(PRINT, "1g.10gb", (0, 0)))
