"""The lines of one layout as text, plain and compressed, at the cost of those that changed.

Everything but the numbers is rendered once. The text is kept in parts of some kilobytes, and a part in which nothing
changed is neither joined nor compressed again: raw deflate streams that end on a byte's bound (Z_FULL_FLUSH) can be put
together to one, between gzip's head and tail (RFC 1951 section 3.2.4, RFC 1952 section 2.3).

Of thousands of numbers, hundreds change every second. They are written by one call for all of a kind, not one each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.schema.frame import Frame, Layout
from exporter.series import Family, IntegerText, Render, View, gauge_text, gauge_texts, prefix
from exporter.windows import Derived

try:
    from isal import isal_zlib as deflate  # a third of zlib's time for this text, docs/adr/0018
except ImportError:  # on a processor that it is not built for
    import zlib as deflate  # type: ignore[no-redef]

PART_BYTES = 16 * 1024
"""Least size of a part: half of deflate's window, so that little of its compression is lost to the cut."""

GZIP_LEVEL = 1
"""Two thirds of level 6's time at nine tenths of its effect on this text; a scrape goes over a local network."""

_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
"""RFC 1952: deflate, no flags, no time, fastest, unknown system."""
_DEFLATE_END = b"\x03\x00"
"""An empty last block with fixed codes."""

_Mask = npt.NDArray[np.bool_]


