"""What a controller answers while another leads: that it is up, and does not lead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gangwatch.configuration.config_file import Config

LEADS = "gangwatch_leads"
"""1 of the controller that leads; 0 of one that stands by, so that its target is up and nobody is alarmed."""

_STOP_SECONDS = 5.0


@contextmanager
def standing_by(config: Config) -> Iterator[str]:
    """Answer /metrics where the controller will answer once it leads, and refuse all else with 503; the URL.

    /healthz and /readyz are 200: one that stands by does its work, and a rolling update has to get past it.
    Whoever may read the leader's metrics may read these. Raises ConfigError where the address can't be had.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Mount, Route

    from exporter.prometheus.text_format import TEXT_TYPE, expose_samples
    from exporter.security.security import Security
    from exporter.server import url_of
    from exporter.serving.asgi import create_server

    def metrics(_request: Request) -> Response:
        return Response(expose_samples([(LEADS, (), 0.0)]), media_type=TEXT_TYPE)

    def probed(_request: Request) -> Response:
        return JSONResponse({"ready": True, "leads": False})

    elsewhere = PlainTextResponse("this controller stands by: another leads, and answers\n", 503)
    app = Starlette(routes=[
            Route("/metrics", metrics), Route("/healthz", probed), Route("/readyz", probed), Mount("/", elsewhere),
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
