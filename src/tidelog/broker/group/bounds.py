"""What the groups of a broker keep, brought back within its bounds, across all partitions that it coordinates.

A client that left must not keep others out for as long as it asked to be remembered. So what can come again makes room:
pending member ids, which are no members yet, and members that were silent for a minute. Committed offsets do not, for
they would be lost: there a request is refused, and the log says which setting to raise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.broker.group.shard import GroupShard
from tidelog.broker.said import Said
from tidelog.groups import MEMBERS_MAX_BYTES, Usage

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

SILENT_MS = 60_000
"""At the bound a member is kept for so long without a word, whatever its session timeout is."""
_LOOK_AGAIN_S = 1.0
_MOST_DROPPED = 1_000
"""Members that make room at once: each may be the end of a group."""


class GroupBounds:
    """Of one broker: its shards come and go."""

    def __init__(
        self, broker: Broker, usage: Usage, shards: Mapping[int, GroupShard], now_ms: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._usage = usage
        self._shards = shards
        self._now_ms = now_ms
        self._said = Said()
        self._looked_s = 0.0
        usage.on_refusal = self._on_refusal

    def drop_oldest_ids(self) -> None:
        """Pending member ids of the broker beyond the bound: the oldest go. Who comes with one asks for another."""
        most: int = self._broker.config["tidelog.broker.pending.members.max"]
        while self._usage.pending_ids > most:
            pending = next(iter(self._usage.pending))
            shard = next(shard for shard in self._shards.values() if shard.groups.holds(pending.group))
            shard.perform(shard.groups.drop_id(pending, self._now_ms()))

    def _on_refusal(self, setting: str) -> None:
        if self._said.is_news(setting):
            _log.warning(
                "%s=%s is reached, so requests of clients are refused: raise it, or delete groups that are not needed",
                setting,
                self._broker.config[setting],
            )
        loop = asyncio.get_running_loop()
        if setting == MEMBERS_MAX_BYTES and loop.time() >= self._looked_s + _LOOK_AGAIN_S:
            self._looked_s = loop.time()
            loop.call_soon(self._drop_silent_members)

    def _drop_silent_members(self) -> None:
        """The client that was refused comes again, and finds the room that this makes."""
        now_ms, left = self._now_ms(), _MOST_DROPPED
        for shard in self._shards.values():
            if left <= 0:
                break
            if shard.is_active:
                effects, dropped = shard.groups.drop_silent(
                    now_ms - SILENT_MS, lambda reply: bool(reply.is_gone), left, now_ms
                )
                shard.perform(effects)
                left -= dropped
        if left < _MOST_DROPPED:
            _log.warning(
                "%s is reached: %d members of groups were silent for %d s and make room",
                MEMBERS_MAX_BYTES,
                _MOST_DROPPED - left,
                SILENT_MS // 1000,
            )
