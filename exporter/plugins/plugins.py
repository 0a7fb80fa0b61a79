"""Additional metrics in /metrics: those of this process, of plug-ins, and of a folder of text files.

Failed or late plug-ins and families with invalid or duplicate names are left out, counted and logged. All other
metrics are still served.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint

from prometheus_client.metrics_core import Metric

from agent.schema.sample import Sample
from exporter.plugins.collector_thread import COLLECT_SECONDS, CollectorThread, NotInTimeError
from exporter.plugins.entry_points import Plugin, PluginError, found_plugins
from exporter.plugins.metric_check import InvalidMetricError, checked, claims, claims_of, in_words, key_of
from exporter.plugins.textfiles import Textfile, TextfileFolder
from exporter.prometheus.library_format import ProcessMetrics, family_text, sample_families

log = logging.getLogger(__name__)

Labels = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one plug-in or text file in one response to /metrics.

    kind: 'plugin' or 'textfile'. series: number of its series in the response. error: what is left out, and why; ''
    if nothing is. seconds: duration of the plug-in's last collection. mtime_s: time of the file's last change, in
    seconds since 1970.
    """

    kind: str
    name: str
    series: int
    error: str = ""
    seconds: float = 0.0
    mtime_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Collected:
    """Valid families of one plug-in, and one error message for each family that is invalid."""

    families: tuple[Metric, ...]
    errors: tuple[str, ...]


