"""Parser and formatter of host lists, Slurm's short form of node names: 'gpu[001-004,7],login1'. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST = 65_536
"""Slurm's limit on nodes of a cluster (MAX_SLURM_NODES): a longer list is damaged."""

MOST_BRACKETS = 8
"""Maximum number of brackets in one name; Slurm accepts five (HIGHEST_DIMENSIONS)."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the names, in order; none for '' and '(null)'. Raises ValueError for a malformed host list."""
    if text in ("", "(null)", "None assigned", "n/a", "N/A"):
        return ()
    names: list[str] = []
    for part in _parts(text):
        for name in _expand_one(part):
            names.append(name)
            if len(names) > MOST:
                raise ValueError(f"a host list of more than {MOST} names: {text[:60]!r}")
    return tuple(names)


def join(names: Iterable[str]) -> str:
    """Return the names as one string for Slurm's commands: separated by commas, without brackets."""
    return ",".join(names)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts of a host list between the commas outside brackets."""
    depth, begin = 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text[:60]!r} is not a host list: its brackets do not match")
        if character == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if depth:
        raise ValueError(f"{text[:60]!r} is not a host list: its brackets do not match")
    yield text[begin:]


def _expand_one(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if not part or not part.isprintable() or " " in part:
            raise ValueError(f"{part[:60]!r} is not a node name")
        yield part
        return
    if part.count("[") > MOST_BRACKETS:
        raise ValueError(f"{part[:60]!r} is not a host list: it has more than {MOST_BRACKETS} brackets")
    inside, _, tail = rest.partition("]")
    for word in inside.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError(f"{word[:60]!r} in {part[:60]!r} is neither a number nor a range")
        first, last = found[1], found[2] or found[1]
        if not int(first) <= int(last) < int(first) + MOST:
            raise ValueError(f"{word[:60]!r} in {part[:60]!r} is not a range")
        for number in range(int(first), int(last) + 1):
            # The tail has the second bracket of 'rack[1-2]node[1-4]'.
            yield from (f"{head}{number:0{len(first)}d}{end}" for end in (_expand_one(tail) if tail else ("",)))
