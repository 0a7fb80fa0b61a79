"""Identity of nodes where reader processes connect to the agents: the tests of the feed without them."""

from __future__ import annotations

from functools import partial

import pytest

from scheduler_feedback.feed.feed_with_readers import FeedWithReaders
from tests.feed import test_feed_over_tls
from tests.security.test_identity import (
    site,
    test_a_frame_of_another_node_ends_the_stream,
    test_a_revoked_controller_certificate_gets_no_frames,
    test_renewed_certificates_are_loaded_without_a_restart,
    test_revoking_a_certificate_ends_its_open_stream,
    test_the_feed_accepts_an_agent_with_its_own_nodes_certificate,
    test_the_feed_exchanges_nothing_with_a_wrong_certificate,
)

__all__ = [
    "site",
    "test_a_frame_of_another_node_ends_the_stream",
    "test_a_revoked_controller_certificate_gets_no_frames",
    "test_renewed_certificates_are_loaded_without_a_restart",
    "test_revoking_a_certificate_ends_its_open_stream",
    "test_the_feed_accepts_an_agent_with_its_own_nodes_certificate",
    "test_the_feed_exchanges_nothing_with_a_wrong_certificate",
]


@pytest.fixture(autouse=True)
def with_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_feed_over_tls, "Feed", partial(FeedWithReaders, processes=1))