class Plugins:
    """Metrics of this process, of plug-ins and of text files, for the process's /metrics. Thread-safe."""

    def __init__(
        self,
        textfile_folder: str = "",
        deny: Iterable[str] = (),
        entries: Mapping[str, EntryPoint] | None = None,
        process: bool = True,
    ) -> None:
        """Find the installed collectors; they are loaded at the first request of /metrics.

        deny: globs of metric names to leave out. entries: the collectors; None for the installed ones. process:
        whether the page has the metrics of this process.
        """
        self._lock = threading.Lock()
        found = found_plugins() if entries is None else entries
        self._threads = {name: _plugin_thread(name, entry) for name, entry in found.items()}
        self._process = ProcessMetrics() if process else None
        self._folder, self._deny = "", tuple(deny)
        self._textfiles: CollectorThread[list[Textfile]] | None = None
        self._texts: dict[
            bool, tuple[list[Metric], bytes]
        ] = {}  # by format: the families of the last page, and its text
        # By format, without plug-ins and text files: the process's families, the taken names, and their page.
        self._own_texts: dict[bool, tuple[object, object, bytes]] = {}
        self._failures: Counter[str] = Counter()
        self._errors: dict[tuple[str, str], str] = {}
        self.use(textfile_folder, deny)

    def use(self, textfile_folder: str, deny: Iterable[str]) -> None:
        """Apply another folder of text files, and other globs of excluded metric names."""
        with self._lock:
            self._deny = tuple(deny)
            self._own_texts = {}
            if textfile_folder == self._folder:
                return
            if self._textfiles is not None:
                self._textfiles.stop()
            self._folder = textfile_folder
            self._textfiles = (
                CollectorThread("textfile", TextfileFolder(textfile_folder).read) if textfile_folder else None
            )

    def start(self) -> None:
        """Load the collectors, each in its thread. Does not wait."""
        for thread in self._threads.values():
            thread.request()

    def stop(self) -> None:
        """End the threads. A collector that is blocked is abandoned."""
        with self._lock:
            textfiles = self._textfiles
        for thread in self._threads.values():
            thread.stop()
        if textfiles is not None:
            textfiles.stop()

    def text(self, open_metrics: bool, taken: Iterable[str], labels: Labels = ()) -> bytes:
        """Return the additional families as text, without an end marker. Waits for collectors up to COLLECT_SECONDS.

        taken: names of families that the response contains already. labels: added to gangwatch's samples about the
        plug-ins. Never raises.
        """
        if self._process is None or self._threads or self._textfiles is not None:
            return self._rendered(open_metrics, taken, labels)
        # Nothing but the process's own metrics, which are read every ten seconds: mostly the text is known.
        own_texts, own = self._own_texts, self._own_families()
        known = own_texts.get(open_metrics)
        if known is not None and own is not None and known[0] is own and known[1] is taken:
            return known[2]
        text = self._rendered(open_metrics, taken, labels)
        own_texts[open_metrics] = own, taken, text
        return text

    def _own_families(self) -> object:
        """Return the object with the process's families, which stays the same until they are read again; None if
        reading them fails."""
        try:
            return self._process.collect() if self._process is not None else None
        except Exception:
            return None

    def _rendered(self, open_metrics: bool, taken: Iterable[str], labels: Labels) -> bytes:
        families = self.families(taken, labels)
        kept = self._texts.get(open_metrics)
        if kept is not None and list(map(id, kept[0])) == list(map(id, families)):
            return kept[1]
        try:
            text = family_text(families, open_metrics)
        except Exception:  # checked families do not raise; this is for another release of prometheus_client
            text = b"".join(_text_of(family, open_metrics) for family in families)
        self._texts[open_metrics] = families, text
        return text

    def families(self, taken: Iterable[str], labels: Labels = ()) -> list[Metric]:
        """Return the additional families. Waits, and takes the same arguments, as ``text`` does."""
        page, reports = self._collect(taken)
        return [*page.families, *self._about(reports, labels)]

    def reports(self, taken: Iterable[str] = ()) -> list[Report]:
        """Collect once and return the outcome of each plug-in and file."""
        return self._collect(taken)[1]

    # --- one page ----------------------------------------------------------------------------------------------------

    def _collect(self, taken: Iterable[str]) -> tuple[_Page, list[Report]]:
        with self._lock:
            folder, textfiles, page = self._folder, self._textfiles, _Page(taken, self._deny)
        calls = {name: thread.request() for name, thread in self._threads.items()}
        call = textfiles.request() if textfiles is not None else 0
        if self._process is not None:
            try:
                page.add_all("the process", self._process.collect())
            except Exception as error:
                self._note(("process", "process_* and python_*"), _in_words(error))
        reports = [self._plugin(name, calls[name], page) for name in self._threads]
        if textfiles is not None:
            reports += _files(folder, textfiles, call, page)
        for report in reports:
            self._note((report.kind, report.name), report.error)
        return page, reports

    def _plugin(self, name: str, call: int, page: _Page) -> Report:
        thread = self._threads[name]
        try:
            found = thread.result(call)
        except BaseException as error:  # other code may raise anything
            return Report("plugin", name, 0, _in_words(error), thread.seconds)
        series, errors = page.add_all(f"the plug-in {name}", found.families)
        return Report("plugin", name, series, "; ".join((*found.errors, *errors)), thread.seconds)

    def _note(self, key: tuple[str, str], error: str) -> None:
        """Store the error of a plug-in or text file ('' if there was none), and count the failures of plug-ins.

        Log the error only if it differs from the error in the previous response to /metrics.
        """
        kind, name = key
        with self._lock:
            before = self._errors.get(key, "")
            self._errors[key] = error
            self._failures[name] += bool(error) and kind == "plugin"
        # Digits differ from page to page, for example the seconds of a blocked collector.
        if error and _without_digits(error) != _without_digits(before):
            log.warning("%s=%s reason=%s: left out of /metrics", kind, name, error)
        elif before and not error:
            log.info("%s=%s: served in full again", kind, name)

    def _about(self, reports: Iterable[Report], labels: Labels) -> list[Metric]:
        with self._lock:
            failures, deny = Counter(self._failures), self._deny
        families = sample_families(_samples(reports, failures), labels)
        return [family for family in families if not _denied(family, deny)]


