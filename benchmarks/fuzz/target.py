"""A parser under test, and how to make its inputs.

A module of this package lists its parsers in a module-level ``TARGETS``, a tuple of :class:`Target`. The runner
(``__main__.py``) collects them by name; no other registration is necessary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

REFUSED_FIRST = "refused_first"
"""The parser's first check refused the input (a length, a magic number, whether it is JSON at all)."""

REFUSED = "refused"
"""A later check refused it. The input passed the first check."""

ACCEPTED = "accepted"

OUTCOMES = (REFUSED_FIRST, REFUSED, ACCEPTED)


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. Both functions run many thousand times in each worker process."""

    name: str
    """Unique among all targets; `--only` matches it."""

    make: Callable[[random.Random], bytes]
    """Return the next input. All randomness comes from its argument, so that a seed repeats a run."""

    parse: Callable[[bytes], str]
    """Parse the input and return one of OUTCOMES. Errors that refuse input are caught here.

    Any other exception leaves this function: the runner counts it as a failure and saves the input.
    """

    covers: tuple[str, ...]
    """Modules whose lines the inputs must reach ("agent.schema.wire"); or, if the rest of a module parses nothing,
    functions and classes of it ("scheduler_feedback.feed.host_addresses:node_of",
    "exporter.serving.agent_http:Server")."""
