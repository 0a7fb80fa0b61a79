"""Publisher of a node's frames: HTTP server, TLS and passwords, and pushes, started and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.schema.frame import Frame, Layout
from agent.schema.sample import Sample
from exporter.plugins.plugins import Plugins
from exporter.prometheus.exposition import Settings
from exporter.push.push import Pusher
from exporter.push.target import PushTarget
from exporter.server import Limit, Shifting, ThreadedServer, agent_app

# TLS, passwords and sinks are imported in functions: they take megabytes, and most agents use none of them.
if TYPE_CHECKING:
    from exporter.security.frame_readers import FrameReaders
    from exporter.security.security import Security

Listener = Callable[[Layout, Frame], None]


class Source(Protocol):
    """Interface of a producer of frames, such as a node."""

    def newest(self) -> tuple[Layout, Frame] | None: ...

    def add_listener(self, listener: Listener) -> Callable[[], None]: ...


class Publisher:
    """Server of a source's frames, which also pushes them to `targets`."""

    def __init__(
        self,
        source: Source,
        host: str,
        port: int,
        web_config: Path | None,
        settings: Settings,
        targets: Mapping[str, PushTarget],
        readers: FrameReaders | None = None,
        limit: Limit | None = None,
        shift: Shifting | None = None,
    ) -> None:
        """Bind the server.

        readers: clients that may read frames over TLS; None: all clients that may read metrics. limit: sets power
        limits of GPUs for the controller; None: no client may set any. shift: the same for time shifts. Raises
        ConfigError for an address, a web configuration or a target that can't be used.
        """
        self._source = source
        self.security = _security(web_config, readers) if web_config is not None else None
        self._plugins = Plugins(settings.textfile_folder, settings.deny)
        self._app = agent_app(
            source.newest, source.add_listener, settings=settings, own=self._own, plugins=self._plugins, limit=limit,
            shift=shift,
        )  # fmt: skip
        self._pushers = _make_pushers(source, settings, targets)
        self._server = ThreadedServer(self._app, host, port, self.security)
        self.url = self._server.url

    def start(self) -> None:
        self._plugins.start()
        self._server.start()
        for pusher in self._pushers:
            pusher.start()

    def stop(self) -> None:
        self._server.stop()
        self._plugins.stop()
        for pusher in self._pushers:
            pusher.stop()

    def use(self, settings: Settings, targets: Mapping[str, PushTarget]) -> None:
        """Apply other settings and targets. Frames queued for a changed target are lost.

        If it raises ConfigError, nothing has changed.
        """
        pushers = _make_pushers(self._source, settings, targets)
        self._app.use(settings)
        kept = [pusher for pusher in self._pushers if pusher.is_like(pushers)]
        for pusher in self._pushers:
            if pusher not in kept:
                pusher.stop()
        started = [pusher for pusher in pushers if not pusher.is_like(kept)]
        self._pushers = [*kept, *started]
        for pusher in started:
            pusher.start()

    def reload_web_config(self) -> None:
        """Read the web configuration and its files again. If it raises ConfigError, nothing has changed."""
        if self.security is not None:
            self.security.reload()

    def healthy(self) -> bool:
        """Return whether frames are made, or the first frame is not due yet."""
        return self._app.healthy()

    def _own(self) -> Iterator[Sample]:
        yield from self._server.measures()
        for pusher in self._pushers:
            yield from pusher.measures()


def _security(file: Path, readers: FrameReaders | None) -> Security:
    from exporter.security.security import Security

    return Security(file, readers=readers)


def _make_pushers(source: Source, settings: Settings, targets: Mapping[str, PushTarget]) -> list[Pusher]:
    """Return a pusher for each target; only the modules of the sinks that are used are imported."""
    if not targets:
        return []
    from exporter.push.sinks import SINKS

    return [
        Pusher(make(targets[name]), targets[name], source, settings) for name, make in SINKS.items() if name in targets
    ]
