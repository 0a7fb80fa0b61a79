"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples in every run: a failure in CI is one that anybody can repeat. GANGWATCH_TEST_RANDOM=1 looks for
# others.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("GANGWATCH_TEST_RANDOM") else "repeatable")
