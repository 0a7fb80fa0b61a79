"""Default name of a job: the program that it runs, not the interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?")
_PYTHON_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Command-line options of Python that take a value."""

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "uv", "poetry"}
)
"""Programs that run another program. The first argument that is a script counts as the program that they run."""

_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "gangwatch.torch"}
)
_MPI_MODULE = "gangwatch.mpi"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SCRIPT = re.compile(r".*\.(py|sh|bash)", re.DOTALL)
_MOST = 200
"""Maximum length of a job's name that the controller accepts, in characters."""


def name_of(command: Sequence[str]) -> str:
    """Return a name for the command.

    For example, `train` for `python -u train.py`, `pkg.mod` for `python -m pkg.mod`, and `bash` for `bash -c ...`.
    """
    name = _name(list(command)) or Path(command[0]).name or command[0]
    # A name is shown in tables and pages: one line of plain characters.
    return "".join(character for character in name if character.isprintable())[:_MOST] or "job"


def _name(command: list[str]) -> str:
    program = Path(command[0]).name if command else ""
    rest = command[1:]
    if program == "env":
        return _name(list(_after_assignments(rest)))
    if _PYTHON.fullmatch(program):
        return _of_python(rest) or program
    if program in _SHELLS:
        return next((_stem(word) for word in rest[:1] if not word.startswith("-")), program)
    if program in _LAUNCHERS:
        return _of_launcher(rest) or program
    return _stem(program)


def _after_assignments(words: list[str]) -> list[str]:
    while words and (words[0].startswith("-") or _ASSIGNMENT.fullmatch(words[0])):
        words = words[2:] if words[0] in ("-u", "--unset", "-C", "--chdir") else words[1:]
    return words


def _of_python(words: list[str]) -> str:
    while words:
        word, *words = words
        if word == "-m" and words:
            if words[0] == _MPI_MODULE:
                return _name(words[3:] if words[1:2] == ["--mpirun"] else words[1:]) or words[0]
            return (_of_launcher(words[1:]) or words[0]) if words[0] in _LAUNCHER_MODULES else words[0]
        if word.startswith("-m") and len(word) > 2:
            return word[2:]
        if word == "-" or (word.startswith("-") and not word.startswith("--") and word[-1:] == "c"):
            return ""  # the program is an argument or standard input, without a name
        if word in _PYTHON_WITH_VALUE:
            words = words[1:]
        elif not word.startswith("-"):
            return _stem(word)
    return ""


def _of_launcher(words: list[str]) -> str:
    for position, word in enumerate(words):
        if word in ("-m", "--module") and position + 1 < len(words):
            return words[position + 1]
        if not word.startswith("-") and _SCRIPT.fullmatch(word):
            return _stem(word)
    return ""


def _stem(word: str) -> str:
    name = Path(word).name
    return Path(name).stem if _SCRIPT.fullmatch(name) and Path(name).stem else name
