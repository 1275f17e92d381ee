"""Members of a consumer group while a cluster is put to the test, and what must always hold of their group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from tidelog.client.membership import Assignment, Member
from tidelog.client.seat import MemberSettings
from tidelog.errors import TidelogError
from tidelog.lab.broker import eventually
from tidelog.lab.checkers import BrokenRuleError
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.lab.workload import connected
from tidelog.types import Offset, TopicPartition

GROUP = "group"
SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
    "min_insync_replicas": "2",
}
"""Of brokers. With fewer replicas a commit would be promised that one loss of power can take (the fault budget)."""
_MEMBER = MemberSettings(session_timeout_ms=6_000, heartbeat_interval_ms=500, rebalance_timeout_ms=10_000)
_REST_S = 0.2
_SETTLED_S = 120.0

ONE_OWNER = "a partition has one owner per generation"
NEVER_BACK = "a committed group offset never goes back by itself"
GROUP_RULES = (ONE_OWNER, NEVER_BACK)


class GroupLedger:
    """What the members of a group were given and told."""

    def __init__(self) -> None:
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self.committed: dict[TopicPartition, Offset] = {}
        """The highest that was acknowledged."""

    def assigned(self, member: str, assignment: Assignment) -> None:
        for partition in assignment.partitions:
            owner = self._owners.setdefault((assignment.generation, partition), member)
            if owner != member:
                what = f"in generation {assignment.generation} both {owner} and {member} have {partition}"
                raise BrokenRuleError(ONE_OWNER, what)

    def acknowledged(self, partition: TopicPartition, offset: Offset) -> None:
        self.committed[partition] = max(offset, self.committed.get(partition, 0))

    def told(
        self, member: str, partition: TopicPartition, offset: Offset, before: dict[TopicPartition, Offset]
    ) -> None:
        """`before` is what had been acknowledged when the question was asked."""
        if offset < before.get(partition, 0):
            what = f"{member} was told {offset} for {partition}, after {before[partition]} had been acknowledged"
            raise BrokenRuleError(NEVER_BACK, what)


class GroupMember:
    """A member that commits, for what it has, one more each time, and asks where to begin whenever it gets a share."""

    def __init__(self, cluster: LabCluster[Any], ledger: GroupLedger, name: str) -> None:
        self.name = name
        self.assignment = Assignment()
        self._cluster = cluster
        self._ledger = ledger

    async def run(self) -> None:
        while True:
            async with await connected(self._cluster, self.name) as client:
                try:
                    async with Member(client, GROUP, [TOPIC], settings=_MEMBER) as member:
                        await self._live(member)
                except TidelogError:
                    await asyncio.sleep(_REST_S)

    async def _live(self, member: Member) -> None:
        while True:
            assignment = self.assignment = member.assignment
            self._ledger.assigned(self.name, assignment)
            before = dict(self._ledger.committed)
            try:
                found = await member.committed(assignment.partitions)
                if member.assignment == assignment:
                    positions = {one: found[one].offset if one in found else 0 for one in assignment.partitions}
                    for partition, offset in positions.items():
                        self._ledger.told(self.name, partition, offset, before)
                    await self._commit(member, positions)
            except TidelogError:
                pass  # the coordinator is away, or the group has changed
            await asyncio.sleep(_REST_S)

    async def _commit(self, member: Member, positions: dict[TopicPartition, Offset]) -> None:
        assignment = member.assignment
        while member.assignment == assignment:
            for partition, position in list(positions.items()):
                await member.commit({partition: position + 1})
                positions[partition] = position + 1
                self._ledger.acknowledged(partition, position + 1)
            await asyncio.sleep(_REST_S)


async def settled(ledger: GroupLedger, partitions: Iterable[int]) -> None:
    """Nothing goes wrong any more: for every partition somebody commits."""
    for index in partitions:
        partition = TopicPartition(TOPIC, index)
        before = ledger.committed.get(partition, 0)
        await eventually(
            partial(_has_grown, ledger, partition, before),
            _SETTLED_S,
            f"the group commits offsets of {partition} again",
        )


def _has_grown(ledger: GroupLedger, partition: TopicPartition, before: Offset) -> bool:
    return ledger.committed.get(partition, 0) > before
