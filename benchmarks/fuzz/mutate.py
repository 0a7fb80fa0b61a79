"""Random damage to valid inputs: to bytes, to JSON-like trees, and to words of text.

`chance` makes every choice. Most inputs are whole documents with one or two errors, because a parser's first check
would refuse random bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**53, 2**63 - 1, 2**63,
    2**64 - 1, -(2**63), 0.5, -0.0, 1e-300, 1e300, 1.5, True, False,
)  # fmt: skip
"""Numbers at the limits of integer types, and numbers that only JSON accepts."""

TEXTS: tuple[str, ...] = (
    "", " ", "\n", "\r\n", "\t", "\0", "a", "a b", "a=b", "a,b", "a|b", "0", "00", "-1", "+1", "1_000", "1e3", "0x10",
    "\u0663", "\uff17", "NaN", "Infinity", "null", "(null)", "None", "N/A", "true", "%s", "%n", "../..", "/", "\\", '"',
    "'", "<script>", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1b[31m", "\x7f", "\u202e", "\ufeff",
    "\ufffd", "\xe9", "\U0001f469\u200d\U0001f52c", "a" * 300, "9" * 400, "9" * 5000, "[" * 60, "gpu[1-99999]",
    "gpu[0001-0003,7]", "gpu:h200:8(IDX:0-7)", "2026-11-22T10:00:00", "1-00:00:00",
)  # fmt: skip


def pick(chance: random.Random, *weighted: tuple[int, Any]) -> Any:
    """Return a random value from (weight, value) pairs."""
    return chance.choices([value for _, value in weighted], [weight for weight, _ in weighted])[0]


def value(chance: random.Random, depth: int = 2) -> Any:
    """Return a random value of a type that JSON has."""
    kind = chance.randrange(8 if depth else 6)
    if kind < 2:
        return chance.choice(NUMBERS)
    if kind < 4:
        return chance.choice(TEXTS)
    if kind == 4:
        return None
    if kind == 5:
        return chance.randrange(-(10**6), 10**6)
    if kind == 6:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): value(chance, depth - 1) for _ in range(chance.randrange(4))}


def tree(chance: random.Random, tree: Any, damages: int = 1) -> Any:
    """Return a copy of the tree in which some values are changed, removed, doubled or moved. damages: number of
    changes."""
    made = json.loads(json.dumps(tree))
    for _ in range(damages):
        made = _damaged(chance, made)
    return made


def _damaged(chance: random.Random, tree: Any) -> Any:
    """Change one random value in the tree."""
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.08:
        return _another(chance, tree)
    key = chance.choice(list(tree)) if isinstance(tree, dict) else chance.randrange(len(tree))
    what = chance.random()
    if what < 0.08:
        del tree[key]
    elif what < 0.13 and isinstance(tree, list):
        tree.append(json.loads(json.dumps(tree[key])))
    elif what < 0.16 and isinstance(tree, dict):
        tree[chance.choice(TEXTS)] = value(chance)
    elif what < 0.19 and isinstance(tree, dict):
        tree[key] = json.loads(json.dumps(tree[chance.choice(list(tree))]))
    else:
        tree[key] = _damaged(chance, tree[key])
    return tree


def _another(chance: random.Random, old: Any) -> Any:
    """Return a random value that differs from `old`, usually of the same type."""
    kind = chance.random()
    if kind < 0.3:
        return value(chance)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return chance.choice(NUMBERS) if kind < 0.7 else old + chance.choice((-1, 1, 1000))
    if isinstance(old, str):
        return text(chance, old)
    return value(chance)


def text(chance: random.Random, old: str) -> str:
    """Return the text with a random piece replaced, inserted, removed or doubled."""
    if not old or chance.random() < 0.2:
        return chance.choice(TEXTS)
    begin = chance.randrange(len(old))
    end = min(len(old), begin + chance.randrange(1, 8))
    middle = pick(chance, (4, chance.choice(TEXTS)), (2, ""), (2, old[begin:end] * 2), (1, str(chance.choice(NUMBERS))))
    return f"{old[:begin]}{middle}{old[end:]}"


def octets(chance: random.Random, data: bytes, damages: int = 1) -> bytes:
    """Return the bytes with some of them changed, inserted, removed or doubled, or cut off. damages: number of
    changes."""
    made = bytearray(data)
    for _ in range(damages):
        if not made:
            return chance.randbytes(chance.randrange(40))
        at = chance.randrange(len(made))
        what = chance.randrange(7)
        if what == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            made[at] = chance.choice((0, 1, 10, 32, 47, 58, 127, 128, 255))
        elif what == 2:
            made[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif what == 3:
            del made[at : at + chance.randrange(1, 9)]
        elif what == 4:
            made[at:at] = made[at : at + chance.randrange(1, 64)]
        elif what == 5:
            number = chance.choice((0, 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            made[at : at + 8] = number.to_bytes(8, "little")[: max(1, min(8, len(made) - at))]
        elif chance.random() < 0.4:
            del made[at:]
        else:
            made[at] = chance.randrange(256)
    return bytes(made)


def lines(chance: random.Random, text_of: bytes, damages: int = 1) -> bytes:
    """Return text in which words or lines are changed, removed, doubled or moved. damages: number of changes."""
    made = text_of.split(b"\n")
    for _ in range(damages):
        at = chance.randrange(len(made))
        what = chance.randrange(8)
        words = made[at].split(b" ")
        where = chance.randrange(len(words))
        if what == 0:
            del made[at]
            if not made:
                return b""
        elif what == 1:
            made.insert(at, made[chance.randrange(len(made))])
        elif what == 2:
            del words[where]
            made[at] = b" ".join(words)
        elif what == 3:
            words.insert(where, chance.choice(words))
            made[at] = b" ".join(words)
        elif what == 4:
            made[at] = octets(chance, made[at])
        else:
            old = words[where].decode("utf-8", "replace")
            words[where] = text(chance, old).encode("utf-8", "replace")
            made[at] = b" ".join(words)
    return b"\n".join(made)


def one_of(chance: random.Random, samples: Sequence[bytes], damage: Any = octets) -> bytes:
    """Return one of the samples, unchanged or with one to three changes. damage: function that makes the changes."""
    sample = chance.choice(samples)
    damages = pick(chance, (1, 0), (5, 1), (2, 2), (1, 3))
    made: bytes = damage(chance, sample, damages) if damages else sample
    return made
