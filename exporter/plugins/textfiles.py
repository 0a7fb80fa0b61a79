"""A folder of *.prom files in Prometheus text, as the textfile collector of node_exporter reads it.

A program writes a file under another name and renames it, so that no reader sees half of it. A file that can't be read
is left out as a whole.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from exporter.plugins.metric_check import InvalidMetricError, checked

SUFFIX = ".prom"

MOST_BYTES = 1024 * 1024
"""Maximum size of a file in bytes. The series of a whole node take 0.7 MB."""

MOST_FILES = 256
"""Maximum number of files in the folder."""

_COUNTER = re.compile(r"^#[ \t]+TYPE[ \t]+(\S+)[ \t]+counter[ \t\r]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Textfile:
    """One *.prom file, or the folder if that can't be read.

    mtime_s: time of the last change, in seconds since 1970; None if unknown. error: why it is left out; '' if it is
    served.
    """

    path: str
    mtime_s: float | None
    families: tuple[Metric, ...] = ()
    error: str = ""


@dataclass(slots=True)
class TextfileFolder:
    """Reader of a folder. A file is parsed again if its inode, size or time of change differs."""

    folder: str
    _known: dict[str, tuple[tuple[int, ...], Textfile]] = field(default_factory=dict)

    def read(self) -> list[Textfile]:
        """Return the files of the folder, sorted by name."""
        try:
            paths = sorted(path for path in Path(self.folder).iterdir() if path.name.endswith(SUFFIX))
        except OSError as error:
            return [Textfile(self.folder, None, (), f"can't list the folder: {error.strerror}")]
        more = []
        if len(paths) > MOST_FILES:
            more = [Textfile(self.folder, None, (), f"{len(paths)} files; only the first {MOST_FILES} are read")]
        known, self._known = self._known, {}
        found = [self._file(str(path), known) for path in paths[:MOST_FILES]]
        return [*(file for file in found if file is not None), *more]

    def _file(self, path: str, known: dict[str, tuple[tuple[int, ...], Textfile]]) -> Textfile | None:
        try:
            # A pipe must not block, so O_NONBLOCK.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if not Path(path).is_symlink():
                return None  # removed since the folder was listed
            return Textfile(path, None, (), "the symbolic link leads to no file")
        except OSError as error:
            return Textfile(path, None, (), f"can't open the file: {error.strerror}")
        try:
            facts = os.fstat(descriptor)
            key = facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
            kept = known.get(path)
            if kept is None or kept[0] != key:
                kept = key, _parsed(path, descriptor, facts)
            self._known[path] = kept
            return kept[1]
        finally:
            os.close(descriptor)


def _parsed(path: str, descriptor: int, facts: os.stat_result) -> Textfile:
    mtime_s = facts.st_mtime_ns / 1e9
    if not stat.S_ISREG(facts.st_mode):
        return Textfile(path, mtime_s, (), "not a regular file")
    if facts.st_size > MOST_BYTES:
        return Textfile(path, mtime_s, (), f"{facts.st_size} bytes, the limit is {MOST_BYTES}")
    try:
        with open(os.dup(descriptor), "rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
    except OSError as error:
        return Textfile(path, mtime_s, (), f"can't read the file: {error.strerror}")
    except UnicodeDecodeError as error:
        return Textfile(path, mtime_s, (), f"byte {error.start} is not UTF-8")
    try:
        return Textfile(path, mtime_s, tuple(parsed_families(text)))
    except InvalidMetricError as error:
        return Textfile(path, mtime_s, (), str(error)[:300])
    except Exception as error:  # prometheus_client's parser raises several kinds for malformed text
        return Textfile(path, mtime_s, (), f"{_bad_line(text)}{str(error)[:300] or type(error).__name__}")


def _bad_line(text: str) -> str:
    """Return the number of the first line that can't be parsed, as the start of a message; '' if there is none."""
    for number, line in enumerate(text.split("\n"), 1):
        try:
            list(text_string_to_metric_families(f"{line}\n"))
        except Exception:
            return f"line {number}: "
    return ""


def parsed_families(text: str) -> Iterable[Metric]:
    """Return the checked families of a text. Raises ValueError for a malformed text or an invalid family.

    A counter whose name does not end with _total gets the type `unknown`, since OpenMetrics does not allow it as a
    counter.
    """
    bare = {name for name in _COUNTER.findall(text) if not name.endswith("_total")}
    families: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text if text.endswith("\n") else f"{text}\n"):
        if family.type == "counter" and family.name in bare:
            family = _uncounted(family)
        if any(sample.timestamp is not None for sample in family.samples):
            raise InvalidMetricError(f"{family.name}: samples of a file must not have timestamps")
        if not family.samples:
            continue
        known = families.setdefault(family.name, family)
        if known is not family:  # the lines of a family need not be together
            if known.type != family.type and family.type != "unknown":
                raise InvalidMetricError(f"{family.name}: declared as {known.type} and as {family.type}")
            known.samples.extend(family.samples)
    return [checked(family) for family in families.values()]


def _uncounted(family: Metric) -> Metric:
    found = Metric(family.name, family.documentation, "unknown")
    found.samples = [Sample(sample.name.removesuffix("_total"), *sample[1:]) for sample in family.samples]
    return found
