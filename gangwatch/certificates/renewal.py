"""Renewal of an agent's certificate with a configured command: at start, and when a third of its lifetime is left.

The command is a separate process, so that the agent loads no library for certificates. The server reads the new
files when they change.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError

LEFT = 1 / 3
CHECK_SECONDS = 600.0
COMMAND_SECONDS = 300.0
POLL_SECONDS = 0.2
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0

_log = logging.getLogger(__name__)


class Renewal:
    """Thread that runs `command` if the certificate file `path` is missing or due for renewal.

    node: node name, which the command gets in the variable GANGWATCH_NODE.
    """

    def __init__(self, command: Sequence[str], path: Path, node: str) -> None:
        self._command, self._path, self._node = tuple(command), path, node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificate", daemon=True)

    def first(self, ended: Callable[[], bool] = lambda: False) -> bool:
        """Wait for a valid certificate and return True. Return False if `ended` returns True before.

        The wait may be long, because the signer may be unavailable.
        """
        pause_seconds = FIRST_PAUSE_SECONDS
        while self.left() <= 0:
            if self._renew() and self.left() > 0:
                break
            again = time.monotonic() + pause_seconds * random.uniform(0.5, 1.0)  # spread thousands of nodes
            while time.monotonic() < again:
                if ended():
                    return False
                time.sleep(POLL_SECONDS)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        return True

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def left(self) -> float:
        """Return the remaining share of the certificate's lifetime (0 to 1); 0 if the file is missing or unreadable."""
        try:
            begin, end = validity(self._path.read_bytes())
        except (OSError, ConfigError):
            return 0.0
        return max(0.0, (end - time.time()) / max(end - begin, 1.0))

    def _run(self) -> None:
        while not self._ended.wait(CHECK_SECONDS * random.uniform(0.5, 1.0)):
            if self.left() < LEFT:
                self._renew()

    def _renew(self) -> bool:
        """Run the command, log its output, and return whether it succeeded."""
        environment = {**os.environ, "GANGWATCH_NODE": self._node}
        try:
            done = subprocess.run(
                self._command, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.error("agent.certificate_command: %s", error)
            return False
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip()[-500:]
            _log.error("agent.certificate_command: exit code %d: %s", done.returncode, words)
            return False
        _log.info("agent.certificate_command: %s", done.stdout.strip()[-200:])
        return True
