"""Decoding and checks of the messages of one stream. It has no socket."""

from __future__ import annotations

from agent.schema.errors import FrameError
from agent.schema.frame import Frame, Layout, PackedLayout, check_fits, pack
from agent.schema.wire import Decoder


class StreamDecoder:
    """Decoder of one connection to a node's agent, which checks every message.

    layout: the newest layout; None before the first. interval_seconds: interval of frames, from the layout.
    """

    __slots__ = ("_decode", "_fitting", "_node", "interval_seconds", "layout")

    def __init__(self, node: str) -> None:
        self._node = node
        self._decode = Decoder().decode
        self._fitting = ""
        """Layout id of the newest frame whose shape was checked against its layout. A later frame with the same string
        object as its layout id has the same shape, because the decoder reuses the string, and is not checked again."""
        self.layout: PackedLayout | None = None
        self.interval_seconds = 1.0

    def take(self, message: bytes) -> Frame | None:
        """Return the frame; None for a layout, which is kept. Raises FrameError for an invalid message, one of another
        node, or a frame that does not fit the layout; VersionError as ``agent.schema.wire.decode``."""
        received = self._decode(message)
        if received.node != self._node:
            raise FrameError(f"node: the stream of {self._node!r} contains a message of {received.node!r}")
        if isinstance(received, Layout):
            self.layout = pack(received)
            if received.tiers:
                self.interval_seconds = received.tiers[0].interval_seconds
            self._fitting = ""
            return None
        if self.layout is None:
            raise FrameError(f"frame {received.seq}: it comes before any layout")
        if received.layout_id is not self._fitting:
            check_fits(self.layout, received)
            self._fitting = received.layout_id
        return received
