"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell starts what runs in the background with SIGINT ignored, and whatever that starts inherits it: programs that
# tests interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: how long one example takes says something about what else the machine does, and nothing of ours.
settings.register_profile("gangwatch", deadline=None, print_blob=True)
settings.load_profile("gangwatch")
