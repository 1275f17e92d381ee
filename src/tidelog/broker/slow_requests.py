"""Requests that kept the broker busy, or waited for it, for too long: named in the log, a few of them.

What counts is the time in the queue and in the handler. The time that a request only waits for others is not counted: a
fetch for records, a join for the other members, a produce for its followers. So one slow disk or one huge request
shows, and a long poll does not.
"""

from __future__ import annotations

import logging

from tidelog.net.channel import Call
from tidelog.wire import API
from tidelog.wording import counted

_log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
_EVERY_NS = 10_000_000_000
"""An API has one line in so long."""


class SlowRequests:
    """Asked for each request that was answered, so what is not slow costs one comparison."""

    def __init__(self, slow_ms: int) -> None:
        self.slow_ns = slow_ms * _NS_PER_MS
        """tidelog.slow.request.ms, as it is now."""
        self._told_ns: dict[int, int] = {}
        self._left_out: dict[int, int] = {}

    def tell(self, call: Call, sent_ns: int) -> None:
        """It took longer than `slow_ns` until it was handled; much of that may have been waiting."""
        busy_ns = call.handled_ns - call.taken_ns - call.waited_ns
        if call.taken_ns - call.arrived_ns + busy_ns <= self.slow_ns:
            return
        key = call.api_key
        told_ns = self._told_ns.get(key)
        if told_ns is not None and sent_ns < told_ns + _EVERY_NS:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return
        self._told_ns[key] = sent_ns
        left_out = self._left_out.pop(key, 0)
        _log.info(
            "slow request: %s v%d of %s, %s: %d ms in the queue, %d ms in its handler, %d ms waiting for others, "
            "%d ms until it was sent%s",
            API[key].name,
            call.version,
            call.sender,
            counted(call.size_bytes, "byte"),
            (call.taken_ns - call.arrived_ns) // _NS_PER_MS,
            busy_ns // _NS_PER_MS,
            (call.answered_ns - call.handled_ns + call.waited_ns) // _NS_PER_MS,
            (sent_ns - call.answered_ns) // _NS_PER_MS,
            f"; {left_out:,} more since the last line were slow" if left_out else "",
        )
