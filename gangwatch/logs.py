"""Logs of the daemons: one key=value line per event, in STATE/log/NAME.log, with bounded size."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from logging.handlers import RotatingFileHandler

from gangwatch.state_folder import StateFolder

MOST_BYTES = 4 * 1024 * 1024
"""Maximum size of a log file, in bytes. One older file is kept. At one line per second, a file lasts seven hours."""


TO_STANDARD_ERROR = "GANGWATCH_LOG_STDERR"
"""Environment variable: with a value, daemons log to standard error, too. The images set it, so that `kubectl logs`
shows the log of a container."""


class KeyValueFormatter(logging.Formatter):
    """Formatter that writes each event as one line: time=... level=... logger=... message="...".

    An exception adds trace="...".
    """

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
    """Write the log of this process to log/NAME.log, and also to standard error if that is a terminal, or if the
    environment variable TO_STANDARD_ERROR has a value."""
    handlers: list[logging.Handler] = [
        RotatingFileHandler(state.log_file(name), maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8")
    ]
    if sys.stderr.isatty() or os.environ.get(TO_STANDARD_ERROR):
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.captureWarnings(True)
    # uvicorn logs every request at INFO; keep only its warnings.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
