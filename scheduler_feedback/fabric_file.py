"""Reader of the file that maps nodes to switches: Slurm's topology.conf, or TOML to distinguish rails.

topology.conf (see its man page): lines ``SwitchName=leaf1 Nodes=n[01-16]`` define leaf switches. Lines with
``Switches=`` connect leaves, and are ignored, because no detector needs them. TOML: one table per leaf::

    [[leaf]]
    name = "leaf-0"
    nodes = "n[01-32]"
    rail = 0          # if each rail of a node has its own leaf switch
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from agent.schema.errors import ConfigError
from scheduler_feedback.core.fabric import ALL_RAILS, Fabric, Leaf

MOST_NODES = 1 << 20
"""Maximum number of nodes in a list. No cluster has as many: a range such as [0-999999999] is a mistake."""

MOST_DIGITS = 18
"""Maximum number of digits of a number in a node's name."""

_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class _Leaf(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    nodes: str
    rail: Annotated[int, msgspec.Meta(ge=ALL_RAILS)] = ALL_RAILS


class _File(msgspec.Struct, forbid_unknown_fields=True):
    leaf: list[_Leaf]


def read_fabric(path: Path) -> Fabric:
    """Return the fabric that the file describes. Raises ConfigError with the name of the file, and the line or key."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return Fabric(_toml(text) if path.suffix == ".toml" else _slurm(text))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def nodes_of(text: str) -> Iterator[str]:
    """Yield the names in a node list in Slurm's notation: ``n[01-03,7],login``. Raises ValueError if the list is
    invalid."""
    left = MOST_NODES
    parts = _PART.findall(text)
    if ",".join(parts) != text.strip():
        raise ValueError(f"{text!r} is not a list of nodes")
    for part in parts:
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", part.strip()):
            ends = list(_numbers(ranges, left)) if ranges else [""]
            if len(names) * len(ends) > left:
                raise ValueError(f"{text[:60]!r} names more than {MOST_NODES} nodes")
            names = [name + literal + end for name in names for end in ends]
        left -= len(names)
        yield from names


def _numbers(ranges: str, most: int) -> Iterator[str]:
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one.strip())
        if found is None:
            raise ValueError(f"[{ranges}] is not a range of numbers")
        if len(found[1]) > MOST_DIGITS or len(found[2] or "") > MOST_DIGITS:
            raise ValueError(f"[{ranges[:60]}] has numbers of more than {MOST_DIGITS} digits")
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < first + most:
            raise ValueError(f"[{ranges}] is not a range of numbers, or has too many")
        yield from (f"{number:0{len(found[1])}}" for number in range(first, last + 1))


def _toml(text: str) -> Iterator[Leaf]:
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from None
    for leaf in file.leaf:
        yield Leaf(leaf.name, tuple(nodes_of(leaf.nodes)), leaf.rail)


def _slurm(text: str) -> Iterator[Leaf]:
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        fields = {key.lower(): value for key, separator, value in (word.partition("=") for word in words) if separator}
        if "switchname" not in fields or len(fields) != len(words):
            raise ValueError(f"line {number}: expected SwitchName=NAME Nodes=LIST, or Switches=LIST")
        if "nodes" in fields:
            try:
                yield Leaf(fields["switchname"], tuple(nodes_of(fields["nodes"])))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
