"""Which requests are named as slow, and how often."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.slow_requests import SlowRequests
from tidelog.net.channel import Call

MS = 1_000_000
METADATA, PRODUCE = 3, 0


def call(key: int = METADATA, *, queued_ms: int = 0, handled_ms: int = 0, waited_ms: int = 0) -> Call:
    connection: Any = SimpleNamespace(client_host="127.0.0.1")
    made = Call(connection, memoryview(bytes(2_000)), key, 0)
    made.version, made.client_id = 9, "a\nclient"
    made.taken_ns = queued_ms * MS
    made.handled_ns = made.taken_ns + handled_ms * MS
    made.answered_ns = made.handled_ns + 7 * MS
    made.waited_ns = waited_ms * MS
    return made


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_says_where_the_time_went(caplog: pytest.LogCaptureFixture) -> None:
    SlowRequests(1_000).tell(call(queued_ms=400, handled_ms=900, waited_ms=200), 1_309 * MS)
    assert caplog.messages == [
        "slow request: Metadata v9 of client a\\nclient at 127.0.0.1, 2,000 bytes: 400 ms in the queue, "
        "700 ms in its handler, 207 ms waiting for others, 2 ms until it was sent"
    ]


def test_who_only_waited_is_not_slow(caplog: pytest.LogCaptureFixture) -> None:
    SlowRequests(1_000).tell(call(handled_ms=5_000, waited_ms=4_500), 5_000 * MS)
    assert caplog.messages == []


def test_an_api_has_a_line_in_ten_seconds_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests(1_000)
    for second in range(10):
        slow.tell(call(handled_ms=2_000), second * 1_000 * MS)
        slow.tell(call(PRODUCE, queued_ms=2_000), second * 1_000 * MS)
    assert [message.split()[2] for message in caplog.messages] == ["Metadata", "Produce"]
    slow.tell(call(handled_ms=2_000), 10_000 * MS)
    assert caplog.messages[-1].endswith("; 9 more since the last line were slow")
