"""Cost of messages with several samples."""

from __future__ import annotations

from benchmarks.ingest.messages import measure


def test_one_message_for_eight_frames_is_smaller_than_eight_messages() -> None:
    single, together = measure(1, 1, 1), measure(8, 4, 1)
    assert 0 < together["frame_bytes"] < single["frame_bytes"] / 2
    assert together["message_us"] > 0 and together["message_bytes"] > 2 * single["message_bytes"]
