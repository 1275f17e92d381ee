"""What a broker shows of the groups that it coordinates, by the names of Kafka and of kafka_exporter."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from tidelog.groups import GroupState
from tidelog.groups.group import Group
from tidelog.metrics import Found
from tidelog.types import Offset

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

MOST_CHARACTERS = 4 * 1024 * 1024
"""Of the lines of one metric: clients choose how many groups there are, and what they are called."""
_CHARACTERS_OF_LINE = 90
"""Besides the names."""
_OFFSET_LABELS = ("consumergroup", "topic", "partition")
_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"


def add_group_gauges(broker: Broker) -> None:
    metrics, usage = broker.metrics, broker.groups.usage
    gauge, total = metrics.gauge, metrics.total
    shown = _Shown(broker)
    metrics.before_reading(shown.count)
    gauge(_MANAGER + "numgroups", "Groups that are coordinated here.", lambda: shown.states.total())
    for state in GroupState:
        gauge(
            f"{_MANAGER}numgroups{state.value.lower()}",
            f"Groups that are coordinated here and are {state.value}.",
            lambda state=state: shown.states[state],  # type: ignore[misc]
        )
    gauge(_MANAGER + "numoffsets", "Committed offsets of the groups that are coordinated here.", lambda: usage.offsets)
    metrics.series(
        "kafka_consumergroup_members",
        "Members of a group, shown by its coordinator.",
        ("consumergroup",),
        shown.members,
    )
    metrics.series(
        "kafka_consumergroup_current_offset",
        "What a group has committed, shown by its coordinator.",
        _OFFSET_LABELS,
        shown.offsets,
    )
    metrics.series(
        "kafka_consumergroup_lag",
        "Records between what a group has committed and the high watermark, shown by the group's coordinator. "
        "It has the high watermark of its own replica, or asks the leader; left out while the leader does not answer.",
        _OFFSET_LABELS,
        shown.lags,
    )
    metrics.series(
        "kafka_consumergroup_lag_sum",
        "The sum of kafka_consumergroup_lag over the partitions of a topic; left out while one of them is not known.",
        _OFFSET_LABELS[:2],
        shown.lag_sums,
    )
    gauge(
        "tidelog_group_left_out_offsets",
        "Committed offsets that this page does not show, because there are too many.",
        lambda: shown.left_out,
    )
    gauge("tidelog_group_pending_member_ids", "Member ids that were given out and not used.", lambda: usage.pending_ids)
    total(
        "tidelog_group_evicted_pending_member_ids_total",
        "Member ids that were given out and not used, and made room for newer ones.",
        lambda: usage.evicted_ids,
    )
    gauge("tidelog_group_member_bytes", "Bytes that members take, about.", lambda: usage.member_bytes)
    gauge(
        "tidelog_group_offset_metadata_bytes",
        "Bytes of the metadata that was committed with offsets.",
        lambda: usage.metadata_bytes,
    )
    total(
        "tidelog_group_refused_for_bounds_total",
        "Requests of groups that were refused because a bound was reached.",
        lambda: usage.refused,
    )


class _Shown:
    """Groups that are loaded. What is walked is copied first: other work goes on while the page is made."""

    def __init__(self, broker: Broker) -> None:
        self._shards = broker.groups.shards
        self._log_ends = broker.groups.log_ends
        self._usage = broker.groups.usage
        self.states: Tally[GroupState] = Tally()
        self.left_out = 0

    def count(self) -> Iterator[None]:
        states: Tally[GroupState] = Tally()
        for shard in list(self._shards.values()):
            if shard.is_active:
                states.update(shard.groups.states())
                yield
        self.states = states

    def _groups(self) -> Iterator[Group]:
        active = [shard for shard in self._shards.values() if shard.is_active]
        return chain.from_iterable(shard.groups.all() for shard in active)

    def members(self) -> Iterator[Found]:
        room = MOST_CHARACTERS
        for group in self._groups():
            room -= _CHARACTERS_OF_LINE + len(group.id)
            if room < 0:
                return
            yield (group.id,), len(group.members)

    def _committed(self) -> Iterator[tuple[str, str, int, Offset]]:
        room = MOST_CHARACTERS
        for group in self._groups():
            for topic, partitions in list(group.commits.by_topic.items()):
                characters = _CHARACTERS_OF_LINE + len(group.id) + len(topic)
                for index, value in list(partitions.items()):
                    room -= characters
                    if room < 0:
                        return
                    yield group.id, topic, index, value.offset

    def offsets(self) -> Iterator[Found]:
        shown = 0
        for group_id, topic, index, offset in self._committed():
            shown += 1
            yield (group_id, topic, str(index)), offset
        self.left_out = max(0, self._usage.offsets - shown)

    def lags(self) -> Iterator[Found | None]:
        """None where it is not known how far the partition reaches."""
        for group_id, topic, index, offset in self._committed():
            end = self._log_ends.of(topic, index)
            yield None if end is None else ((group_id, topic, str(index)), max(0, end - offset))

    def lag_sums(self) -> Iterator[Found | None]:
        """None for each offset that is looked at, so that a page with many is made in pieces."""
        before: tuple[str, str] | None = None
        total: Offset | None = 0
        for group_id, topic, index, offset in self._committed():
            end = self._log_ends.of(topic, index)
            if before != (group_id, topic):
                if before is not None and total is not None:
                    yield before, total
                before, total = (group_id, topic), 0
            total = None if end is None or total is None else total + max(0, end - offset)
            yield None
        if before is not None and total is not None:
            yield before, total
