"""Settings for all tests."""

from __future__ import annotations

import gc
import signal

from hypothesis import HealthCheck, settings

# A shell starts background programs with SIGINT ignored, and their children inherit that: programs that tests interrupt
# would ignore the signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Neither a deadline nor the check of slow generation, which fails after one second for ten examples: the time of an
# example depends mostly on the other load of the machine. The examples of a test are the same in each run: a failure
# that has nothing to do with a change must not stop it. For other examples: pytest --hypothesis-profile=random.
for name, derandomize in (("gangwatch", True), ("random", False)):
    settings.register_profile(
        name,
        deadline=None,
        derandomize=derandomize,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("gangwatch")


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from every later garbage collection."""
    gc.collect()
    gc.freeze()
