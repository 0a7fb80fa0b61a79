"""Inbox of the cycle's thread: each message gets an answer, also if the inbox closes while callers cancel."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from scheduler_feedback.controller.inbox import Inbox, Question, StoppedError, UserRequest


def test_cancelled_callers_do_not_prevent_other_answers() -> None:
    inbox = Inbox()
    answers: list[Future[Any]] = [Future() for _ in range(4)]
    inbox.put(Question(lambda state: state, answers[0]))
    inbox.put(UserRequest(lambda state: pytest.fail("never asked for"), answers[1]))
    inbox.put(Question(lambda state: state, answers[2]))
    inbox.put(UserRequest(lambda state: pytest.fail("never asked for"), answers[3]))
    assert answers[0].cancel() and answers[1].cancel()
    inbox.close()
    late: Future[Any] = Future()
    assert late.cancel()
    inbox.put(Question(lambda state: state, late))
    for answered in answers[2:]:
        with pytest.raises(StoppedError):
            answered.result(0)
    assert all(one.cancelled() for one in (*answers[:2], late))
