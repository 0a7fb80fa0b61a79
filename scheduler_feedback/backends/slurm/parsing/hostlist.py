"""Host lists: Slurm's short form of many node names, 'gpu[001-004,7],login1', and back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST = 65_536
"""More nodes than Slurm counts in a cluster (MAX_SLURM_NODES): a longer list is damaged, not large."""

MOST_BRACKETS = 8
"""In one name: Slurm takes five (HIGHEST_DIMENSIONS)."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(text: str) -> tuple[str, ...]:
    """The names, in order. '' and '(null)' are none. Raises ValueError for what is no host list."""
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
    """The names as Slurm's commands take them; they need no short form."""
    return ",".join(names)


def _parts(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, begin = 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text[:60]!r} is no host list: its brackets do not match")
        if character == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if depth:
        raise ValueError(f"{text[:60]!r} is no host list: its brackets do not match")
    yield text[begin:]


def _expand_one(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if not part or not part.isprintable() or " " in part:
            raise ValueError(f"{part[:60]!r} is no name of a node")
        yield part
        return
    if part.count("[") > MOST_BRACKETS:
        raise ValueError(f"{part[:60]!r} is no host list: it has more than {MOST_BRACKETS} brackets")
    inside, _, tail = rest.partition("]")
    for word in inside.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError(f"{word[:60]!r} in {part[:60]!r} is no number and no range")
        first, last = found[1], found[2] or found[1]
        if not int(first) <= int(last) < int(first) + MOST:
            raise ValueError(f"{word[:60]!r} in {part[:60]!r} is no range")
        for number in range(int(first), int(last) + 1):
            # A second bracket ('rack[1-2]node[1-4]') is in the tail.
            yield from (f"{head}{number:0{len(first)}d}{end}" for end in (_expand_one(tail) if tail else ("",)))
