"""Class of fuzz targets: a parser under test, and the function that makes its inputs.

Each module of this package lists its targets in ``TARGETS``, a tuple of :class:`Target`, which the runner
(``__main__.py``) collects.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

REFUSED_FIRST = "refused_first"
"""Outcome: the parser's first check refused the input (a length, a magic number, whether it is JSON at all)."""

REFUSED = "refused"
"""Outcome: the input passed the parser's first check, and a later check refused it."""

ACCEPTED = "accepted"

OUTCOMES = (REFUSED_FIRST, REFUSED, ACCEPTED)


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under test. `make` returns an input for a seed, and `parse` parses it."""

    name: str
    """Name of the target, unique among all targets. `--only` matches it."""

    make: Callable[[random.Random], bytes]
    """Returns the next input. All randomness comes from the argument, so that the same seed repeats a run."""

    parse: Callable[[bytes], str]
    """Parses the input and returns one of OUTCOMES. It catches the errors by which the parser refuses input.

    Any other exception leaves this function: the runner counts it as a failure and saves the input.
    """

    covers: tuple[str, ...]
    """Modules whose lines the inputs must reach, for example "agent.schema.wire".

    If only a part of a module parses input, its functions and classes are listed instead:
    "scheduler_feedback.feed.host_addresses:node_of", "exporter.serving.agent_http:Server".
    """
