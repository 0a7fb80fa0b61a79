"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# No deadline: how long one example takes says something about what else the machine does, and nothing of ours.
settings.register_profile("gangwatch", deadline=None, print_blob=True)
settings.load_profile("gangwatch")
