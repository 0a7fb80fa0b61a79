"""Default names of jobs that are submitted without --name."""

from __future__ import annotations

import pytest

from gangwatch.display.job_name import name_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --steps 9", "train"),
        ("/usr/bin/python3.12 -u -X dev -W error ./src/train_dp.py", "train_dp"),
        ("python -m pkg.mod --help", "pkg.mod"),
        ("python -mpkg.mod", "pkg.mod"),
        ("python -c pass", "python"),
        ("python -Ic pass", "python"),
        ("python", "python"),
        ("python -", "python"),
        ("torchrun --nproc-per-node 4 --rdzv-backend c10d x.py --y z.py", "x"),
        ("torchrun --nnodes=2 -m pkg.train", "pkg.train"),
        ("torchrun", "torchrun"),
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", "t"),
        ("accelerate launch --num_processes 2 tune.py", "tune"),
        ("bash -c 'sleep 1'", "bash"),
        ("bash run.sh 3", "run"),
        ("sh ./prepare", "prepare"),
        ("./train.py", "train"),
        ("env A=1 -u B python train.py", "train"),
        ("/opt/bin/solve", "solve"),
        (".py", ".py"),
    ],
)
def test_the_default_name_is_the_program(command: str, name: str) -> None:
    import shlex

    assert name_of(shlex.split(command)) == name


@pytest.mark.parametrize("command", [["/"], [""], ["\x07"], ["a\u202eb"], ["x" * 500]])
def test_every_command_gives_a_plain_name(command: list[str]) -> None:
    name = name_of(command)
    assert 1 <= len(name) <= 200
    assert name.isprintable()
