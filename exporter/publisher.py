"""A node published: its server, its TLS and passwords, and what it pushes, started and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.schema.frame import Frame, Layout
from exporter.prometheus.exposition import Settings
from exporter.prometheus.text_format import Sample
from exporter.push.push import Pusher, PushTarget
from exporter.server import ThreadedServer, agent_app

if TYPE_CHECKING:
    from exporter.security.frame_readers import FrameReaders
    from exporter.security.security import Security

Listener = Callable[[Layout, Frame], None]


class Source(Protocol):
    """What is published: a node, or whatever makes frames."""

    def newest(self) -> tuple[Layout, Frame] | None: ...

    def add_listener(self, listener: Listener) -> Callable[[], None]: ...


class Publisher:
    """Serves a source's frames, and pushes them where `targets` say."""

    def __init__(
        self,
        source: Source,
        host: str,
        port: int,
        web_config: Path | None,
        settings: Settings,
        targets: Mapping[str, PushTarget],
        readers: FrameReaders | None = None,
    ) -> None:
        """readers: who may read frames over TLS; None: whoever may read metrics.

        Raises ConfigError for an address, a web configuration or a target that can't be used."""
        self._source = source
        self.security = _security(web_config, readers) if web_config is not None else None
        self._app = agent_app(source.newest, source.add_listener, settings=settings, own=self._own)
        self._pushers = _make_pushers(source, settings, targets)
        self._server = ThreadedServer(self._app, host, port, self.security)
        self.url = self._server.url

    def start(self) -> None:
        self._server.start()
        for pusher in self._pushers:
            pusher.start()

    def stop(self) -> None:
        self._server.stop()
        for pusher in self._pushers:
            pusher.stop()

    def use(self, settings: Settings, targets: Mapping[str, PushTarget]) -> None:
        """Go on with other settings and targets; what waited to be pushed is lost where its target changed.

        Raises ConfigError, and all stays as it was.
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
        """Read the web configuration and its files again now. Raises ConfigError, and all stays as it was."""
        if self.security is not None:
            self.security.reload()

    def healthy(self) -> bool:
        """Whether frames are made, or the first is still awaited."""
        return self._app.healthy()

    def _own(self) -> Iterator[Sample]:
        yield from self._server.measures()
        for pusher in self._pushers:
            yield from pusher.measures()


def _security(file: Path, readers: FrameReaders | None) -> Security:
    from exporter.security.security import Security

    return Security(file, readers=readers)


def _make_pushers(source: Source, settings: Settings, targets: Mapping[str, PushTarget]) -> list[Pusher]:
    """A pusher for each target; each sink is imported only where it is wanted."""
    if not targets:
        return []
    from exporter.push.sinks import SINKS

    return [Pusher(sink(), targets[sink.name], source, settings) for sink in SINKS if sink.name in targets]
