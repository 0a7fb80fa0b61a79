"""Logs of the daemons: one line an event, key=value, in STATE/log/NAME.log, of bounded size."""

from __future__ import annotations

import json
import logging
import sys
import time
from logging.handlers import RotatingFileHandler

from gangwatch.state_folder import StateFolder

MOST_BYTES = 4 * 1024 * 1024
"""Of one log file; one older is kept beside it. At a line a second of 150 bytes that is seven hours each."""


class KeyValueFormatter(logging.Formatter):
    """time=... level=... logger=... message="...", and trace="..." where there is one: always a single line."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"time={stamp}.{int(record.msecs):03d}Z level={record.levelname.lower()} logger={record.name} "
            f"message={json.dumps(record.getMessage(), ensure_ascii=False)}"
        )
        if record.exc_info:
            line += f" trace={json.dumps(self.formatException(record.exc_info), ensure_ascii=False)}"
        return line


def configure_logging(state: StateFolder, name: str) -> None:
    """Send what this process logs to its file, and to a terminal where a person started it."""
    handlers: list[logging.Handler] = [
        RotatingFileHandler(state.log_file(name), maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8")
    ]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.captureWarnings(True)
    # Who asked for what is uvicorn's business at every request: only what goes wrong there is ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
