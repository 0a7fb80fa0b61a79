"""Parser of /proc/PID/mountstats: operations of each NFS mount and their times.

The format is in fs/nfs/super.c (nfs_show_stats) and net/sunrpc/stats.c (rpc_clnt_show_stats) of the kernel. Times are
in milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from agent.schema.errors import SourceError


class Operation(NamedTuple):
    """Statistics of one operation, such as READ, of an NFS mount.

    transmissions: number of transmissions, including retransmissions.
    """

    operations: int
    transmissions: int
    timeouts: int
    queue_ms: int
    response_ms: int
    execute_ms: int


class NfsMount(NamedTuple):
    """One NFS mount. export: server:/path. operations: statistics by the operation's name, such as READ or GETATTR."""

    export: str
    mount: str
    read_bytes: int
    written_bytes: int
    operations: dict[str, Operation]


def parse_mountstats(data: bytes) -> list[NfsMount]:
    """Return the NFS mounts in file order. Raise SourceError for malformed lines.

    If a mount point has several mounts, return only the last mount, which is the visible one.
    """
    mounts: dict[str, NfsMount] = {}
    mount: NfsMount | None = None
    in_operations = False
    for line in data.split(b"\n"):
        if line.startswith(b"device "):
            mount = _parse_device(line)
            in_operations = False
            if mount is not None:
                mounts[mount.mount] = mount
            continue
        if mount is None or not line.startswith((b"\t", b" ")):
            continue
        key, colon, rest = line.strip().partition(b":")
        if in_operations:
            mount.operations[_text(key)] = _operation(line, rest)
        elif key == b"bytes" and colon:
            numbers = _numbers(line, rest, 8)
            mount = mounts[mount.mount] = mount._replace(read_bytes=numbers[4], written_bytes=numbers[5])
        elif line.strip() == b"per-op statistics":
            in_operations = True
    return list(mounts.values())


def _parse_device(line: bytes) -> NfsMount | None:
    """Parse the first line of a mount in mountstats. Return None if the mount is not NFS or has no statistics."""
    device, separator, rest = line.removeprefix(b"device ").partition(b" mounted on ")
    path, _, kind = rest.rpartition(b" with fstype ")
    words = kind.split()
    if not separator or len(words) < 2 or not words[0].startswith(b"nfs") or not words[1].startswith(b"statvers="):
        return None
    return NfsMount(_text(device), _text(path), 0, 0, {})


def _text(escaped: bytes) -> str:
    """Unescape a text of mountstats.

    The kernel writes blanks, tabs, line ends and backslashes as octal numbers: \\ooo (seq_escape).
    """
    text = escaped.decode("utf-8", "replace")
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _numbers(line: bytes, words: bytes, least: int) -> list[int]:
    numbers = words.split()
    if len(numbers) < least or not all(number.isdigit() and len(number) <= 20 for number in numbers):
        raise SourceError(f"mountstats: {line[:80]!r}")
    return [int(number) for number in numbers]


def _operation(line: bytes, words: bytes) -> Operation:
    # Operations, transmissions, timeouts, bytes sent, bytes received, then queue, response and execution in
    # milliseconds; since Linux 5.3 a ninth number for errors.
    numbers = _numbers(line, words, 8)
    return Operation(numbers[0], numbers[1], numbers[2], numbers[5], numbers[6], numbers[7])
