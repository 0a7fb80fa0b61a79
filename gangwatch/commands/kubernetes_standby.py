"""HTTP endpoints of a standby controller, while another controller leads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.schema.sample import Sample
from gangwatch.configuration.config_file import Config
from scheduler_feedback.backends.kubernetes.cluster_backend import LEADS

_STOP_SECONDS = 5.0


@contextmanager
def standing_by(
    config: Config,
    obstacle: Callable[[], str] = lambda: "",
    measures: Callable[[], Sequence[Sample]] = lambda: (),
) -> Iterator[str]:
    """Serve a standby's /metrics at the controller's address inside the context, and yield the URL.

    obstacle: returns why this controller could not lead now, '' if it could; any thread may call it. /readyz returns
    200 if it could, else 503 with the reason. measures: returns further metrics; any thread may call it. /healthz
    returns 200, because a restart would not help. Other paths return 503. The same access rules apply as to the
    leader's metrics. Raises ConfigError if the address is not usable.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Mount, Route

    from exporter.prometheus.text_format import TEXT_TYPE, expose_samples
    from exporter.security.security import Security
    from exporter.serving.asgi import create_server
    from exporter.serving.listening import url_of

    def metrics(_request: Request) -> Response:
        return Response(expose_samples([(LEADS, (), 0.0), *measures()]), media_type=TEXT_TYPE)

    def healthz(_request: Request) -> Response:
        return JSONResponse({"alive": True, "leads": False})

    def readyz(_request: Request) -> Response:
        why = obstacle()
        if not why:
            return JSONResponse({"ready": True, "leads": False})
        return JSONResponse({"ready": False, "leads": False, "error": why}, 503)

    elsewhere = PlainTextResponse("this controller is a standby: send requests to the leader\n", 503)
    app = Starlette(routes=[
            Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz), Mount("/", elsewhere),
        ]
    )  # fmt: skip
    host, port = config.controller.address()
    web_config = config.controller.web_config
    security = Security(Path(web_config)) if web_config is not None else None
    server, listener = create_server(app, host, port, security=security)
    with listener:
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="standing-by", daemon=True)
        serving.start()
        try:
            yield url_of(listener, security)
        finally:
            server.should_exit = True
            serving.join(_STOP_SECONDS)
