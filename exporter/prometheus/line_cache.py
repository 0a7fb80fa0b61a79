"""Cache of the lines of one layout, plain and compressed; only changed lines are rendered.

The text is stored in parts of some kilobytes. Unchanged parts are neither joined nor compressed again: raw deflate
streams that end at a byte boundary (Z_FULL_FLUSH) can be concatenated into one gzip member (RFC 1951 section 3.2.4, RFC
1952 section 2.3).

All changed numbers of one format are rendered in one call.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.schema.frame import Frame, Layout
from exporter.prometheus.derived_values import Derived
from exporter.prometheus.series import Family, IntegerText, Render, View, gauge_text, gauge_texts, prefix

LEVEL = 1
"""Compression level of zlib. It takes two thirds of the time of level 6, at nine tenths of its compression. Scrapes use
a local network."""

PART_BYTES = 16 * 1024
"""Minimum size in bytes of a part, that is, a group of lines that is compressed separately. A part is half of deflate's
window, so that the separation hardly increases the compressed size."""

_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
"""Header of a gzip member (RFC 1952): deflate, no flags, no time, fastest compression, unknown system."""
_DEFLATE_END = b"\x03\x00"
"""End of a deflate stream: an empty last block with fixed codes."""

_Mask = npt.NDArray[np.bool_]
_Indexes = npt.NDArray[np.intp]


_UNLIKE, _NO_LINE = -1, -2
"""Codes in ``_Alike.kinds``. _UNLIKE: the numbers of the column must be rendered one by one, because one of their
formats has no function that renders many numbers. _NO_LINE: the column has no line in this group."""


class _Alike:
    """Lines of different columns that are rendered together: one call for all numbers of the same format.

    places: for each column, the index of its line's number in ``Lines._pieces``. parts: for each column, the part of
    the text that contains its line. kinds: for each column, the index of its function in `writers`, or a code.
    writers: one function per format, which renders many numbers.
    """

    def __init__(self, columns: int) -> None:
        self.places = np.zeros(columns, np.intp)
        self.parts = np.zeros(columns, np.intp)
        self.kinds = np.full(columns, _NO_LINE, np.int16)
        self.writers: list[Callable[[Any], list[bytes]]] = []


class Lines:
    """The text of all series of one layout. Each line contains the number of one column or derived value."""

    def __init__(self, layout: Layout, view: View, families: list[Family], header: Callable[[Family], str]) -> None:
        self.layout_id = layout.layout_id
        self._structure = np.array(view.structure(), np.intp)
        self._derived: list[tuple[int, Derived, list[float | int | None]]] = [
            (first, one, [None] * one.outputs) for first, one in view.derived
        ]
        self._prefixes: list[bytes] = []
        self._renders: list[Render] = []
        # Line i: the text before its number at 2i, including the previous line end, and the number at 2i + 1.
        self._pieces: list[bytes] = []
        self._family_of: list[int] = []
        self._header_at: list[int] = []
        self._headers: list[bytes] = []
        self._present: list[int] = [0] * len(families)
        self._bounds: list[int] = [0]
        fed: list[list[int]] = [[] for _ in range(view.sources)]
        size = 0
        for position, family in enumerate(families):
            if size >= PART_BYTES:
                self._bounds.append(len(self._prefixes))
                size = 0
            self._header_at.append(len(self._prefixes))
            self._headers.append(_line_start(header(family).rstrip("\n")))
            self._line(b"", _never, position)
            for row in family.rows:
                fed[row.source].append(len(self._prefixes))
                self._line(_line_start(prefix(family.name, row.labels)), row.render, position)
                size += len(self._prefixes[-1]) + 8
        self._bounds.append(len(self._prefixes))
        self._lines_of: list[tuple[int, ...]] = [tuple(lines) for lines in fed]
        parts = len(self._bounds) - 1
        self._part_of = np.repeat(np.arange(parts), np.diff(self._bounds))
        self._texts: list[bytes] = [b""] * parts
        self._deflated: list[bytes] = [b""] * parts  # empty: not compressed yet
        self._checks: list[int] = [0] * parts
        self._zeros = memoryview(b"")  # as many as the longest part has bytes
        self._dirty: _Mask = np.ones(parts, np.bool_)
        self._alike_gauges = self._find_alike(0, len(layout.gauges))
        self._alike_counters = self._find_alike(len(layout.gauges), len(layout.counters))
        self._gauges = np.full(len(layout.gauges), np.nan, np.float64)
        self._counters = np.zeros(len(layout.counters), np.uint64)
        self._valid: _Mask = np.zeros(len(layout.counters), np.bool_)
        self._structure_absent = b""
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)

    def _line(self, before: bytes, render: Render, family: int) -> None:
        self._prefixes.append(before)
        self._renders.append(render)
        self._pieces += (b"", b"")
        self._family_of.append(family)

    def _find_alike(self, first: int, columns: int) -> list[_Alike]:
        """Group the lines so that one call can render many numbers. A group has at most one line of each column.

        first: source index of the first column. columns: number of columns.
        """
        found = [_Alike(columns)]
        kinds: dict[Render, int] = {}
        for column in range(columns):
            lines = self._lines_of[first + column]
            renders = [self._renders[line] for line in lines]
            if not all(_writes_many(render) for render in renders):
                found[0].kinds[column] = _UNLIKE
                continue
            while len(found) < len(lines):
                found.append(_Alike(columns))
            for alike, line, render in zip(found, lines, renders, strict=False):
                alike.places[column], alike.parts[column] = 2 * line + 1, self._part_of[line]
                alike.kinds[column] = kinds.setdefault(render, len(kinds))
        for alike in found:
            alike.writers = [render.all if isinstance(render, IntegerText) else gauge_texts for render in kinds]
        return found

    @property
    def series(self) -> int:
        """Return the number of series that have a value, one per sample line."""
        return sum(self._present)

    @property
    def texts(self) -> Sequence[bytes]:
        """Text of all lines, as a list of parts of some kilobytes."""
        return self._texts

    def fits(self, layout: Layout, frame: Frame) -> bool:
        """Return whether the lines still match the layout and the current owners of its GPUs."""
        if layout.layout_id != self.layout_id:
            return False
        return not len(self._structure) or self._absent_of(frame) == self._structure_absent

    def _absent_of(self, frame: Frame) -> bytes:
        return np.isnan(frame.gauges[self._structure]).tobytes()

    # --- numbers -----------------------------------------------------------------------------------------------------

    def take(self, frame: Frame) -> None:
        """Render the changes since the previous frame."""
        gauges, counters, valid = frame.gauges, frame.counters, frame.counters_valid
        # Bits, not numbers: NaN differs from itself, and an absent value that stays absent is no change.
        changed = np.flatnonzero(gauges.view(np.int64) != self._gauges.view(np.int64))
        values = gauges[changed]
        singly = self._set_alike(
            self._alike_gauges, changed, np.isfinite(values) & ~np.isnan(self._gauges[changed]), values
        )
        self._set(changed[singly].tolist(), values[singly].tolist())

        changed = np.flatnonzero(valid & (counters != self._counters) | (valid != self._valid))
        counts, present = counters[changed], valid[changed]
        singly = self._set_alike(self._alike_counters, changed, present & self._valid[changed], counts)
        shown = zip(counts[singly].tolist(), present[singly].tolist(), strict=True)
        self._set((changed[singly] + len(gauges)).tolist(), [count if there else None for count, there in shown])
        self._gauges, self._counters, self._valid = gauges, counters, valid
        self._structure_absent = self._absent_of(frame)

        for first, derived, before in self._derived:
            after = derived.update(frame)
            moved = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            self._set([first + at for at in moved], [after[at] for at in moved])
            before[:] = after
        self._join()

    def _set_alike(
        self, layers: list[_Alike], columns: _Indexes, stays: _Mask, values: npt.NDArray[np.float64 | np.uint64]
    ) -> _Indexes:
        """Render the changed numbers, all numbers of one format in one call.

        columns: columns that have changed. values: their new values. stays: for each of them, whether the previous
        frame and this one have a value. Return the positions in `columns` that the caller must render one by one.
        """
        pieces = self._pieces
        at_once = stays & (layers[0].kinds[columns] != _UNLIKE)
        for layer in layers:
            kinds = np.where(at_once, layer.kinds[columns], _NO_LINE)
            for kind, write in enumerate(layer.writers):
                chosen = np.flatnonzero(kinds == kind)
                if not len(chosen):
                    continue
                of = columns[chosen]
                self._dirty[layer.parts[of]] = True
                texts = write(values[chosen].tolist())
                for place, text in zip(layer.places[of].tolist(), texts, strict=True):
                    pieces[place] = text
        return np.flatnonzero(~at_once)

    def _set(self, sources: list[int], values: Sequence[float | int | None]) -> None:
        """Render values one by one. sources: source indices of their columns and derived values.

        Add the lines of a source that now has a value, and remove the lines of a source that no longer has one.
        """
        pieces, dirty, part_of = self._pieces, self._dirty, self._part_of
        for source, value in zip(sources, values, strict=True):
            for line in self._lines_of[source]:
                present = bool(pieces[2 * line])
                if value is None or value != value:  # only NaN differs from itself
                    if present:
                        pieces[2 * line] = pieces[2 * line + 1] = b""
                        self._count(line, -1)
                else:
                    pieces[2 * line + 1] = self._renders[line](value).encode()  # type: ignore[arg-type]
                    if not present:
                        pieces[2 * line] = self._prefixes[line]
                        self._count(line, 1)
                dirty[part_of[line]] = True

    def _count(self, line: int, change: int) -> None:
        """Count an added or removed series. Add a family's header with its first series, remove it with its last."""
        family = self._family_of[line]
        self._present[family] += change
        self._pieces[2 * self._header_at[family]] = self._headers[family] if self._present[family] else b""

    # --- text --------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        dirty = self._dirty
        for part in np.flatnonzero(dirty).tolist():
            begin, end = self._bounds[part], self._bounds[part + 1]
            pieces = self._pieces[2 * begin : 2 * end]
            for at, piece in enumerate(pieces):
                if piece:  # the first piece has no previous line to end
                    pieces[at] = piece[1:]
                    pieces.append(b"\n")
                    break
            self._texts[part] = text = b"".join(pieces)
            self._deflated[part] = b""
            if len(text) > len(self._zeros):
                self._zeros = memoryview(bytes(len(text) + PART_BYTES // 4))
        dirty.fill(False)

    def compressed(self, tail: bytes) -> bytes:
        """Return the text of all families, followed by `tail`, as one gzip member."""
        self.pack()
        pieces = [_GZIP_HEAD, *self._deflated]
        crc32, checks = zlib.crc32, self._checks
        check = size = 0
        for part, text in enumerate(self._texts):
            length = len(text)
            zeros = self._zeros[:length]
            # CRC(before + text) = CRC(before + zeros) ^ CRC(zeros) ^ CRC(text), all but the first from 0: the sum is
            # linear but for its start. Unchanged text, most of the total, is not read again.
            check = crc32(zeros, check) ^ checks[part]
            size += length
        check, size = crc32(tail, check), size + len(tail)
        pieces += (self._deflate(tail), _DEFLATE_END)
        pieces += (check.to_bytes(4, "little"), (size & 0xFFFFFFFF).to_bytes(4, "little"))
        return b"".join(pieces)

    def pack(self) -> None:
        """Compress the parts that have changed, to make the next call of ``compressed`` fast."""
        for part, text in enumerate(self._texts):
            if not self._deflated[part]:
                self._deflated[part] = self._deflate(text)
                self._checks[part] = zlib.crc32(text) ^ zlib.crc32(self._zeros[: len(text)])

    def _deflate(self, text: bytes) -> bytes:
        # After a full flush, the piece does not depend on earlier ones.
        return self._packer.compress(text) + self._packer.flush(zlib.Z_FULL_FLUSH)


def gzipped(body: bytes) -> bytes:
    """Return the body as a gzip member."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def _line_start(text: str) -> bytes:
    return f"\n{text}".encode("utf-8", "replace")


def _writes_many(render: Render) -> bool:
    """Return whether the numbers of many lines with this render function can be rendered in one call."""
    return render is gauge_text or isinstance(render, IntegerText)


def _never(_: float) -> str:
    return ""