class _Page:
    """The additional families of one response to /metrics. Text files may add series to each other's families."""

    def __init__(self, taken: Iterable[str], deny: Sequence[str]) -> None:
        self.families: list[Metric] = []
        self._deny = deny
        self._owners = dict.fromkeys(claims_of(frozenset(taken)), "gangwatch")
        self._shared: dict[str, Metric] = {}

    def add_all(self, owner: str, families: Iterable[Metric], shared: bool = False) -> tuple[int, list[str]]:
        """Add the families; return the number of series added, and an error message for each invalid family.

        owner: name of the plug-in or file, for error messages. shared: whether other owners that set it too may add
        series to these families.
        """
        series, errors = 0, []
        for family in families:
            if _denied(family, self._deny):
                continue
            try:
                self._add(owner, family, shared)
                series += len(family.samples)
            except InvalidMetricError as error:
                errors.append(str(error))
        return series, errors

    def _add(self, owner: str, family: Metric, shared: bool) -> None:
        known = self._shared.get(family.name) if shared else None
        if known is not None and known.type == family.type:
            before = {key_of(sample) for sample in known.samples}
            for sample in family.samples:
                if key_of(sample) in before:
                    raise InvalidMetricError(f"{family.name}: duplicate series {in_words(key_of(sample))}")
            known.samples.extend(family.samples)
            return
        names = claims(family)
        for name in names:
            if name in self._owners:
                raise InvalidMetricError(f"{family.name}: duplicate metric, {self._owners[name]} has it already")
        self._owners.update(dict.fromkeys(names, owner))
        if shared:
            family = _copy(family)
            self._shared[family.name] = family
        self.families.append(family)


def _plugin_thread(name: str, entry: EntryPoint) -> CollectorThread[_Collected]:
    plugin = Plugin(entry)

    def collect() -> _Collected:
        families: list[Metric] = []
        errors: list[str] = []
        for one in plugin.collect():
            try:
                families.append(checked(one))
            except InvalidMetricError as error:
                errors.append(str(error))
        return _Collected(tuple(families), tuple(errors))

    return CollectorThread(name, collect)


def _files(folder: str, thread: CollectorThread[list[Textfile]], call: int, page: _Page) -> list[Report]:
    try:
        files = thread.result(call)
    except BaseException as error:
        return [Report("textfile", folder, 0, _in_words(error))]
    reports = []
    for file in files:
        series, errors = page.add_all(f"the file {file.path}", file.families, shared=True)
        left_out = "; ".join(filter(None, (file.error, *errors)))
        reports.append(Report("textfile", file.path, series, left_out, mtime_s=file.mtime_s))
    return reports


def _samples(reports: Iterable[Report], failures: Mapping[str, int]) -> Iterator[Sample]:
    for report in reports:
        if report.kind == "textfile":
            label = (("file", report.name),)
            yield "gangwatch_textfile_scrape_error", label, float(bool(report.error))
            if report.mtime_s is not None:
                yield "gangwatch_textfile_mtime_seconds", label, report.mtime_s
            continue
        label = (("plugin", report.name),)
        yield "gangwatch_plugin_success", label, float(not report.error)
        yield "gangwatch_plugin_failures_total", label, float(failures.get(report.name, 0))
        yield "gangwatch_plugin_series", label, float(report.series)
        yield "gangwatch_plugin_duration_seconds", label, report.seconds


def _denied(family: Metric, deny: Sequence[str]) -> bool:
    return bool(deny) and any(fnmatchcase(name, pattern) for name in claims(family) for pattern in deny)


def _copy(family: Metric) -> Metric:
    found = Metric(family.name, family.documentation, family.type, family.unit)
    found.samples = list(family.samples)
    return found


def _text_of(family: Metric, open_metrics: bool) -> bytes:
    try:
        return family_text([family], open_metrics)
    except Exception as error:
        log.warning("metric=%s reason=%s: left out of /metrics", family.name, _in_words(error))
        return b""


def _in_words(error: BaseException) -> str:
    if isinstance(error, PluginError | NotInTimeError | InvalidMetricError):
        return str(error)[:500]
    return f"collect() raised {type(error).__name__}: {error}"[:500]


def _without_digits(text: str) -> str:
    return text.translate(_NO_DIGITS)


_NO_DIGITS = {ord(digit): None for digit in "0123456789"}

__all__ = ["COLLECT_SECONDS", "Plugins", "Report"]
