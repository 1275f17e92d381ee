"""Mutations that break what readers, writers and members of groups are promised; see tests/sim/mutations.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker.fetch_answer import FetchAnswer
from tidelog.broker.fetch_reading import FetchReading
from tidelog.broker.partition import Partition
from tidelog.groups import offsets, syncing
from tidelog.groups.groups import Groups
from tidelog.lab.client_rules import (
    DeletedUpToThere,
    GroupPassesOverNothing,
    LastOfEachKeyStays,
    OffsetsNeverGoBack,
    OneOwnerPerPartition,
    ReadersSkipNothing,
    ReadYourWrites,
    RetentionKeepsEnough,
)
from tidelog.lab.healing_rules import AcknowledgedInTime, InSyncInTime
from tidelog.lab.rules import Rule
from tidelog.log import trimming
from tidelog.log.log import Log
from tidelog.log.rewriting import BatchFilter
from tidelog.replication.leader import Leader


def skip_one_when_behind(patch: pytest.MonkeyPatch) -> None:
    """A consumer that is a few records behind is given what follows on the next one."""
    patch.setattr(FetchReading, "read", _skipping(FetchReading.read))


def _skipping(read: Any) -> Any:
    def read_later(self: FetchReading, item: Any) -> Any:
        partition = item.partition
        is_behind = partition is not None and item.fetch_offset + 3 <= partition.log.high_watermark
        if self._wanted.replica_id >= 0 or not is_behind:
            return read(self, item)
        item.fetch_offset += 1
        try:
            return read(self, item)
        finally:
            item.fetch_offset -= 1

    return read_later


def ack_before_it_can_be_read(patch: pytest.MonkeyPatch) -> None:
    """Consumers are given one committed record less than there is."""
    end = FetchAnswer.end_of

    def end_too_early(self: FetchAnswer, partition: Partition) -> int:
        return end(self, partition) if self._wanted.replica_id >= 0 else max(end(self, partition) - 1, 0)

    patch.setattr(FetchAnswer, "end_of", end_too_early)


def deaf_for_a_follower(patch: pytest.MonkeyPatch) -> None:
    """The leader does not hear what the last of its replicas has (edge case 34)."""
    hear = Partition.follower_fetched

    def hear_others(self: Partition, fetch: Any) -> None:
        if fetch.follower != self.replicas[-1]:
            hear(self, fetch)

    patch.setattr(Partition, "follower_fetched", hear_others)


def all_replicas_have_to_be_in_sync(patch: pytest.MonkeyPatch) -> None:
    """acks=all is refused as soon as one replica is out of the ISR, whatever min.insync.replicas says."""
    patch.setattr(Leader, "has_enough_replicas", lambda self: len(self.isr) == len(self.replicas))


def everybody_is_assigned_the_same(patch: pytest.MonkeyPatch) -> None:
    """Each member of a group is told the assignment of the first one."""
    tell = syncing.assigned
    patch.setattr(syncing, "assigned", lambda group, member: tell(group, next(iter(group.members.values()))))


def the_first_commit_counts(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes over keeps the first offset that it finds, not the last."""
    replay = Groups.replay
    patch.setattr(Groups, "replay", lambda self, records: replay(self, reversed(list(records))))


def commits_say_too_much(patch: pytest.MonkeyPatch) -> None:
    """A member is told to begin one record behind the committed offset."""
    tell = offsets._offset

    def tell_the_next(*facts: Any) -> Any:
        told = tell(*facts)
        if told.committed_offset >= 0:
            told.committed_offset += 1
        return told

    patch.setattr(offsets, "_offset", tell_the_next)


def deletions_take_one_more(patch: pytest.MonkeyPatch) -> None:
    advance = trimming.advance_log_start
    patch.setattr(
        "tidelog.broker.handlers.offsets.advance_log_start",
        lambda log, offset: advance(log, min(offset + 1, log.high_watermark)),
    )


def deletions_are_acknowledged_too_early(patch: pytest.MonkeyPatch) -> None:
    """Leaders and followers take each log start for durable as soon as it moves."""
    always = property(lambda self: self.log_start_offset, lambda self, start: None)
    patch.setattr(Log, "durable_log_start", always, raising=False)


def retention_takes_one_more(patch: pytest.MonkeyPatch) -> None:
    expired = trimming.expired_count
    patch.setattr(
        "tidelog.log.trimming.expired_count",
        lambda segments, *facts, **more: min(expired(segments, *facts, **more) + 1, len(segments) - 1),
    )


def compaction_keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchFilter, "_keep_data", lambda *facts: None)


SEEN_BY_CLIENTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[int, type[Rule] | None]] = {
    skip_one_when_behind: (0, ReadersSkipNothing),
    ack_before_it_can_be_read: (0, ReadYourWrites),
    deaf_for_a_follower: (0, InSyncInTime),
    all_replicas_have_to_be_in_sync: (6, AcknowledgedInTime),
    everybody_is_assigned_the_same: (0, OneOwnerPerPartition),
    the_first_commit_counts: (10, OffsetsNeverGoBack),
    commits_say_too_much: (45, GroupPassesOverNothing),
    deletions_take_one_more: (3, DeletedUpToThere),
    retention_takes_one_more: (4, RetentionKeepsEnough),
    compaction_keeps_nothing: (4, LastOfEachKeyStays),
}
"""As CAUGHT in tests/sim/mutations.py, which holds them too."""