class _Alike:
    """Lines whose numbers are written alike, and so all at once.

    lines: their places. sources: what feeds each, an index among the gauges or among the counters. write: gives texts.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], write: Callable[[Any], list[str]]) -> None:
        """pairs: line and source."""
        self.lines = np.array([line for line, _ in pairs], np.intp)
        self.sources = np.array([source for _, source in pairs], np.intp)
        self.write = write


class Lines:
    """The lines of one layout, and which column each is fed from."""

    def __init__(self, layout: Layout, view: View, families: list[Family], header: Callable[[Family], str]) -> None:
        self.layout_id = layout.layout_id
        self._structure = np.array(view.structure(), np.intp)
        self._derived: list[tuple[int, Derived, list[float | int | None]]] = [
            (first, one, [None] * one.outputs) for first, one in view.derived
        ]
        self._prefixes: list[str] = []
        self._renders: list[Render] = []
        self._pieces: list[str] = []  # of line i what stands before its number at 2i, and the number at 2i + 1
        self._family_of: list[int] = []
        self._header_at: list[int] = []
        self._headers: list[str] = []
        self._present: list[int] = [0] * len(families)
        self._bounds: list[int] = [0]
        fed: list[list[int]] = [[] for _ in range(view.sources)]
        size = 0
        for position, family in enumerate(families):
            if size >= PART_BYTES:
                self._bounds.append(len(self._prefixes))
                size = 0
            self._header_at.append(len(self._prefixes))
            self._headers.append(header(family))
            self._line("", _never, position)
            for row in family.rows:
                fed[row.source].append(len(self._prefixes))
                self._line(prefix(family.name, row.labels), row.render, position)
                size += len(self._prefixes[-1]) + 8
        self._bounds.append(len(self._prefixes))
        self._lines_of: list[tuple[int, ...]] = [tuple(lines) for lines in fed]
        parts = len(self._bounds) - 1
        self._part_of = np.repeat(np.arange(parts), np.diff(self._bounds))
        self._texts: list[bytes] = [b""] * parts
        self._deflated: list[bytes | None] = [None] * parts
        self._dirty: _Mask = np.ones(parts, np.bool_)
        self._find_alike(len(layout.gauges), len(layout.counters))
        self._gauges = np.full(len(layout.gauges), np.nan, np.float64)
        self._absent: _Mask = np.ones(len(layout.gauges), np.bool_)
        self._counters = np.zeros(len(layout.counters), np.uint64)
        self._valid: _Mask = np.zeros(len(layout.counters), np.bool_)
        self._packer = deflate.compressobj(GZIP_LEVEL, deflate.DEFLATED, -deflate.MAX_WBITS)

    def _line(self, before: str, render: Render, family: int) -> None:
        self._prefixes.append(before)
        self._renders.append(render)
        self._pieces += ("", "")
        self._family_of.append(family)

    def _find_alike(self, gauges: int, counters: int) -> None:
        """Sort the columns into those all of whose lines are written like others, and the rest."""
        alike_gauges: list[tuple[int, int]] = []
        alike_counters: dict[IntegerText, list[tuple[int, int]]] = {}
        self._gauge_is_alike: _Mask = np.zeros(gauges, np.bool_)
        self._counter_is_alike: _Mask = np.zeros(counters, np.bool_)
        for at in range(gauges):
            lines = self._lines_of[at]
            if all(self._renders[line] is gauge_text for line in lines):
                self._gauge_is_alike[at] = True
                alike_gauges.extend((line, at) for line in lines)
        for at in range(counters):
            lines = self._lines_of[gauges + at]
            renders = [self._renders[line] for line in lines]
            if all(isinstance(render, IntegerText) for render in renders):
                self._counter_is_alike[at] = True
                for line, render in zip(lines, renders, strict=True):
                    assert isinstance(render, IntegerText)
                    alike_counters.setdefault(render, []).append((line, at))
        self._alike_gauges = _Alike(alike_gauges, gauge_texts)
        self._alike_counters = [_Alike(pairs, render.all) for render, pairs in alike_counters.items()]

    @property
    def series(self) -> int:
        """Lines with a number."""
        return sum(self._present)

    @property
    def texts(self) -> Sequence[bytes]:
        """The exposition, in parts."""
        return self._texts

    def fits(self, layout: Layout, frame: Frame) -> bool:
        """Whether the lines are still the layout's, and every owner that they know is one, and no other."""
        if layout.layout_id != self.layout_id:
            return False
        if not len(self._structure):
            return True
        return bool(np.array_equal(np.isnan(frame.gauges[self._structure]), self._absent[self._structure]))

    # --- numbers -----------------------------------------------------------------------------------------------------

    def take(self, frame: Frame) -> None:
        """Render what changed since the frame before."""
        gauges, counters, valid = frame.gauges, frame.counters, frame.counters_valid
        # Bits, not numbers: NaN differs from itself, and an absent value that stays absent is no change.
        changed = gauges.view(np.int64) != self._gauges.view(np.int64)
        absent = np.isnan(gauges)
        at_once = changed & self._gauge_is_alike & ~(absent | self._absent | np.isinf(gauges))
        self._set_alike(self._alike_gauges, at_once, gauges)
        singly = np.flatnonzero(changed & ~at_once)
        self._set(singly.tolist(), gauges[singly].tolist())

        changed = valid & (counters != self._counters) | (valid != self._valid)
        at_once = changed & self._counter_is_alike & valid & self._valid
        for alike in self._alike_counters:
            self._set_alike(alike, at_once, counters)
        singly = np.flatnonzero(changed & ~at_once)
        values = [
            value if present else None
            for value, present in zip(counters[singly].tolist(), valid[singly].tolist(), strict=True)
        ]
        self._set((singly + len(gauges)).tolist(), values)
        self._gauges, self._absent, self._counters, self._valid = gauges, absent, counters, valid

        for first, derived, before in self._derived:
            after = derived.update(frame)
            moved = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            self._set([first + at for at in moved], [after[at] for at in moved])
            before[:] = after
        self._join()

    def _set_alike(self, alike: _Alike, at_once: _Mask, values: npt.NDArray[np.float64 | np.uint64]) -> None:
        """Write the numbers of the lines whose column is among those `at_once`, which were and are present."""
        of_lines = np.flatnonzero(at_once[alike.sources])
        if not len(of_lines):
            return
        lines = alike.lines[of_lines]
        self._dirty[self._part_of[lines]] = True
        pieces = self._pieces
        texts = alike.write(values[alike.sources[of_lines]].tolist())
        for at, text in zip((2 * lines + 1).tolist(), texts, strict=True):
            pieces[at] = f"{text}\n"

    def _set(self, sources: list[int], values: Sequence[float | int | None]) -> None:
        """Write numbers one by one, and have lines come and go."""
        pieces, dirty, part_of = self._pieces, self._dirty, self._part_of
        for source, value in zip(sources, values, strict=True):
            for line in self._lines_of[source]:
                present = bool(pieces[2 * line])
                if value is None or value != value:  # only NaN differs from itself
                    if present:
                        pieces[2 * line] = pieces[2 * line + 1] = ""
                        self._count(line, -1)
                else:
                    pieces[2 * line + 1] = self._renders[line](value) + "\n"  # type: ignore[arg-type]
                    if not present:
                        pieces[2 * line] = self._prefixes[line]
                        self._count(line, 1)
                dirty[part_of[line]] = True

    def _count(self, line: int, change: int) -> None:
        """A series came or went: the first brings its family's header, the last takes it away."""
        family = self._family_of[line]
        self._present[family] += change
        self._pieces[2 * self._header_at[family]] = self._headers[family] if self._present[family] else ""

    # --- text --------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        for part in np.flatnonzero(self._dirty).tolist():
            begin, end = self._bounds[part], self._bounds[part + 1]
            self._texts[part] = "".join(self._pieces[2 * begin : 2 * end]).encode("utf-8", "replace")
            self._deflated[part] = None
        self._dirty.fill(False)

    def compressed(self, tail: bytes) -> bytes:
        """Everything and the tail as one gzip member."""
        pieces = [_GZIP_HEAD]
        check = size = 0
        for part, text in enumerate(self._texts):
            piece = self._deflated[part]
            if piece is None:
                piece = self._deflated[part] = self._deflate(text)
            pieces.append(piece)
            check = deflate.crc32(text, check)
            size += len(text)
        check, size = deflate.crc32(tail, check), size + len(tail)
        pieces += (self._deflate(tail), _DEFLATE_END)
        pieces += (check.to_bytes(4, "little"), (size & 0xFFFFFFFF).to_bytes(4, "little"))
        return b"".join(pieces)

    def _deflate(self, text: bytes) -> bytes:
        # A full flush forgets what was before: the piece may follow on any other.
        packed: bytes = self._packer.compress(text) + self._packer.flush(deflate.Z_FULL_FLUSH)
        return packed


def _never(_: float) -> str:
    """Of a header's line, which no column feeds."""
    return ""
